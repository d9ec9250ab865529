"""Predicts the size of an output from a sample of its input, and checks that the disk has room."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from rlds_beam import storage
from rlds_beam.checking.options import CheckOptions
from rlds_beam.checking.validating import validate_episode
from rlds_beam.connectors.runner import ConnectorRunner
from rlds_beam.episodes.episode import Episode
from rlds_beam.errors import BadEpisode, UsageError
from rlds_beam.output.base import Output
from rlds_beam.reading.base import Source
from rlds_beam.reading.plan import WorkRange, segment_bytes
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
    compressed = source.files.unit != "bytes" or not source.files.is_splittable(segments[0].shard.path)
    if compressed and source.episodes is not None:
        return source.episodes / max(1, sample.records)
    return sum(segment_bytes(source, segment) for segment in segments) / max(1, sample.read)
