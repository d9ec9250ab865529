"""Cuts a dataset into work ranges, the same on every run."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np

from rlds_beam import storage
from rlds_beam.encoding.base import RecordFormat, has_offsets
from rlds_beam.errors import UsageError
from rlds_beam.reading.base import Segment, Shard, Source, Split
from rlds_beam.reading.changes import naming_shard
from rlds_beam.reading.shard_list import RangeList, ShardList, SplitRanges
from rlds_beam.typing import Array

RANGE_BYTES = 32 << 20
"""Input bytes per range: small enough to balance a few workers and to lose little in a crash."""

WHOLE_BYTES = 1 << 30
"""A shard in a bucket is not cut up to this size, the largest that TFDS writes: cutting it requires reading its framing
over the network before any work begins."""

MAX_RANGES = 16384
"""The largest number of ranges, and so of output shards: a larger dataset gets larger ranges, not more files."""


def plan_ranges(
    source: Source, shards: int | None = None, *, whole_shards: bool = False, exact: bool = True
) -> RangeList:
    """Cuts each split, its shards laid end to end, into ranges of about equal bytes.

    Tiny shards share a range and a huge one is spread over several, so the work is balanced for any file sizes. Cuts
    are at records, found by the framing from the start of the file, so bytes within a record that look like records are
    never read as such. A gzip shard cannot be cut and becomes one range; a shard in a bucket is cut only if it is
    larger than `WHOLE_BYTES`, or if `shards` requires it.

    Args:
      source: the dataset.
      shards: the number of ranges per split; None chooses by size (`RANGE_BYTES`).
      whole_shards: make one range of each input shard (for sequences across episodes, where a shard is one ordered
        stream).
      exact: whether ranges begin at records. Those of an estimate need not, and then no framing is read.

    Raises:
      UsageError: the input cannot be cut into `shards` ranges.
    """
    if whole_shards and shards is not None and source.has_files:
        raise UsageError(
            "--shards cannot be used with --across_episodes: each input shard is one stream and stays whole"
        )
    ranges: dict[str, SplitRanges] = {}
    for split in source.splits:
        cut, sizes = _lay_out(source, split)
        if not whole_shards and source.has_files:
            segments = cut
            for far in (False, True):
                cut = _cut(source, segments, sizes, shards, exact, far)
                if shards is None or len(cut) == shards:
                    break
            else:
                raise UsageError(
                    f"--shards={shards}: split {split.name} gives {len(cut)}, because "
                    "compressed or empty shards cannot be cut"
                )
        ranges[split.name] = cut
    return RangeList(ranges)


def select_segments(source: Source, split: Split) -> list[Segment]:
    """The segment of each shard that belongs to the split's slice of episodes."""
    return [
        Segment(shard)
        if low == 0 and high == shard.records
        else Segment(shard, *source.files.positions(shard.path, low, high or 0))
        for shard, low, high in split.taken
    ]


def _lay_out(source: Source, split: Split) -> tuple[SplitRanges, Array]:
    """The segments of a split, laid end to end, each as its own range; and their bytes on disk, int64 (N,)."""
    shards = split.shards
    if not split.sliced:
        rows = np.arange(len(shards) + 1)
        start, stop = (np.broadcast_to(np.int64(value), len(shards)) for value in (0, -1))
        sizes = shards.sizes if isinstance(shards, ShardList) else [shard.size for shard in shards]
        return SplitRanges(split.name, shards, rows, rows[:-1], start, stop), np.asarray(sizes, np.int64)
    positions = {shard.index: i for i, shard in enumerate(shards)}
    segments = select_segments(source, split)
    places = [(positions[s.shard.index], s.start, -1 if s.stop is None else s.stop) for s in segments]
    columns = np.array(places, np.int64).reshape(-1, 3).T
    sizes = [_segment_bytes(source, segment) for segment in segments]
    return SplitRanges(split.name, shards, np.arange(len(places) + 1), *columns), np.array(sizes, np.int64)


