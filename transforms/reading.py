"""Reading RLDS datasets in parallel."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.metrics import Metrics
from apache_beam.transforms.core import RestrictionProvider

from rlds_beam.encoding.base import Damage
from rlds_beam.episodes.episode import Episode
from rlds_beam.formats.sources import open_source
from rlds_beam.reading.base import Segment, Source
from rlds_beam.reading.framing import Framing, first_record
from rlds_beam.reading.plan import plan_ranges
from rlds_beam.reading.reader import EpisodeReader, read_segment
from rlds_beam.transforms.metrics import METRICS_NAMESPACE

Piece = tuple[str, Segment]
"""The element that is read: a split's name and a stretch of one of its shards."""


class ReadFromRlds(beam.PTransform):
    """Reads the episodes of an RLDS dataset: a PCollection of `Episode`.

    Every shard is read by as many workers as the runner gives it (a splittable DoFn over byte
    ranges); each record comes out exactly once. Where the runner cuts a stretch that is being read, the
    reader of the rest follows the framing from the start of the stretch to the cut. A record that cannot
    be read comes out too, as an Episode with `faults` and no steps: `ValidateEpisodes` after this rejects it.

    Args:
      source: a dataset directory, shard files, or a `Source` that is open already.
      split: TFDS's notation (`train[:10%]`); None reads every split.
      features: path of a features.json, where it does not lie beside the input.
      framing: of the source, where it was looked at already.

    Raises:
      UsageError: on construction, where the dataset cannot be opened.
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

    def expand(self, root: Any) -> Any:
        ranges = plan_ranges(self.source, starts=self._framing.record_starts)
        pieces = [(work.split, segment) for work in ranges for segment in work.segments]
        return (
            root
            # The list of stretches is shuffled, never the episodes: that is all the balancing there is to do.
            | "Stretches" >> beam.Create(pieces, reshuffle=True)
            | "Read" >> beam.ParDo(_ReadEpisodesFn(EpisodeReader(self.source))).with_output_types(Episode)
        )


class _ReadEpisodesFn(beam.DoFn, RestrictionProvider):
    """Reads one stretch of a shard; the runner may cut it further: by bytes, or by record index."""

    def __init__(self, reader: EpisodeReader):
        self._reader = reader
        self._records = Metrics.counter(METRICS_NAMESPACE, "records_read")
        self._bytes = Metrics.counter(METRICS_NAMESPACE, "bytes_read")

    def initial_restriction(self, piece: Piece) -> OffsetRange:
        segment, files = piece[1], self._reader.files
        if not files.is_splittable(segment.shard.path):
            return OffsetRange(0, 1)  # One claim for the whole: reading cannot start in the middle of a gzip stream.
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
        claimed = not splittable
        for record in read_segment(self._reader.files, segment):
            # What is damaged belongs to the reader of what stands before it: it needs no claim of its own.
            if not (claimed and isinstance(record, Damage)) and splittable and not tracker.try_claim(record.position):
                return
            claimed = True
            self._records.inc()
            self._bytes.inc(len(record.payload))
            yield self._reader.episode(split, segment, record)
            del record  # not held while the next one is read
        tracker.try_claim(restriction.stop)  # Tells the tracker that the stretch was read to its end.
