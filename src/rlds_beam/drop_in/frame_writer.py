"""Reverb's TrajectoryWriter over columns: it takes frames, and writes items that are slices of the latest ones.

The frames of a Reverb episode are cut into chunks as they come, and a chunk is sent once, however many requests
use it: each request names the chunks that later ones need too (`keep_chunk_keys`). It knows all the chunks that
its items need, so that it can be sent again after a lost connection.

A chunk is cut when it is full. While an item waits for it, it is cut after a few frames, or sooner if the server
has taken all that was sent before: so items are in their table at once where frames come as slowly as from an
environment, and chunks are no shorter than a few frames where they come as fast as from a file.
"""

from __future__ import annotations

import dataclasses
import math
import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlds_beam.drop_in.nests import Columns, FrameSpec
from rlds_beam.reverb.encoding import GOLDEN, chunk_length_of, digest, mixed
from rlds_beam.reverb.protocol import inserts
from rlds_beam.reverb.protocol.inserts import Chunk, Keys
from rlds_beam.reverb.slicing import REQUEST_BYTES, Portion, SlicedItems, message, portions
from rlds_beam.reverb.stream import InsertStream

Array = np.ndarray[Any, Any]

_MOST_WAITING = 8
"""Frames without a chunk while an item waits for one. A request costs as much as some ten frames."""

_SECONDS_APART = 1e-3
"""Between requests for the sake of a single item."""


class KeySequence:
    """The keys of the items of one writer after another, and the ids of their episodes.

    Args:
      seed: the keys follow from it, so that writing the same again changes nothing; None: at random.
      tables: each has keys of its own.
      kind: what else sets these items apart from others under the same seed.
    """

    def __init__(self, seed: int | str | None, tables: Sequence[str], kind: str):
        origin = secrets.token_hex(16) if seed is None else f"{type(seed).__name__} {seed}"
        self._tables = [digest(origin, kind, "items", str(i), table) for i, table in enumerate(tables)]
        self._episodes = digest(origin, kind, "episodes")
        # Always at random: a chunk of a second run may be cut elsewhere than that of the first.
        self._chunks = secrets.randbits(64)
        self._items_taken = 0

    def take(self, count: int) -> int:
        """The number of the next item; `count` of them are given away."""
        first, self._items_taken = self._items_taken, self._items_taken + count
        return first

    def items(self, first: int, count: int) -> Keys:
        """uint64 [tables, count]: the keys of the items from number `first` on."""
        keys = np.empty((len(self._tables), count), np.uint64)
        for row, seed in zip(keys, self._tables, strict=True):
            row[:] = mixed(seed, np.arange(first, first + count, dtype=np.uint64))
        return keys

    def episode(self) -> int:
        """The next episode's id."""
        self._episodes = (self._episodes + GOLDEN) % (1 << 64)
        return self._episodes

    def chunk(self) -> int:
        """The next chunk's key."""
        self._chunks = (self._chunks + GOLDEN) % (1 << 64)
        return self._chunks


