"""Encodes frames and windows over them as requests to a Reverb server: chunks, and items as slices of chunks."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlds_beam.encoding.wire import encode_delimited, varint
from rlds_beam.reverb import inserts
from rlds_beam.reverb.inserts import Chunk, Keys, Request, Slices
from rlds_beam.trajectories.items import Windows
from rlds_beam.typing import Array

GOLDEN = 0x9E3779B97F4A7C15  # SplitMix64's step; odd, so that its multiples do not repeat
_ITEM_BYTES = 256  # typical size of an item
_CHUNK_FRAMES, _CHUNK_BYTES, _LONG_CHUNK_BYTES, _EPISODE_CHUNK_BYTES = 64, 64 << 10, 1 << 20, 16 << 20


def default_chunk_length(frame_bytes: int, item_length: int | None) -> int:
    """The default number of frames per chunk.

    A client that samples an item receives whole chunks, so chunks are short: 64 frames or 64 KB, or a quarter of a long
    item. (Chunks of 1,000 frames are pushed no faster than chunks of 64, and pairs are sampled from them at a third to
    two thirds of the rate.) A whole episode is one chunk up to 16 MB, because it is always sampled as a whole.

    Args:
      frame_bytes: the bytes of all columns of one frame.
      item_length: the frames in an item; None for whole episodes.
    """
    frame_bytes = max(1, frame_bytes)
    if item_length is None:
        return max(1, _EPISODE_CHUNK_BYTES // frame_bytes)
    return max(
        1, min(_CHUNK_FRAMES, _CHUNK_BYTES // frame_bytes), min(item_length // 4, _LONG_CHUNK_BYTES // frame_bytes)
    )


def digest(*parts: str) -> int:
    """A uint64 hash of texts."""
    text = "\0".join(parts).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def mix_keys(seed: int | Keys, numbers: Array) -> Keys:
    """Keys derived from a seed (or n seeds) and numbers, uint64 [n]; different numbers give different keys.

    Uses the finalizer of SplitMix64 (Steele, Lea, and Flood 2014), which is a bijection.
    """
    z = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(GOLDEN) + np.asarray(seed, np.uint64)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Keys = z ^ (z >> np.uint64(31))
    return mixed


class Cut(NamedTuple):
    """Items over one run of encoded frames.

    Attributes:
      chunks: the chunks of the run.
      windows: the K windows, one per item.
      priorities: the priorities, float64 [K].
      seeds: the seeds of the items' keys, uint64, one per table.
    """

    chunks: list[Chunk]
    windows: Windows
    priorities: Array
    seeds: Sequence[int]

    @property
    def size(self) -> int:
        """The approximate encoded size in bytes."""
        return sum(chunk.size for chunk in self.chunks) + _ITEM_BYTES * self.windows.count * len(self.seeds)


class ItemEncoder:
    """Encodes items of one signature.

    Args:
      leaves: the dtype and shape of one frame of each column, in the order of the tables' signature.
      tables: the tables; every item goes into each.
      chunk_length: the frames per chunk.
      squeeze: whether items are single frames without a time axis.
    """

    def __init__(
        self,
        leaves: Sequence[tuple[np.dtype[Any], tuple[int, ...]]],
        tables: Sequence[str],
        chunk_length: int,
        squeeze: bool = False,
    ):
        self._leaves, self._tables = tuple(leaves), tuple(tables)
        self._chunk_length, self._squeeze = chunk_length, squeeze

    def cut(
        self,
        columns: Sequence[Array],
        windows: Windows,
        *,
        priorities: Array,
        seeds: Sequence[int],
        chunk_seed: int,
        episode_id: int,
    ) -> Cut:
        """Cuts items out of consecutive frames; pass the result to `encode`.

        Args:
          columns: the columns, [n, ...] each; n covers all windows (padding frames are part of the columns).
          windows: the K windows.
          priorities: the priorities, float64 [K].
          seeds: the seeds of the items' keys, uint64, one per table.
          chunk_seed: the seed of the chunks' keys, uint64; other frames need another seed.
          episode_id: the ID of the episode, uint64, for Reverb's count of episodes.

        Raises:
          ValueError: the columns have wrong dtypes or shapes, or are too short for the windows. The server would accept
            them, but they would break its clients.
        """
        if not windows.count:
            return Cut([], windows, priorities, seeds)
        self._check_columns(columns, windows)
        length, count = self._align(windows), len(columns[0])
        skipped = windows.start // length * length  # frames before the first window
        begins = range(skipped, count, length)
        keys = np.uint64(chunk_seed) + np.arange(len(begins), dtype=np.uint64) * np.uint64(GOLDEN)
        used = [column[skipped:] for column in columns] if skipped else columns
        chunks = inserts.chunks(keys, used, length, episode_id, skipped)
        return Cut([chunk.shift(skipped) for chunk in chunks], windows, priorities, seeds)

    def encode(self, cuts: Sequence[Cut]) -> list[Request]:
        """Encodes all cuts as if their runs were concatenated: a few large requests cost less than many small ones."""
        cuts = [cut for cut in cuts if cut.windows.count]
        if not cuts:
            return []
        counts = np.array([cut.windows.count for cut in cuts])
        bases = np.cumsum([0, *(cut.chunks[-1].end for cut in cuts[:-1])]).tolist()
        chunks = [chunk.shift(base) for base, cut in zip(bases, cuts, strict=True) for chunk in cut.chunks]
        numbers = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)

        def of_each(values: Iterable[int], dtype: Any = np.int64) -> Array:
            return np.repeat(np.fromiter(values, dtype, len(cuts)), counts)

        first = of_each(base + cut.windows.start for base, cut in zip(bases, cuts, strict=True))
        items = SlicedItems(
            starts=first + of_each(cut.windows.stride for cut in cuts) * numbers,
            lengths=of_each(cut.windows.length for cut in cuts),
            priorities=np.concatenate([cut.priorities for cut in cuts]),
            keys=np.stack(
                [mix_keys(of_each((c.seeds[i] for c in cuts), np.uint64), numbers) for i in range(len(self._tables))]
            ),
        )
        contents = portions(items, chunks, self._tables, len(self._leaves), squeeze=self._squeeze)
        return [message([portion]) for portion in contents]

    def _check_columns(self, columns: Sequence[Array], windows: Windows) -> None:
        needed = windows.start + (windows.count - 1) * windows.stride + windows.length
        for i, (column, (dtype, shape)) in enumerate(zip(columns, self._leaves, strict=True)):
            if column.dtype != dtype or column.shape[1:] != shape or len(column) < needed:
                raise ValueError(
                    f"column {i} is {column.dtype}{list(column.shape)}; the items need {dtype}{[needed, *shape]}"
                )

    def _align(self, windows: Windows) -> int:
        """The chunk length; if windows do not overlap, rounded so that chunks end with a window."""
        length = self._chunk_length
        if windows.count > 1 and windows.stride >= windows.length and not windows.start:
            return max(1, length // windows.stride) * windows.stride
        return length


REQUEST_BYTES = 2 << 20
"""Target size of a request's chunks, at which the cost of a message does not matter."""


