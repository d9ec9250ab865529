"""A columnar TrajectoryWriter for Reverb: it takes frames and writes items that are slices of the latest ones.

The frames of a Reverb episode are cut into chunks as they arrive. A chunk is sent once, even if several requests use
it: each request lists the chunks that later ones also need (`keep_chunk_keys`). A request knows all chunks of its
items, so it can be sent again after a lost connection.

A chunk is cut when it is full. While an item waits for it, it is cut after a few frames, or sooner if the server is
idle. So items arrive at once if frames come slowly, as from an environment, and chunks have at least a few frames if
frames come fast, as from a file.
"""

from __future__ import annotations

import dataclasses
import math
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rlds_beam.encoding.wire import DATA_TYPES
from rlds_beam.reverb import inserts
from rlds_beam.reverb.encoding import (
    GOLDEN,
    REQUEST_BYTES,
    Portion,
    SlicedItems,
    default_chunk_length,
    digest,
    message,
    mix_keys,
    portions,
)
from rlds_beam.reverb.inserts import Chunk, Keys
from rlds_beam.reverb.stream import InsertStream
from rlds_beam.typing import Array

_MAX_WAITING = 8
"""The most frames without a chunk while an item waits for one. A request costs as much as about ten frames."""

_SECONDS_APART = 1e-3
"""The least time between requests for a single item."""


Path = tuple["str | int", ...]
FrameSpec = tuple[tuple[Path, ...], list[tuple[np.dtype[Any], tuple[int, ...]]]]
"""The paths of a frame's leaves, and the dtype and shape of each."""


@dataclasses.dataclass(frozen=True)
class NestedFrames:
    """Consecutive frames.

    Attributes:
      paths: the paths of the leaves in the original nest.
      values: the leaves, [n, ...] each. They are not copies; copy them to keep them.
    """

    paths: tuple[Path, ...]
    values: list[Array]

    def __len__(self) -> int:
        return len(self.values[0]) if self.values else 0

    @property
    def spec(self) -> FrameSpec:
        return self.paths, [(value.dtype, value.shape[1:]) for value in self.values]

    def __getitem__(self, which: slice) -> NestedFrames:
        return NestedFrames(self.paths, [value[which] for value in self.values])

    @classmethod
    def of_frame(cls, nest: Any) -> NestedFrames:
        """Returns one frame with leaves [...]."""
        paths, leaves = _flatten_nest(nest)
        return cls(paths, [np.asarray(leaf)[None] for leaf in leaves])

    @classmethod
    def of_run(cls, nest: Any) -> NestedFrames:
        """Returns frames whose leaves have a leading time axis, [n, ...].

        Raises:
          ValueError: a leaf has no time axis, or its length differs.
        """
        paths, leaves = _flatten_nest(nest)
        values = [np.asarray(leaf) for leaf in leaves]
        for path, value in zip(paths, values, strict=True):
            if not value.ndim or len(value) != len(values[0]):
                raise ValueError(
                    f"Every leaf of a run of frames must have a leading time axis of the same length: {path} has shape "
                    f"{list(value.shape)}, {paths[0]} has shape {list(values[0].shape)}"
                )
        return cls(paths, values)


def _check_spec(found: FrameSpec, known: FrameSpec) -> None:
    """Raises ValueError if frames have other leaves than earlier ones."""
    if found[0] != known[0]:
        raise ValueError(f"A frame has the columns {found[0]}, but earlier frames have {known[0]}.")
    for path, got, had in zip(*found, known[1], strict=True):
        if got != had:
            texts = [f"{dtype.name}{list(shape)}" for dtype, shape in (got, had)]
            raise ValueError(f"Column {path} is {texts[0]}, but earlier frames have {texts[1]}.")


def _flatten_nest(nest: Any) -> tuple[tuple[Path, ...], list[Any]]:
    """The paths and leaves of a nest, in the order of `tf.nest`.

    Mappings (by sorted key), namedtuples, tuples, and lists are nests; everything else is a leaf. Empty nests have no
    leaves.
    """
    paths: list[Path] = []
    leaves: list[Any] = []
    _walk(nest, (), paths, leaves)
    return tuple(paths), leaves


def _walk(nest: Any, path: Path, paths: list[Path], leaves: list[Any]) -> None:
    if isinstance(nest, np.ndarray):  # the most common case
        paths.append(path)
        leaves.append(nest)
    elif isinstance(nest, tuple | list):
        for name, part in zip(getattr(nest, "_fields", range(len(nest))), nest, strict=True):
            _walk(part, (*path, name), paths, leaves)
    elif isinstance(nest, Mapping):
        for key in sorted(nest):
            _walk(nest[key], (*path, key), paths, leaves)
    else:
        paths.append(path)
        leaves.append(nest)


