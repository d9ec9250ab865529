"""Lists of shards and ranges as columns of numbers, for there may be a million: they take 100 bytes a shard in memory.

In a pickle they take none: `spill_lists` names a directory that the processes share, and a list is a file there, which
a process reads if it uses it.
"""

from __future__ import annotations

import array
import bisect
import contextlib
import contextvars
import functools
import io
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, overload

import numpy as np
import xxhash

from rlds_beam import storage
from rlds_beam.reading.base import Segment, Shard, WorkRange
from rlds_beam.typing import Array

Item = TypeVar("Item")

_SHARED: contextvars.ContextVar[str | None] = contextvars.ContextVar("shared", default=None)
_AT_ONCE = 4096
"""Shards whose numbers are taken out of arrays together."""
_MAX_INLINE_BYTES = 64 << 10
"""The most bytes of columns that are pickled as they are, if there is a directory."""


@contextlib.contextmanager
def spill_lists(directory: str) -> Iterator[None]:
    """While the block pickles lists, those that are long become files in this directory."""
    token = _SHARED.set(directory)
    try:
        yield
    finally:
        _SHARED.reset(token)


class Columns:
    """Arrays of equal length by name; `spill_lists` says how they are pickled.

    Args:
      arrays: the arrays.
      path: the file that holds them, if `arrays` is None; it is read when one of them is used.
    """

    def __init__(self, arrays: Mapping[str, Array] | None, path: str | None = None):
        self._path = path
        if arrays is not None:
            self.arrays = dict(arrays)

    @functools.cached_property
    def arrays(self) -> dict[str, Array]:
        assert self._path is not None
        with storage.open_read(self._path) as file, np.load(io.BytesIO(file.read()), allow_pickle=False) as found:
            return {name: found[name] for name in found.files}

    def __getitem__(self, name: str) -> Array:
        return self.arrays[name]

    def __reduce__(self) -> tuple[Callable[..., Columns], tuple[Any, ...]]:
        if self._path is not None:
            return _load, (self._path,)
        directory = _SHARED.get()
        if directory is None or sum(array.nbytes for array in self.arrays.values()) <= _MAX_INLINE_BYTES:
            return Columns, (self.arrays,)
        content = io.BytesIO()
        np.savez(content, **self.arrays)
        data = content.getvalue()
        path = storage.join(directory, f"columns-{xxhash.xxh3_128_hexdigest(data)}.npz")
        if not storage.exists(path):
            storage.write_bytes(path, data)
        return _load, (path,)


@functools.lru_cache(maxsize=16)
def _load(path: str) -> Columns:
    """The same columns for all lists of a process that use them."""
    return Columns(None, path)


