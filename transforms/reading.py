"""Reads RLDS datasets in parallel."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.metrics import Metrics
from apache_beam.pvalue import PBegin
from apache_beam.transforms.core import RestrictionProvider

from rlds_beam.checking.screen import screen_batches
from rlds_beam.encoding.base import Damage, Record
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.schema import Schema
from rlds_beam.formats.inputs import open_source
from rlds_beam.reading.base import Segment, Source
from rlds_beam.reading.framing import Framing, first_record
from rlds_beam.reading.plan import plan_ranges
from rlds_beam.reading.reader import EpisodeReader, read_segment
from rlds_beam.worker_status import METRICS_NAMESPACE

Piece = tuple[str, Segment]
"""The element that is read: a split's name and a segment of one of its shards."""


class ReadFromRlds(beam.PTransform[PBegin, Episode]):
    """Reads the episodes of an RLDS dataset: a PCollection of `Episode`.

    A splittable DoFn over byte ranges lets the runner use several workers per shard; each record is read exactly once.
    If the runner splits a segment while it is read, the reader of the rest follows the framing from the start of the
    segment to the split point. A record that cannot be read becomes an `Episode` with `faults` and no steps, which
    `ValidateEpisodes` rejects.

    Args:
      source: a dataset directory, shard files, or an open `Source`.
      split: a split in TFDS's notation (`train[:10%]`); None reads every split.
      features: the path of features.json, if it is not next to the input.
      framing: the framing of the source, if already read.

    Attributes:
      source: the dataset.
      schema: the `Schema` of its episodes.

    Raises:
      UsageError: on construction, if the dataset cannot be opened.
    """

    def __init__(
        self,
        source: str | Sequence[str] | Source,
        split: str | None = None,
        features: str | None = None,
        framing: Framing | None = None,
    ):
        super().__init__()
        self.source = source if isinstance(source, Source) else open_source(source, split, features)
        self._framing = framing or Framing(self.source)

    @property
    def schema(self) -> Schema:
        return self.source.schema

    def expand(self, root: beam.Pipeline | PBegin) -> beam.PCollection[Episode]:
        ranges = plan_ranges(self.source, starts=self._framing.record_starts)
        pieces = [(work.split, segment) for work in ranges for segment in work.segments]
        return (
            root
            # Only the list of segments is shuffled, never the episodes; that balances the workers.
            | "Stretches" >> beam.Create(pieces, reshuffle=True)
            | "Read" >> beam.ParDo(_ReadEpisodesFn(EpisodeReader(self.source))).with_output_types(Episode)
        )


class _ReadEpisodesFn(beam.DoFn, RestrictionProvider):
    """Reads one segment of a shard, which the runner may split further, by bytes or by record index."""

    def __init__(self, reader: EpisodeReader):
        self._reader = reader
        self._records = Metrics.counter(METRICS_NAMESPACE, "records_read")
        self._bytes = Metrics.counter(METRICS_NAMESPACE, "bytes_read")

    def initial_restriction(self, piece: Piece) -> OffsetRange:
        segment, files = piece[1], self._reader.files
        if not files.is_splittable(segment.shard.path):
            return OffsetRange(0, 1)  # One claim for the whole file: a gzip stream cannot be read from the middle.
        stop = files.end(segment.shard.path, segment.shard.size) if segment.stop is None else segment.stop
        return OffsetRange(segment.start, stop)

    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        return OffsetRestrictionTracker(restriction)

    def restriction_size(self, piece: Piece, restriction: OffsetRange) -> int:
        return int(restriction.size())

    def process(self, piece: Piece, tracker: Any = beam.DoFn.RestrictionParam()) -> Iterator[Episode]:  # noqa: B008
        split, segment = piece
        restriction = tracker.current_restriction()
        splittable = self._reader.files.is_splittable(segment.shard.path)
        if splittable:
            start = first_record(self._reader.files, segment, restriction.start)
            segment = dataclasses.replace(segment, start=start, stop=restriction.stop)
        elif not tracker.try_claim(restriction.start):
            return
        records = self._claim(segment, tracker, restriction.stop, splittable)
        for episode, sound in screen_batches(self._reader.decode_batches(split, segment, records)):
            yield episode.with_sound(sound)
            del episode  # not held while the next one is read

    def _claim(self, segment: Segment, tracker: Any, stop: int, splittable: bool) -> Iterator[Record | Damage]:
        """Yields the records of a segment until one is not claimed: it belongs to the reader of the rest."""
        claimed = not splittable
        for record in read_segment(self._reader.files, segment):
            # Damage belongs to the reader of the record before it, so it needs no claim.
            if not (claimed and isinstance(record, Damage)) and splittable and not tracker.try_claim(record.position):
                return
            claimed = True
            self._records.inc()
            self._bytes.inc(len(record.payload))
            yield record
            del record  # not held while the next one is read
        tracker.try_claim(stop)  # Tells the tracker that the segment was read to its end.