def _segment_bytes(source: Source, segment: Segment) -> int:
    shard, stop = segment.shard, segment.stop
    end = shard.size if segment == Segment(shard) else source.files.end(shard.path, shard.size)
    return shard.size * max(0, min(end if stop is None else stop, end) - segment.start) // max(1, end)


def _cut(
    source: Source, segments: SplitRanges, sizes: Array, shards: int | None, exact: bool, far: bool
) -> SplitRanges:
    """The ranges of a split; `far` also cuts shards in a bucket that are small enough to stay whole.

    Args:
      segments: each segment of the split as its own range.
      sizes: their bytes.
    """
    files, total = source.files, int(sizes.sum())
    count = min(MAX_RANGES, -(-total // RANGE_BYTES)) if shards is None else shards
    bounds = np.array([total * i // count for i in range(1, count)], np.int64)
    offsets = np.cumsum(sizes) - sizes
    first, last = np.searchsorted(bounds, offsets, "right"), np.searchsorted(bounds, offsets + sizes, "left")
    touched = {i: bounds[first[i] : last[i]] - offsets[i] for i in np.flatnonzero(last > first).tolist()}
    del first, last  # there may be a million of each
    group = np.searchsorted(bounds, offsets + sizes // 2, "right")
    whole = {i: segments[i].segments[0] for i in touched}
    path = segments[0].segments[0].shard.path if len(segments) else ""
    can_be_cut = storage.at_once(lambda i: _can_be_cut(files, whole[i].shard, far), [*touched], path)
    # The segments that are cut, and their pieces, which replace them.
    cut = [*itertools.compress(touched, can_be_cut)]
    shard = segments.columns["shard"]
    rows: list[tuple[int, int, int, int, int]] = []
    for i in cut:
        for piece, middle in _pieces(files, whole[i], int(sizes[i]), touched[i].tolist(), exact):
            if shards is not None or piece.start != piece.stop:  # a long record leaves nothing for the next cut
                stop = -1 if piece.stop is None else piece.stop
                of = int(np.searchsorted(bounds, offsets[i] + middle, "right"))
                rows.append((i, int(shard[i]), piece.start, stop, of))
    pieces = np.array(rows, np.int64).reshape(-1, 5).T
    places = pieces[0] - np.searchsorted(cut, pieces[0])
    shard, start, stops, group = (
        np.insert(np.delete(column, cut), places, pieces[row])
        for row, column in enumerate((shard, segments.columns["start"], segments.columns["stop"], group), 1)
    )
    starts = np.append(np.flatnonzero(np.diff(group, prepend=-1)), len(group))
    return SplitRanges(segments.split, segments.shards, starts, shard, start, stops)


def _can_be_cut(files: RecordFormat, shard: Shard, far: bool) -> bool:
    if not far and storage.scheme(shard.path) is not None and has_offsets(files, shard.path):
        return shard.size > WHOLE_BYTES and files.is_splittable(shard.path)
    return files.is_splittable(shard.path)


def _pieces(
    files: RecordFormat, segment: Segment, weight: int, inside: list[int], exact: bool
) -> Iterator[tuple[Segment, int]]:
    """Cuts the segment near the offsets `inside` of its `weight` bytes; gives each piece and its middle."""
    shard, start, stop = segment.shard, segment.start, segment.stop
    if stop is None:
        stop = files.end(shard.path, shard.size)
    cuts = [start + (stop - start) * offset // weight for offset in inside]
    if exact and has_offsets(files, shard.path):
        # By the framing from the start of the file: bytes within a record may look like records.
        with naming_shard(shard.path):
            starts = np.append(files.scan(shard.path).positions, files.end(shard.path, shard.size))
        cuts = starts[np.searchsorted(starts[:-1], cuts)].tolist()
    cuts = [min(cut, stop) for cut in cuts]
    offsets = itertools.pairwise([0, *inside, weight])
    for (low, high), (left, right) in zip(itertools.pairwise([start, *cuts, stop]), offsets, strict=True):
        yield dataclasses.replace(segment, start=low, stop=high), (left + right) // 2
