"""Items over the chunks of an episode, as requests: which slices of which chunks make each of them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np

from rlds_beam.encoding.wire import delimited, varint
from rlds_beam.reverb.protocol import inserts
from rlds_beam.reverb.protocol.inserts import Chunk, Keys, Request, Slices

Array = np.ndarray[Any, Any]

REQUEST_BYTES = 2 << 20
"""Chunks in a request, about: so many that the cost of a message does not matter."""


@dataclasses.dataclass(frozen=True)
class SlicedItems:
    """K items, in the order in which they are written to their tables.

    Attributes:
      starts: int64 [K], first frame of each; no start is before the one that precedes it.
      lengths: int64 [K], frames of each.
      priorities: float64 [K].
      keys: uint64 [tables, K].
    """

    starts: Array
    lengths: Array
    priorities: Array
    keys: Keys

    def __getitem__(self, which: slice | Array) -> SlicedItems:
        return SlicedItems(self.starts[which], self.lengths[which], self.priorities[which], self.keys[:, which])


@dataclasses.dataclass(frozen=True)
class Portion:
    """Items that go in one message, and all the chunks that they need.

    Attributes:
      chunks: in order.
      rows: the items, encoded.
      keys: uint64 [K], of the items.
      keep: the chunks that items to come need too, a key each.
    """

    chunks: Sequence[Chunk]
    rows: list[memoryview]
    keys: Keys
    keep: list[int]

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(chunk.size for chunk in self.chunks) + sum(map(len, self.rows))


def message(portions: Sequence[Portion], kept: Collection[int] = ()) -> Request:
    """One request of several portions in a row; a chunk that more of them need is in it once.

    Args:
      portions: in order.
      kept: the keys of the chunks that the request before it has the server hold.
    """
    chunks = {chunk.key: chunk.parts for portion in portions for chunk in portion.chunks}
    there = [part for key in chunks if key in kept for part in chunks[key]]
    new = [part for key in chunks if key not in kept for part in chunks[key]]
    rows = [row for portion in portions for row in portion.rows]
    keep = b"".join(map(varint, portions[-1].keep))
    keys = np.concatenate([portion.keys for portion in portions])
    return Request([*new, *rows], keys, delimited(3, keep) if keep else b"", there)


def portions(
    items: SlicedItems,
    chunks: Sequence[Chunk],
    tables: Sequence[str],
    columns: int,
    *,
    horizon: int | None = None,
    squeeze: bool = False,
) -> Iterator[Portion]:
    """The items, in portions of about REQUEST_BYTES of chunks.

    Args:
      items: all within `chunks`.
      chunks: a row of them without gaps.
      tables: every item goes into each of them.
      columns: how many columns a chunk has.
      horizon: the first frame that items of later calls may need: the server keeps what reaches over it. None:
        they need none.
      squeeze: items are single frames without a time axis.
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
        """The chunk that each of these frames is in."""
        return self._ends.searchsorted(frames, side="right")

    def slices(self, items: SlicedItems, first: Array, spread: int) -> Slices:
        """Where items lie that begin in chunks `first` and spread over `spread` of them each."""
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
    """The items in their order; those that spread over the same number of chunks are made together."""
    spread = last - first + 1
    if spread.min() == spread.max():  # which short episodes and whole ones are, and they are the ones that cost most
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