class KeySequence:
    """The keys of the items of successive writers, and the ids of their episodes.

    Args:
      seed: the seed of the keys, so that writing the same items again changes nothing; None for random keys.
      tables: the tables; each has its own keys.
      kind: what distinguishes these items from others with the same seed.
    """

    def __init__(self, seed: int | str | None, tables: Sequence[str], kind: str):
        origin = secrets.token_hex(16) if seed is None else f"{type(seed).__name__} {seed}"
        self._tables = [digest(origin, kind, "items", str(i), table) for i, table in enumerate(tables)]
        self._episodes = digest(origin, kind, "episodes")
        # Always random, because a second run may cut its chunks elsewhere.
        self._chunks = secrets.randbits(64)
        self._items_taken = 0

    def take(self, count: int) -> int:
        """Reserves `count` item numbers and returns the first."""
        first, self._items_taken = self._items_taken, self._items_taken + count
        return first

    def items(self, first: int, count: int) -> Keys:
        """The keys of `count` items from number `first`, uint64 [tables, count]."""
        keys = np.empty((len(self._tables), count), np.uint64)
        for row, seed in zip(keys, self._tables, strict=True):
            row[:] = mix_keys(seed, np.arange(first, first + count, dtype=np.uint64))
        return keys

    def episode(self) -> int:
        """Returns the next episode's id."""
        self._episodes = (self._episodes + GOLDEN) % (1 << 64)
        return self._episodes

    def chunk(self) -> int:
        """Returns the next chunk's key."""
        self._chunks = (self._chunks + GOLDEN) % (1 << 64)
        return self._chunks


