"""The sizes of a plan's ranges, and why the largest could not be cut."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from rlds_beam.reading.base import Source
from rlds_beam.reading.plan import RANGE_BYTES, WorkRange, left_whole, segment_bytes

_LARGE = 2 * RANGE_BYTES
"""Bytes above which a range that could not be cut is mentioned."""


@dataclasses.dataclass(frozen=True)
class Balance:
    """The sizes of a plan's ranges.

    Attributes:
      ranges: the number of ranges.
      least, most, total: input bytes of the smallest range, of the largest, and of all.
      unsplittable: why the largest range was not cut, naming its file; None if it is small enough.
    """

    ranges: int
    least: int
    most: int
    total: int
    unsplittable: str | None

    def to_json(self) -> dict[str, Any]:
        """The sizes as JSON."""
        return dataclasses.asdict(self)


def balance_of(source: Source, ranges: Sequence[WorkRange], *, whole_shards: bool = False) -> Balance:
    """The balance of the ranges from `plan_ranges` called with these arguments."""
    sizes = [range_bytes(source, work) for work in ranges]
    balance = balance_of_sizes(sizes)
    if balance.most <= _LARGE:
        return balance
    largest = ranges[sizes.index(balance.most)]
    return dataclasses.replace(balance, unsplittable=_why_unsplittable(source, largest, whole_shards))


def balance_of_sizes(sizes: Sequence[int]) -> Balance:
    """The balance of ranges that are whole files of these sizes."""
    return Balance(len(sizes), min(sizes, default=0), max(sizes, default=0), sum(sizes), None)


def range_bytes(source: Source, work: WorkRange) -> int:
    """The input bytes of a range."""
    return sum(segment_bytes(source, segment) for segment in work.segments)


def largest_first(source: Source, ranges: Sequence[WorkRange]) -> list[WorkRange]:
    """The ranges in scheduling order: large ones first, the others in the order of the dataset."""
    return sorted(ranges, key=lambda work: -(range_bytes(source, work) // _LARGE))


def _why_unsplittable(source: Source, work: WorkRange, whole_shards: bool) -> str | None:
    segment = max(work.segments, key=lambda segment: segment_bytes(source, segment))
    path = segment.shard.path
    if whole_shards:
        return f"{path} is read as one stream for --across_episodes"
    if left_whole(source, segment.shard):
        return f"{path} is in a bucket, where shards of up to 1 GiB are cut only for --shards"
    if not source.files.is_splittable(path):
        if source.files.name == "tfrecord":
            return f"{path} is gzip-compressed, which cannot be cut"
        return f"{path} cannot be cut: a file of this format is one part"
    return None  # requested by --shards
