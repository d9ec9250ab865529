"""Estimates the seconds that a job takes on one core, to decide whether to start worker processes.

n workers take t / (n e) seconds for what one process does in t, plus s seconds to start, so they pay if
t (1 - 1 / (n e)) > s. `benchmarks/rates.py` measures t, and a test compares the rates below with it. Only the order of
magnitude matters: near the threshold both choices cost the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from rlds_beam.checking.options import CheckOptions
from rlds_beam.output.base import CostHint
from rlds_beam.reading.base import Source
from rlds_beam.reading.plan import RANGE_BYTES, WorkRange, left_whole, segment_bytes

_MEGA = 1e6
_STATE = {"check": 0.004, "read": 0.003, "frame": 0.0036, "push": 0.056}
_PNG = {"check": 0.004, "read": 0.0077, "frame": 0.0035, "push": 0.03}
_JPEG = {"check": 0.004, "read": 0.028, "frame": 0.011, "push": 0.045}
_KEPT_JPEG = {**_JPEG, "read": 0.0036, "frame": 0.0014}
"""Seconds per MB of input, by its main content: to check it, to read and decode it, to write every frame once, and to
send every frame to Reverb. The rates of JPEGs are between those of 64x64 and 256x256 pixels; `_KEPT_JPEG` is for JPEGs
written unchanged. The push rate of PNGs is an estimate."""

_EPISODE = {"check": 0.00014, "stats": 0.00017, "signals": 0.0001, "write": 0.00025, "push": 0.0003}
"""Seconds per episode of any size: most of the work if episodes are short. The push rate is an estimate."""

_DECODE = 0.0015
"""Seconds to decode an image (256x256 pixels) and look at its colors and edges."""

_VIDEO = {"jpeg": 0.5, "png": 0.07, "none": 0.04}
"""Seconds per MB of input to encode videos, by the images' encoding in the input (9 million pixels per second)."""

_CONVERTED = 0.02
"""Seconds per MB of converted records to send to Reverb (an estimate)."""


def validate_seconds(source: Source, options: CheckOptions) -> float:
    """Seconds to check a dataset; `decode_images` decodes all its images."""
    rates = _rates(source)
    seconds = _megabytes(source) * rates["read" if options.decode_images else "check"]
    return seconds + _episodes(source) * _EPISODE["check"] + source.decode_seconds()


def check_seconds(source: Source, options: CheckOptions, decoded: int) -> float:
    """Seconds to check a dataset and measure its signals; `decoded` images of each camera and episode are decoded."""
    cameras = sum(field.encoding in ("jpeg", "png") for field in source.schema.steps.values())
    more = _episodes(source) * (_EPISODE["signals"] + cameras * decoded * _DECODE)
    return validate_seconds(source, options) + more


def stats_seconds(source: Source, options: CheckOptions) -> float:
    """Seconds to check a dataset and compute its statistics."""
    more = _episodes(source) * (_EPISODE["stats"] - _EPISODE["check"])
    return validate_seconds(source, options) + _megabytes(source) * _rates(source)["read"] + more


def convert_seconds(source: Source, effort: CostHint) -> float:
    """Seconds to convert a dataset to an output with this cost."""
    rates = _rates(source)
    if rates is _JPEG and not effort.decodes_images:
        rates = _KEPT_JPEG
    a_megabyte = rates["read"] + rates["frame"] * effort.copies
    if effort.encodes_videos:
        a_megabyte += _VIDEO["jpeg" if rates is _JPEG else "png" if rates is _PNG else "none"]
    return _megabytes(source) * a_megabyte + _episodes(source) * _EPISODE["write"] + source.decode_seconds()


def push_seconds(source: Source) -> float:
    """Seconds to push a dataset. Overlapping items are slices of the same chunks, so each frame is sent once."""
    seconds = _megabytes(source) * _rates(source)["push"]
    return seconds + _episodes(source) * _EPISODE["push"] + source.decode_seconds()


def converted_seconds(size: int) -> float:
    """Seconds to push this many bytes of converted records."""
    return size / _MEGA * _CONVERTED


def _megabytes(source: Source) -> float:
    return source.size / _MEGA


def _episodes(source: Source) -> int:
    """The number of episodes; 0 if unknown."""
    return source.episodes or 0


def _rates(source: Source) -> dict[str, float]:
    encodings = {field.encoding for field in source.schema.steps.values()}
    return _JPEG if "jpeg" in encodings else _PNG if "png" in encodings else _STATE


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
