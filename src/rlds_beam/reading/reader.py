"""From a stretch of a shard to episodes; what cannot be read comes along as an episode with faults."""

from __future__ import annotations

from collections.abc import Iterator

from rlds_beam.at_work import at_work
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.keys import EpisodeKey
from rlds_beam.episodes.violations import BadEpisode, Violation
from rlds_beam.formats import arrayrecord, tfrecord
from rlds_beam.formats.tfrecord import Damage, Record
from rlds_beam.reading.decoding import EpisodeDecoder
from rlds_beam.reading.plan import Segment
from rlds_beam.reading.source import Source


def read_segment(file_format: str, segment: Segment) -> Iterator[Record | Damage]:
    """The records of one stretch of a shard, and what is damaged in it, in order.

    A record belongs to the stretch that holds its first byte, so that stretches laid end to end
    give each record exactly once (see `formats.tfrecord`).
    """
    with at_work(stretch(file_format, segment)):
        if file_format == "array_record":
            yield from arrayrecord.read_records(segment.shard.path, segment.start, segment.stop)
            return
        with tfrecord.open_tfrecord(segment.shard.path).file as file:
            yield from tfrecord.read_records(file, segment.start, segment.stop)


def stretch(file_format: str, segment: Segment) -> str:
    """A segment in words: its file, and which bytes or records of it."""
    unit = "records" if file_format == "array_record" else "bytes"
    stop = "the end" if segment.stop is None else f"{segment.stop}"
    return f"{segment.shard.path}, {unit} {segment.start} to {stop}"


class EpisodeReader:
    """Reads the episodes of a dataset, stretch by stretch. Pickles; holds no open file between calls."""

    def __init__(self, source: Source):
        self.dataset = source.dataset
        self.file_format = source.file_format
        self.decoder = EpisodeDecoder(source.schema, source.features)

    def read(self, split: str, segment: Segment) -> Iterator[Episode]:
        """Every record of `segment` as an episode, in order; an unreadable one with its `faults`."""
        for record in read_segment(self.file_format, segment):
            yield self.episode(split, segment, record)
            del record  # not held while the next one is read

    def episode(self, split: str, segment: Segment, record: Record | Damage) -> Episode:
        """One record as an episode."""
        key = EpisodeKey(self.dataset, split, segment.shard.index, record.position)
        if isinstance(record, Damage):
            detail = f"{record.reason} ({segment.shard.path}, bytes {record.position} to {record.stop})"
            return Episode(key, {}, payload=record.payload, faults=(Violation("corrupt_record", detail),))
        try:
            return self.decoder.decode(record.payload, key)
        except BadEpisode as bad:
            return Episode(key, {}, payload=record.payload, faults=bad.violations)
