"""Estimates the size of an output from a sample of its input, and the seconds that a job takes on one core.

The seconds decide whether to start worker processes. n workers take t / (n e) seconds for what one process does in t,
plus s seconds to start, so they pay if t (1 - 1 / (n e)) > s. `benchmarks/rates.py` measures t, and a test
compares the rates below with it. Only the order of magnitude matters: near the threshold both choices cost the same.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from rlds_beam import storage
from rlds_beam.checking.rules import CheckOptions
from rlds_beam.checking.validation import validate_episode
from rlds_beam.connectors.runner import ConnectorRunner
from rlds_beam.encoding.base import has_offsets
from rlds_beam.episodes.episode import Episode
from rlds_beam.errors import BadEpisode, UsageError
from rlds_beam.output.base import CostHint, Output
from rlds_beam.reading.base import Source
from rlds_beam.reading.plan import RANGE_BYTES, WorkRange, left_whole, segment_bytes
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.text import format_size

SAMPLE_BYTES = 4 << 20
"""Bytes of input read for a prediction; at least one record is read."""

_RANGES = 16
"""Maximum number of ranges that the sample is spread over."""

_STEPS = 32
"""Minimum number of steps to measure of a large episode."""

_FRAMING = 16
"""Bytes of a TFRecord in addition to its payload."""


class _Record(NamedTuple):
    """A record as read, and its accepted episodes."""

    read: Episode | None
    episodes: tuple[Episode, ...]


@dataclasses.dataclass
class _Sample:
    records: int = 0
    read: int = 0
    written: int = 0


def predict_size(
    source: Source, ranges: Sequence[WorkRange], check: CheckOptions, connecting: ConnectorRunner, output: Output
) -> int | None:
    """Predicts the bytes that a conversion writes: output records, and rejected records as read.

    Reads, checks, and encodes a sample, and scales the result to the dataset. Exact if the sample is the whole dataset.

    Returns:
      The number of bytes; None if the output cannot predict it (`Output.measure`), if there are no files to sample, or
      if connectors are the user's code, which only workers run.
    """
    if connecting.user_code or not source.has_files or type(output).measure is Output.measure:
        return None
    connecting, ignored = connecting.as_probed(), connecting.ignored_values(output.ignored_values)
    check = dataclasses.replace(check, fail=())  # only the job itself raises on `fail`
    sample, complete = _Sample(), True
    step = -(-len(ranges) // _RANGES) or 1
    chosen = ranges[::step]
    reader, each = EpisodeReader(source), SAMPLE_BYTES // max(1, len(chosen))
    for work in chosen:
        records: list[_Record] = []
        size = 0
        if sample.read >= SAMPLE_BYTES:
            complete = False
            break
        for episode in (e for segment in work.segments for e in reader.read(work.split, segment)):
            if size and size + len(episode.payload) > each:
                complete = False
                break
            size += len(episode.payload) + _FRAMING
            sample.records += 1
            verdict = validate_episode(episode, check, ignored)
            sample.written += _FRAMING + len(episode.payload) if verdict.rejected else 0
            records += [_Record(episode, verdict.episodes)] if verdict.episodes else []
        sample.read += size
        measured = _measure(output, connecting, records)
        if measured is None:
            return None
        sample.written += measured
    if not sample.read or (complete and step == 1):
        return sample.written
    return round(sample.written * _scale(source, ranges, sample))


def _measure(output: Output, connecting: ConnectorRunner, records: Sequence[_Record]) -> int | None:
    """`output.measure`; for an episode larger than the sample, extrapolates from some of its steps."""

    def measure(records: Iterable[_Record]) -> int | None:
        size, batches = 0, []
        for read, episodes in records:
            try:
                batches.append(connecting.connect(episodes).replace(read=read))
            except BadEpisode:  # will be rejected, and kept as read
                size += _FRAMING + len(episodes[0].payload)
        measured = output.measure([batch for batch in batches if batch.episodes])
        return None if measured is None else size + measured

    episodes = [episode for record in records for episode in record.episodes]
    if len(episodes) != 1 or len(episodes[0].payload) <= SAMPLE_BYTES:
        return measure(records)
    (episode,) = episodes
    some = max(_STEPS, len(episode) * SAMPLE_BYTES // len(episode.payload))
    if len(episode) <= 2 * some:
        return measure(records)
    less, more = (measure([_Record(None, (episode.slice(0, steps),))]) for steps in (some, 2 * some))
    if less is None or more is None:
        return None
    return more + (more - less) * (len(episode) - 2 * some) // some


def check_room(directory: str, needed: int, freed: Iterable[int] = ()) -> None:
    """Checks that the disk has room before any work is done. Buckets are not checked.

    Args:
      directory: the output directory.
      needed: bytes still to be written.
      freed: sizes of the files that are removed first.

    Raises:
      UsageError: the directory's file system has too little room.
    """
    if storage.scheme(directory) is not None:
        return
    existing = next(path for path in _upwards(os.path.abspath(directory)) if os.path.isdir(path))
    free = shutil.disk_usage(existing).free + sum(freed)
    if needed > free:
        raise UsageError(
            f"{directory} needs about {format_size(needed)}, but its file system has only {format_size(free)} free: "
            "name a directory on another disk, or write less (--split, --images=jpeg, --items=frames, a longer "
            "--stride_length)"
        )


def _upwards(path: str) -> Iterator[str]:
    while True:
        yield path
        if path == os.path.dirname(path):
            return
        path = os.path.dirname(path)


def _scale(source: Source, ranges: Sequence[WorkRange], sample: _Sample) -> float:
    """Ratio of dataset to sample: by episodes if the files are compressed and their number is known, else by bytes."""
    segments = [segment for work in ranges for segment in work.segments]
    compressed = not has_offsets(source.files, segments[0].shard.path) or not source.files.is_splittable(
        segments[0].shard.path
    )
    if compressed and source.episodes is not None:
        return source.episodes / max(1, sample.records)
    return sum(segment_bytes(source, segment) for segment in segments) / max(1, sample.read)


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
    cameras = sum(field.holds_image_files for field in source.schema.steps.values())
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


def compute_balance(source: Source, ranges: Sequence[WorkRange], *, whole_shards: bool = False) -> Balance:
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
        return f"{path} cannot be cut: a file of this format is one range"
    return None  # requested by --shards