class CompactList(Sequence[Item]):
    """A list that makes its items when they are used; equal to any other list of equal items."""

    def _make(self, index: int) -> Item:
        raise NotImplementedError

    def _make_all(self, indices: range) -> Iterator[Item]:
        return map(self._make, indices)

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Item, ...]: ...
    def __getitem__(self, index: int | slice) -> Item | tuple[Item, ...]:
        if isinstance(index, slice):
            return tuple(self._make_all(range(*index.indices(len(self)))))
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return self._make(index % len(self))

    def __iter__(self) -> Iterator[Item]:
        return self._make_all(range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(map(lambda one, two: one == two, self, other))


class ShardList(CompactList[Shard]):
    """The shards of a split in one directory.

    Args:
      directory: the directory.
      shards: the position, file name, size, and number of records of each.
    """

    def __init__(self, directory: str, shards: Iterable[tuple[int, str, int, int | None]]):
        self._directory = directory
        numbers, names = array.array("q"), bytearray()
        for index, name, size, records in shards:
            names += name.encode(errors="surrogatepass") + b"\0"
            numbers.extend((index, size, -1 if records is None else records, len(names)))
        table = np.frombuffer(numbers, np.int64).reshape(-1, 4)
        columns = {name: table[:, i].copy() for i, name in enumerate(("index", "size", "records", "end"))}
        self._columns = Columns({**columns, "names": np.frombuffer(bytes(names), np.uint8)})
        self._length = len(table)

    @property
    def indices(self) -> Array:
        """`Shard.index` of each, int64."""
        return self._columns["index"]

    @property
    def sizes(self) -> Array:
        """The size of each shard in bytes, int64."""
        return self._columns["size"]

    def join_names(self) -> memoryview:
        """The file names, separated by NUL, in UTF-8 with surrogates."""
        names: memoryview = self._columns["names"][:-1].data
        return names

    def __len__(self) -> int:
        return self._length

    def take(self, rows: Array) -> Iterator[Shard]:
        """The shards at these positions, int64 (N,): five times as fast as one by one."""
        columns, prefix = self._columns, storage.join(self._directory, "x")[:-1]
        end, names = columns["end"], columns["names"].data
        for some in np.split(rows, range(_AT_ONCE, len(rows), _AT_ONCE)):
            starts = np.where(some > 0, end[some - 1], 0)
            numbers = (columns["index"][some], columns["size"][some], columns["records"][some], starts, end[some])
            for index, size, records, low, high in zip(*(column.tolist() for column in numbers), strict=True):
                path = prefix + str(names[low : high - 1], "utf-8", "surrogatepass")
                yield Shard(index, path, size, None if records < 0 else records)

    def _make_all(self, indices: range) -> Iterator[Shard]:
        return self.take(np.arange(indices.start, indices.stop, indices.step))

    def _make(self, index: int) -> Shard:
        return next(self.take(np.array([index])))


def shard_indices(shards: Sequence[Shard]) -> Array:
    """`Shard.index` of each, int64."""
    return shards.indices if isinstance(shards, ShardList) else np.array([s.index for s in shards], np.int64)


class SplitRanges(CompactList[WorkRange]):
    """The ranges of a split.

    Args:
      split: the split.
      shards: its shards.
      first: for each range, its first segment, int64; the last entry is the number of segments.
      shard, start, stop: the segments: the position in `shards`, and the bytes; a `stop` of -1 is the shard's end.
    """

    def __init__(self, split: str, shards: Sequence[Shard], first: Array, shard: Array, start: Array, stop: Array):
        self.split, self.shards, self._length = split, shards, len(first) - 1
        self.columns = Columns({"first": first, "shard": shard, "start": start, "stop": stop})

    def __len__(self) -> int:
        return self._length

    def _make(self, index: int) -> WorkRange:
        columns, shards = self.columns, self.shards
        rows = slice(int(columns["first"][index]), int(columns["first"][index + 1]))
        chosen = columns["shard"][rows]
        found = shards.take(chosen) if isinstance(shards, ShardList) else (shards[i] for i in chosen.tolist())
        places = zip(found, columns["start"][rows].tolist(), columns["stop"][rows].tolist(), strict=True)
        segments = (Segment(shard, start, None if stop < 0 else stop) for shard, start, stop in places)
        return WorkRange(self.split, index, self._length, tuple(segments))

    def list_segments(self) -> Array:
        """See `list_segments`."""
        columns, ranges = self.columns, np.repeat(np.arange(self._length), np.diff(self.columns["first"]))
        indices = shard_indices(self.shards)[columns["shard"]]
        return np.stack([ranges, indices, columns["start"], columns["stop"]], axis=1)


def list_segments(ranges: Iterable[WorkRange], split: str) -> Array:
    """The segments of the ranges of a split, int64 (N, 4): the range, the shard's index, start, and stop or -1."""
    if isinstance(ranges, RangeList) and ranges.is_whole and split in ranges.splits:
        return ranges.splits[split].list_segments()  # there may be a million
    rows = [
        (work.index, segment.shard.index, segment.start, -1 if segment.stop is None else segment.stop)
        for work in ranges
        if work.split == split
        for segment in work.segments
    ]
    return np.array(rows, np.int64).reshape(-1, 4)


class RangeList(CompactList[WorkRange]):
    """The ranges of several splits, or some of them in another order.

    Args:
      splits: the ranges of each split.
      chosen: the numbers of the chosen ranges, int64; None: all of them.
    """

    def __init__(self, splits: Mapping[str, SplitRanges], chosen: Array | None = None):
        self.splits = dict(splits)
        self._ends = list(itertools.accumulate(map(len, splits.values())))
        self._chosen = None if chosen is None else Columns({"number": chosen})
        self._length = (self._ends[-1] if self._ends else 0) if chosen is None else len(chosen)

    def __len__(self) -> int:
        return self._length

    def _make(self, index: int) -> WorkRange:
        number = index if self._chosen is None else int(self._chosen["number"][index])
        split = bisect.bisect_right(self._ends, number)
        ranges = [*self.splits.values()][split]
        return ranges[number - (self._ends[split - 1] if split else 0)]

    @property
    def is_whole(self) -> bool:
        """Whether it has all ranges of its splits, in order."""
        return self._chosen is None

    def bare(self) -> list[WorkRange]:
        """The ranges without what they read: enough for the names of their files."""
        every = [
            WorkRange(split, i, len(ranges), ()) for split, ranges in self.splits.items() for i in range(len(ranges))
        ]
        return every if self._chosen is None else [every[i] for i in self._chosen["number"].tolist()]

    def choose(self, numbers: Sequence[int]) -> RangeList:
        """These ranges, in this order."""
        chosen = np.asarray(numbers, np.int64)
        return RangeList(self.splits, chosen if self._chosen is None else self._chosen["number"][chosen])