@dataclasses.dataclass(frozen=True)
class SlicedItems:
    """K items in the order in which they are written.

    Attributes:
      starts: the first frame of each item, int64 [K], ascending.
      lengths: the frames of each item, int64 [K].
      priorities: the priorities, float64 [K].
      keys: the keys, uint64 [tables, K].
    """

    starts: Array
    lengths: Array
    priorities: Array
    keys: Keys

    def __getitem__(self, which: slice | Array) -> SlicedItems:
        return SlicedItems(self.starts[which], self.lengths[which], self.priorities[which], self.keys[:, which])


@dataclasses.dataclass(frozen=True)
class Portion:
    """Items for one message, and all chunks that they need.

    Attributes:
      chunks: the chunks, in order.
      rows: the encoded items.
      keys: the items' keys, uint64 [K].
      keep: the keys of the chunks that later items also need.
    """

    chunks: Sequence[Chunk]
    rows: list[memoryview]
    keys: Keys
    keep: list[int]

    @property
    def size(self) -> int:
        """The size in bytes."""
        return sum(chunk.size for chunk in self.chunks) + sum(map(len, self.rows))


def message(portions: Sequence[Portion], kept: Collection[int] = ()) -> Request:
    """Joins consecutive portions into one request, with shared chunks only once.

    Args:
      portions: the portions, in order.
      kept: the keys of the chunks that the previous request asked the server to keep.
    """
    chunks = {chunk.key: chunk.parts for portion in portions for chunk in portion.chunks}
    there = [part for key in chunks if key in kept for part in chunks[key]]
    new = [part for key in chunks if key not in kept for part in chunks[key]]
    rows = [row for portion in portions for row in portion.rows]
    keep = b"".join(map(varint, portions[-1].keep))
    keys = np.concatenate([portion.keys for portion in portions])
    return Request([*new, *rows], keys, encode_delimited(3, keep) if keep else b"", there)