@dataclasses.dataclass(slots=True)
class _Batch:
    """Waiting items: `count` of them from item number `number`, a stride apart."""

    number: int
    start: int
    count: int
    stride: int
    length: int
    priority: float

    def goes_on(self, start: int, stride: int, length: int, priority: float) -> bool:
        """Whether items with these values continue the batch."""
        next_start = self.start + self.count * self.stride
        return (next_start, self.stride, self.length, self.priority) == (start, stride, length, priority)

    def within(self, frames: int) -> int:
        """The number of items that end within the first `frames` frames of the episode."""
        return min(self.count, max(0, (frames - self.length - self.start) // self.stride + 1))

    def pop(self, count: int, keys: KeySequence) -> SlicedItems:
        """Removes and returns the first `count` items."""
        starts = self.start + self.stride * np.arange(count, dtype=np.int64)
        items = SlicedItems(
            starts, np.full(count, self.length), np.full(count, self.priority), keys.items(self.number, count)
        )
        self.number, self.start, self.count = self.number + count, self.start + count * self.stride, self.count - count
        return items


class FrameWriter:
    """Writes items of successive episodes to the same tables.

    Args:
      open_stream: opens the stream when there is something to send.
      tables: the tables; every item goes to each of them.
      keys: the source of keys.
      item_length: the most frames of an item; None for any number.
      chunk_length: the number of frames per chunk. None: single frames are held back as in Reverb's writer
        (item_length + 1), or for less (see above); for runs, `default_chunk_length` decides.

    Attributes:
      frames: the number of frames of the current episode.
    """

    def __init__(
        self,
        open_stream: Callable[[], InsertStream],
        tables: Sequence[str],
        keys: KeySequence,
        *,
        item_length: int | None,
        chunk_length: int | None,
    ):
        self._open_stream = open_stream
        self._stream: InsertStream | None = None
        self._tables, self._keys = tuple(tables), keys
        self._item_length, self._wanted_chunk_length = item_length, chunk_length
        self._spec: FrameSpec | None = None  # set by the first frame
        self._outgoing: deque[Portion] = deque()
        self._outgoing_bytes = 0
        self._kept: frozenset[int] = frozenset()  # the chunks that the server keeps after the last request
        self._sent_at = -math.inf
        self._start_episode()

    def _start_episode(self) -> None:
        self._episode_id = self._keys.episode()
        self._loose = 0  # the frames in no chunk yet, at the start of the buffer
        self._chunks: list[Chunk] = []  # the chunks that items may still need
        self._queue: deque[_Batch] = deque()
        self.frames = 0

    def append(self, frames: NestedFrames) -> None:
        """Adds frames: a single one, which waits to share a chunk; or a run, which does not wait.

        Raises:
          ValueError: their nest, dtypes, or shapes differ from those before.
        """
        if self._spec is None:
            self._prepare(frames.spec)
        elif (spec := frames.spec) != self._spec:
            _check_spec(spec, self._spec)
        self.frames += len(frames)
        if len(frames) > 1:
            self._cut(frames)
            return
        for rows, value in zip(self._buffer, frames.values, strict=True):
            rows[self._loose] = value[0]
        self._loose += 1
        if self._loose == self._gathered:
            self._cut()

    def create_items(self, start: int, count: int, stride: int, length: int, priority: float) -> None:
        """Creates items of `length` frames each, the first from frame `start`; `send` sends them.

        Raises:
          ValueError: the priority is NaN.
        """
        priority = float(priority)
        if math.isnan(priority):
            raise ValueError("`priority` must not be nan.")
        if not self._tables:
            return
        number = self._keys.take(count)
        if self._queue and self._queue[-1].goes_on(start, stride, length, priority):
            self._queue[-1].count += count
        else:
            self._queue.append(_Batch(number, start, count, stride, length, priority))

    def send(self) -> None:
        """Sends the items whose frames are all in chunks; cuts a chunk for the others if it is time."""
        if self._wanted_chunk_length is None and self._queue and self._is_time():
            self._encode_all()
        else:
            self._encode()
        self._ship()

    def _is_time(self) -> bool:
        """Whether waiting items should be sent: there are many frames, or the server is idle."""
        if self._loose >= _MAX_WAITING:
            return True
        idle = self._stream is None or self._stream.idle
        return idle and time.monotonic() - self._sent_at >= _SECONDS_APART

    def flush(self) -> None:
        """Sends all items and waits until the server has them; raises NotVerifiedError on timeout."""
        self._encode_all()
        self._ship()
        if self._stream is not None:
            self._stream.flush()

    def end_episode(self) -> None:
        """Forgets the frames; `send` or `flush` sends the items that still wait."""
        self._encode_all()
        if self._outgoing_bytes > REQUEST_BYTES:
            self._ship()
        if self.frames:
            self._start_episode()

    def close(self) -> None:
        """Closes the stream; items that are not flushed are lost."""
        if self._stream is not None:
            self._stream.close()

    def _encode_all(self) -> None:
        if self._queue and self._loose:
            self._cut()
        self._encode()

    def _encode(self) -> None:
        """Encodes the items whose frames are all in chunks as portions."""
        ready, chunked = [], self.frames - self._loose
        while self._queue and (count := self._queue[0].within(chunked)):
            ready.append(self._queue[0].pop(count, self._keys))
            if not self._queue[0].count:
                self._queue.popleft()
        if not ready:
            return
        assert self._spec is not None
        horizon = self._horizon()
        for portion in portions(_join(ready), self._chunks, self._tables, len(self._spec[0]), horizon=horizon):
            self._outgoing.append(portion)
            self._outgoing_bytes += portion.size
        self._chunks = [chunk for chunk in self._chunks if chunk.end > horizon]

    def _ship(self) -> None:
        """Sends the encoded portions in messages of about REQUEST_BYTES."""
        if self._outgoing and self._stream is None:
            self._stream = self._open_stream()
        while self._outgoing and self._stream is not None:
            together, size = [], 0
            while self._outgoing and size < REQUEST_BYTES:
                together.append(self._outgoing.popleft())
                size += together[-1].size
            self._outgoing_bytes -= size
            request = message(together, self._kept)
            self._kept = frozenset(together[-1].keep)
            self._sent_at = time.monotonic()
            self._stream.send(request)

    def _prepare(self, spec: FrameSpec) -> None:
        """Sets the dtypes and shapes of all frames, and the chunk length."""
        frame_bytes, wanted = 0, self._wanted_chunk_length
        for path, (dtype, shape) in zip(*spec, strict=True):
            if dtype.name not in DATA_TYPES:
                raise ValueError(f"Column {path} has dtype {dtype}, but only numbers and flags can be written.")
            frame_bytes += dtype.itemsize * math.prod(shape)
        self._spec = spec
        self._chunk_length = wanted or default_chunk_length(frame_bytes, self._item_length)
        held_back = self._chunk_length if self._item_length is None else self._item_length + 1
        self._gathered = wanted or min(self._chunk_length, held_back)
        self._buffer = [np.empty((self._gathered, *shape), dtype) for dtype, shape in spec[1]]

    def _cut(self, run: NestedFrames | None = None) -> None:
        """Cuts the loose frames and those of `run` into chunks."""
        values = [rows[: self._loose] for rows in self._buffer]
        if run is not None:
            values = [np.concatenate(v) for v in zip(values, run.values, strict=True)] if self._loose else run.values
        self._loose = 0
        count, length = len(values[0]), self._chunk_length
        start = self.frames - count
        keys = [self._keys.chunk() for _ in range(0, count, length)]
        chunks = inserts.chunks(np.array(keys, np.uint64), values, length, self._episode_id, start)
        self._chunks += (chunk.shift(start) for chunk in chunks)

    def _horizon(self) -> int:
        """The first frame that an unsent item may use."""
        if self._item_length is None:
            return 0
        ahead = self.frames - self._item_length
        return min(ahead, self._queue[0].start) if self._queue else ahead


def _join(parts: list[SlicedItems]) -> SlicedItems:
    if len(parts) == 1:
        return parts[0]
    return SlicedItems(
        np.concatenate([part.starts for part in parts]),
        np.concatenate([part.lengths for part in parts]),
        np.concatenate([part.priorities for part in parts]),
        np.concatenate([part.keys for part in parts], axis=1),
    )
