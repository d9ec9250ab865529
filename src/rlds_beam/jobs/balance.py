"""How even the ranges of a plan are, and why they are not."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from rlds_beam.reading.base import Source
from rlds_beam.reading.plan import RANGE_BYTES, WorkRange, left_whole, segment_bytes

_LARGE = 2 * RANGE_BYTES
"""A range of more is mentioned, if it could not be cut."""


@dataclasses.dataclass(frozen=True)
class Balance:
    """The ranges of a plan by their size.

    Attributes:
      ranges: how many there are.
      least, most, total: input bytes of the smallest, of the largest, and of all.
      unsplittable: why the largest was not cut, and which file that is; None where it need not be.
    """

    ranges: int
    least: int
    most: int
    total: int
    unsplittable: str | None

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return dataclasses.asdict(self)


def balance_of(source: Source, ranges: Sequence[WorkRange], *, whole_shards: bool = False) -> Balance:
    """Weighs the ranges that `plan_ranges` cut with these arguments."""
    sizes = [range_bytes(source, work) for work in ranges]
    balance = balance_of_sizes(sizes)
    if balance.most <= _LARGE:
        return balance
    largest = ranges[sizes.index(balance.most)]
    return dataclasses.replace(balance, unsplittable=_why_unsplittable(source, largest, whole_shards))


def balance_of_sizes(sizes: Sequence[int]) -> Balance:
    """Weighs ranges that are files, each whole."""
    return Balance(len(sizes), min(sizes, default=0), max(sizes, default=0), sum(sizes), None)


def range_bytes(source: Source, work: WorkRange) -> int:
    """Input bytes of a range."""
    return sum(segment_bytes(source, segment) for segment in work.segments)


def largest_first(source: Source, ranges: Sequence[WorkRange]) -> list[WorkRange]:
    """The ranges in the order in which they are best handed out: no large one is left for the end.

    Those of the usual size stay in the order of the dataset.
    """
    return sorted(ranges, key=lambda work: -(range_bytes(source, work) // _LARGE))


def _why_unsplittable(source: Source, work: WorkRange, whole_shards: bool) -> str | None:
    segment = max(work.segments, key=lambda segment: segment_bytes(source, segment))
    path = segment.shard.path
    if whole_shards:
        return f"{path} is one stream, which --across_episodes keeps whole"
    if left_whole(source, segment.shard):
        return f"{path} is in a bucket, where a shard of up to 1 GiB is cut for --shards only"
    if not source.files.is_splittable(path):
        return f"{path} is gzip, which cannot be cut"
    return None  # it was asked for by --shards