def portions(
    items: SlicedItems,
    chunks: Sequence[Chunk],
    tables: Sequence[str],
    columns: int,
    *,
    horizon: int | None = None,
    squeeze: bool = False,
) -> Iterator[Portion]:
    """Splits items into portions with about REQUEST_BYTES of chunks.

    Args:
      items: the items, all within `chunks`.
      chunks: consecutive chunks without gaps.
      tables: the tables; every item goes into each.
      columns: the number of columns of a chunk.
      horizon: the first frame that items of later calls may need, so that the server keeps chunks reaching past it;
        None if they need none.
      squeeze: whether items are single frames without a time axis.
    """
    places = _ChunkTable(chunks)
    first, last = places.index(items.starts), places.index(items.starts + items.lengths - 1)
    sizes = np.cumsum([0, *(chunk.size for chunk in chunks)])
    begin, count = 0, len(first)
    while begin < count:
        limit = sizes[first[begin]] + REQUEST_BYTES
        stop = max(begin + 1, int(sizes[last + 1].searchsorted(limit, side="right")))
        used = chunks[first[begin] : last[stop - 1] + 1]
        needed_from = items.starts[stop] if stop < count else horizon
        keep = [] if needed_from is None else [chunk.key for chunk in used if chunk.end > needed_from]
        which = slice(begin, stop)
        rows = list(_items(items[which], places, first[which], last[which], tables, columns, squeeze))
        yield Portion(used, rows, items.keys[:, which].ravel(), keep)
        begin = stop


class _ChunkTable:
    """The chunks as arrays."""

    def __init__(self, chunks: Sequence[Chunk]):
        self._begins = np.array([chunk.begin for chunk in chunks])
        self._ends = np.array([chunk.end for chunk in chunks])
        self._keys = np.array([chunk.key for chunk in chunks], np.uint64)

    def index(self, frames: Array) -> Array:
        """The index of the chunk of each frame."""
        return self._ends.searchsorted(frames, side="right")

    def slices(self, items: SlicedItems, first: Array, spread: int) -> Slices:
        """The slices of items that start in chunks `first` and span `spread` chunks each."""
        which = first[:, None] + np.arange(spread)
        begins = self._begins[which]
        offsets = np.maximum(items.starts[:, None] - begins, 0)
        stops = np.minimum((items.starts + items.lengths)[:, None], self._ends[which])
        return Slices(self._keys[which], offsets, stops - begins - offsets)


def _items(
    items: SlicedItems,
    chunks: _ChunkTable,
    first: Array,
    last: Array,
    tables: Sequence[str],
    columns: int,
    squeeze: bool,
) -> Iterator[memoryview]:
    """Encodes the items in order; items that span the same number of chunks are encoded together."""
    spread = last - first + 1
    if spread.min() == spread.max():  # the most common and expensive case: short or whole episodes
        own = chunks.slices(items, first, int(spread[0]))
        for table, keys in zip(tables, items.keys, strict=True):
            rows = inserts.items(table, keys, items.priorities, own, columns, squeeze=squeeze)
            yield rows.reshape(-1).data
        return
    groups = [(np.flatnonzero(spread == m), m) for m in sorted(set(spread.tolist()))]
    slices = [chunks.slices(items[group], first[group], m) for group, m in groups]
    bounds = (0, *(np.flatnonzero(spread[1:] != spread[:-1]) + 1).tolist(), len(spread))
    for table, keys in zip(tables, items.keys, strict=True):
        by_spread = {}
        for (group, m), own in zip(groups, slices, strict=True):
            rows = inserts.items(table, keys[group], items.priorities[group], own, columns, squeeze=squeeze)
            by_spread[m] = (rows.reshape(-1).data, rows.shape[1])
        for low, high in itertools.pairwise(bounds):
            content, width = by_spread[int(spread[low])]
            yield content[: (high - low) * width]
            by_spread[int(spread[low])] = (content[(high - low) * width :], width)
