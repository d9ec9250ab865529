"""The contract of a `Dataset`'s storage: random access to rows, as columns."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from rlds_beam.encoding.example.row_decoder import objects
from rlds_beam.episodes.episode import Column
from rlds_beam.episodes.schema import Field
from rlds_beam.images.codecs import Jpeg
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.images.video_frames import VideoFrames

Indices = npt.NDArray[np.int64]
STEPS = "steps/"
"""What the names of step columns begin with, if a row is an episode."""

T = TypeVar("T")


class Rows(Protocol):
    """Random access to rows. Picklable and thread-safe; holds no open file when pickled.

    Attributes:
      fields: the columns of a row; a dimension that varies between rows is None.
    """

    @property
    def fields(self) -> Mapping[str, Field]: ...

    def __len__(self) -> int: ...

    def read(self, indices: Indices, wanted: Sequence[str]) -> dict[str, Column]:
        """Reads rows by index, each from 0 to `len(self)` - 1, in any order, with repetitions.

        Returns:
          A column [k, ...] for each path in `wanted`; images are `EncodedImages`.

        Raises:
          RldsBeamError: a file is damaged or changed.
        """


class StepRows(Rows, Protocol):
    """Steps as rows, in the order of their episodes."""

    @property
    def starts(self) -> Indices:
        """The index of each episode's first step, then the number of steps: int64 [E + 1]."""

    @property
    def ended(self) -> npt.NDArray[np.bool_]:
        """Whether the last step of each episode is marked as the last, bool [E]."""

    @property
    def void(self) -> npt.NDArray[np.bool_]:
        """Whether the last step of each episode has no action, bool [E]."""


class Loadable(Protocol):
    """A dataset whose rows become batches; the members are those of `Dataset`."""

    @property
    def name(self) -> str: ...
    @property
    def fields(self) -> Mapping[str, Field]: ...
    @property
    def rows(self) -> Rows: ...
    @property
    def jpeg(self) -> Jpeg: ...
    @property
    def fps(self) -> float | None: ...


def find_starts(rows: Rows) -> Indices | None:
    """`StepRows.starts`; None if the rows are not steps."""
    starts: Indices | None = getattr(rows, "starts", None)
    return starts


def prefetch(rows: Rows, indices: Indices, path: str) -> None:
    """Starts to read the bytes that `rows.read(indices, [path])` will need, if they are in a bucket."""
    start = getattr(rows, "prefetch", None)
    if start is not None:
        start(indices, path)


def episode_fields(steps: Iterable[Field], metadata: Iterable[Field]) -> dict[str, Field]:
    """The columns of a row, if it is an episode: those of its steps, `steps/...` (T, ...), and its metadata."""
    fields = {}
    for field in steps:
        path = STEPS + field.path
        fields[path] = dataclasses.replace(field, path=path, shape=(None, *field.shape))
    return {**fields, **{field.path: field for field in metadata}}


def join_episodes(field: Field, columns: Sequence[Column]) -> Column:
    """One column with a row for each episode, from the columns of their steps."""
    if not field.holds_image_files:
        return objects(columns)
    images = [column for column in columns if isinstance(column, EncodedImages)]
    rows = [column if isinstance(column, VideoFrames) else column.data for column in images]
    return EncodedImages(objects(rows), field.shape[-3:], field.dtype)


class PerThread(Generic[T]):
    """Caches each thread's most recently used open files by path. Pickled without them; not shared after a fork."""

    def __init__(self, open_file: Callable[[str], T], most: int = 8, close: Callable[[T], object] | None = None):
        self._open, self._most, self._close = open_file, most, close
        self._local = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_local"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _local=threading.local())

    def __getitem__(self, path: str) -> T:
        if getattr(self._local, "process", None) != os.getpid():  # a forked process shares its parent's file positions
            self._local.process, self._local.files = os.getpid(), OrderedDict()
        files: OrderedDict[str, T] = self._local.files
        if path not in files:
            files[path] = self._open(path)
            if len(files) > self._most:
                _, oldest = files.popitem(last=False)
                if self._close is not None:
                    self._close(oldest)
        files.move_to_end(path)
        return files[path]


class Cache(Generic[T]):
    """The most recently used values, up to a number of bytes, for all threads. Pickled without them.

    Args:
      most: the number of bytes.
    """

    def __init__(self, most: int):
        self._most, self._bytes = most, 0
        self._values: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._most,)

    def get(self, key: Hashable) -> T | None:
        """The value with this key, if it is still there."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key][0]

    def put(self, key: Hashable, value: T, size: int) -> None:
        """Adds a value of `size` bytes; the last one stays, however large it is."""
        with self._lock:
            _, before = self._values.pop(key, (None, 0))
            self._values[key] = value, size
            self._bytes += size - before
            while self._bytes > self._most and len(self._values) > 1:
                _, (_, freed) = self._values.popitem(last=False)
                self._bytes -= freed


def by_file(indices: Indices, starts: Indices) -> list[tuple[int, Indices, Indices]]:
    """Groups row indices by file.

    Args:
      starts: the index of each file's first row, then the total number of rows: [files + 1].

    Returns:
      (file, positions in `indices`, row numbers in the file), in the order of the files.
    """
    files = np.searchsorted(starts, indices, side="right") - 1
    order = np.argsort(files, kind="stable")
    bounds = np.flatnonzero(np.diff(files[order])) + 1
    return [
        (int(files[part[0]]), part, indices[part] - starts[files[part[0]]])
        for part in np.split(order, bounds)
        if len(part)
    ]
