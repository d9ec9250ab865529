"""The contract of what a `Dataset` reads: rows at random places, as columns."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from rlds_beam.episodes.episode import Column
from rlds_beam.episodes.schema import Field

Indices = npt.NDArray[np.int64]
T = TypeVar("T")


class Rows(Protocol):
    """Rows at random places. Pickles, and may be read by several threads at once; holds no open file when pickled.

    Attributes:
      fields: the columns of a row; a dimension that differs from row to row is None.
    """

    @property
    def fields(self) -> Mapping[str, Field]: ...

    def __len__(self) -> int: ...

    def read(self, indices: Indices, wanted: Sequence[str]) -> dict[str, Column]:
        """The rows of these numbers, each from 0 to `len(self)` - 1, in any order and as often as they are named.

        Returns:
          Of each path in `wanted` a column, [k, ...]; images are `EncodedImages`.

        Raises:
          RldsBeamError: a file is not what was written.
        """


class PerThread(Generic[T]):
    """A few open files of each thread, by path: those that were used last. Pickles without them; not shared by fork."""

    def __init__(self, open_file: Callable[[str], T], most: int = 8, close: Callable[[T], object] | None = None):
        self._open, self._most, self._close = open_file, most, close
        self._local = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_local"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _local=threading.local())

    def __getitem__(self, path: str) -> T:
        if getattr(self._local, "process", None) != os.getpid():  # a forked process shares its parent's positions
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


def by_file(indices: Indices, starts: Indices) -> list[tuple[int, Indices, Indices]]:
    """Groups row numbers by the file that they are in.

    Args:
      starts: the number of the first row of each file, and of all rows at the end: [files + 1].

    Returns:
      (file, which of `indices`, their numbers in the file), in the order of the files.
    """
    files = np.searchsorted(starts, indices, side="right") - 1
    order = np.argsort(files, kind="stable")
    bounds = np.flatnonzero(np.diff(files[order])) + 1
    return [(int(files[part[0]]), part, indices[part] - starts[files[part[0]]])
            for part in np.split(order, bounds) if len(part)]  # fmt: skip