@dataclasses.dataclass(slots=True)
class _Batch:
    """Items that wait: `count` of them, from item number `number` on, a stride apart."""

    number: int
    start: int
    count: int
    stride: int
    length: int
    priority: float

    def goes_on(self, start: int, stride: int, length: int, priority: float) -> bool:
        """Whether the next items are those."""
        next_start = self.start + self.count * self.stride
        return (next_start, self.stride, self.length, self.priority) == (start, stride, length, priority)

    def within(self, frames: int) -> int:
        """How many of the items end within the first `frames` frames of the episode."""
        return min(self.count, max(0, (frames - self.length - self.start) // self.stride + 1))

    def pop(self, count: int, keys: KeySequence) -> SlicedItems:
        """Takes the first `count` items."""
        starts = self.start + self.stride * np.arange(count, dtype=np.int64)
        items = SlicedItems(
            starts, np.full(count, self.length), np.full(count, self.priority), keys.items(self.number, count)
        )
        self.number, self.start, self.count = self.number + count, self.start + count * self.stride, self.count - count
        return items


class FrameWriter:
    """Writes items over frames of one episode after another; all of it to the same tables.

    Args:
      open_stream: makes the stream, when there is something to send.
      tables: every item goes into each of them.
      keys: where the keys come from.
      item_length: how many of the latest frames an item takes at most; None: any number.
      chunk_length: frames in a chunk, whatever waits for it. None: of frames that come one by one as many as
        Reverb's own writer may hold back (item_length + 1), or fewer (see above); of others as
        `chunk_length_of` says.

    Attributes:
      frames: of the present episode.
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
        self._spec: FrameSpec | None = None  # from the first frame on
        self._outgoing: deque[Portion] = deque()
        self._outgoing_bytes = 0
        self._kept: frozenset[int] = frozenset()  # the chunks that the last request has the server hold
        self._sent_at = -math.inf
        self._start_episode()

    def _start_episode(self) -> None:
        self._episode_id = self._keys.episode()
        self._loose = 0  # frames that are in no chunk yet: the first ones of the buffer
        self._chunks: list[Chunk] = []  # those that items may still need
        self._queue: deque[_Batch] = deque()
        self.frames = 0

    def append(self, frames: Columns) -> None:
        """Takes frames: one, which waits for others to be a chunk with; or a run, which does not.

        Raises:
          ValueError: they are not of the nest, the dtypes and the shapes of those before.
        """
        spec = FrameSpec.of(frames)
        if self._spec is None:
            self._prepare(spec)
        elif spec != self._spec:
            self._spec.check(spec)
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
        """Items of `length` frames each, the first from frame `start` on; `send` sends them.

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
        """Sends the items whose frames are all in chunks; makes a chunk for the others, if it is time to."""
        if self._wanted_chunk_length is None and self._queue and self._is_time():
            self._encode_all()
        else:
            self._encode()
        self._ship()

    def _is_time(self) -> bool:
        """Whether items that wait are to wait no longer: many of them, or any if the server has nothing to do."""
        if self._loose >= _MOST_WAITING:
            return True
        idle = self._stream is None or self._stream.idle
        return idle and time.monotonic() - self._sent_at >= _SECONDS_APART

    def flush(self) -> None:
        """Sends all items and waits until the server has them (NotVerifiedError: it has not in time)."""
        self._encode_all()
        self._ship()
        if self._stream is not None:
            self._stream.flush()

    def end_episode(self) -> None:
        """Forgets the frames; `send` or `flush` sends the items that still wait, with others perhaps."""
        self._encode_all()
        if self._outgoing_bytes > REQUEST_BYTES:
            self._ship()
        if self.frames:
            self._start_episode()

    def close(self) -> None:
        """Ends the stream; what is not flushed is lost."""
        if self._stream is not None:
            self._stream.close()

    def _encode_all(self) -> None:
        if self._queue and self._loose:
            self._cut()
        self._encode()

    def _encode(self) -> None:
        """Makes portions of the items whose frames are all in chunks."""
        ready, chunked = [], self.frames - self._loose
        while self._queue and (count := self._queue[0].within(chunked)):
            ready.append(self._queue[0].pop(count, self._keys))
            if not self._queue[0].count:
                self._queue.popleft()
        if not ready:
            return
        assert self._spec is not None
        horizon = self._horizon()
        for portion in portions(_joined(ready), self._chunks, self._tables, len(self._spec.paths), horizon=horizon):
            self._outgoing.append(portion)
            self._outgoing_bytes += portion.size
        self._chunks = [chunk for chunk in self._chunks if chunk.end > horizon]

    def _ship(self) -> None:
        """Sends what is encoded, in messages of about REQUEST_BYTES."""
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
        """Fixes the dtypes and shapes of all frames, and how many of them make a chunk."""
        spec.refuse_text()
        wanted = self._wanted_chunk_length
        self._spec = spec
        self._chunk_length = wanted or chunk_length_of(spec.frame_bytes, self._item_length)
        held_back = self._chunk_length if self._item_length is None else self._item_length + 1
        self._gathered = wanted or min(self._chunk_length, held_back)
        leaves = zip(spec.dtypes, spec.shapes, strict=True)
        self._buffer = [np.empty((self._gathered, *shape), dtype) for dtype, shape in leaves]

    def _cut(self, run: Columns | None = None) -> None:
        """Makes chunks of the loose frames and those of `run`."""
        values = [rows[: self._loose] for rows in self._buffer]
        if run is not None:
            values = [np.concatenate(v) for v in zip(values, run.values, strict=True)] if self._loose else run.values
        self._loose = 0
        count, length = len(values[0]), self._chunk_length
        start = self.frames - count
        keys = [self._keys.chunk() for _ in range(0, count, length)]
        chunks = inserts.chunks(np.array(keys, np.uint64), values, length, self._episode_id, start)
        self._chunks += (chunk.shifted(start) for chunk in chunks)

    def _horizon(self) -> int:
        """The first frame that an item not sent yet may take."""
        if self._item_length is None:
            return 0
        ahead = self.frames - self._item_length
        return min(ahead, self._queue[0].start) if self._queue else ahead


def _joined(parts: list[SlicedItems]) -> SlicedItems:
    if len(parts) == 1:
        return parts[0]
    return SlicedItems(
        np.concatenate([part.starts for part in parts]),
        np.concatenate([part.lengths for part in parts]),
        np.concatenate([part.priorities for part in parts]),
        np.concatenate([part.keys for part in parts], axis=1),
    )
