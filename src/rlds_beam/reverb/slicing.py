"""Cuts items out of the chunks of an episode: the slices of chunks that make each item."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from rlds_beam.encoding.wire import encode_delimited, varint
from rlds_beam.reverb.protocol import inserts
from rlds_beam.reverb.protocol.inserts import Chunk, Keys, Request, Slices
from rlds_beam.typing import Array

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
