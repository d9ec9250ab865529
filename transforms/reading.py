"""Reads RLDS datasets in parallel."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.io.filesystem import FileMetadata
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.metrics import Metrics
from apache_beam.pvalue import PBegin
from apache_beam.transforms.core import RestrictionProvider

from rlds_beam.checking.validation import screen_batches
from rlds_beam.encoding.base import Damage, Record, RecordFormat, has_offsets
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.schema import Schema
from rlds_beam.errors import UsageError
from rlds_beam.formats.inputs import open_source
from rlds_beam.reading.base import Segment, Source
from rlds_beam.reading.plan import plan_ranges
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.transforms.elements import report_source
from rlds_beam.worker_status import METRICS_NAMESPACE

_log = logging.getLogger(__name__)

Piece = tuple[str, Segment]
"""The element that is read: a split's name and a segment of one of its shards."""

_KEPT_READERS = 16
"""Open datasets that a worker keeps."""


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
    ):
        super().__init__()
        self.source = source if isinstance(source, Source) else open_source(source, split, features)

    @property
    def schema(self) -> Schema:
        return self.source.schema

    def display_data(self) -> dict[str, Any]:
        return {"dataset": self.source.dataset, "splits": ", ".join(split.name for split in self.source.splits)}

    def expand(self, root: beam.Pipeline | PBegin) -> beam.PCollection[Episode]:
        pieces = [(work.split, segment) for work in plan_ranges(self.source) for segment in work.segments]
        return (
            root
            # Only the list of segments is shuffled, never the episodes; that balances the workers.
            | "Stretches" >> beam.Create(pieces, reshuffle=True)
            | "Read" >> beam.ParDo(_ReadEpisodesFn(EpisodeReader(self.source))).with_output_types(Episode)
        )


@beam.typehints.with_input_types(str | FileMetadata)
class ReadAllFromRlds(beam.PTransform[str, Episode]):
    """Reads the episodes of all datasets whose paths are in a PCollection, which may be unbounded.

        paths = root | apache_beam.io.fileio.MatchContinuously("in/*.tfrecord-*", interval=60)
        episodes = paths | ReadAllFromRlds("in/first.tfrecord-00000-of-00001")

    A path is a dataset directory or a shard file, as text or as the result of a match. Records are read as in
    `ReadFromRlds`. Shard files of one dataset have the keys that their names say (`-00007-of-00100`).

    Args:
      like: a dataset directory, a shard file, or an open `Source`, with the schema of all others.
      split: as in `ReadFromRlds`.
      features: the path of features.json, if it is not next to each path.

    Attributes:
      source: the dataset `like`.
      schema: the `Schema` of the episodes.

    Raises:
      UsageError: on construction, if `like` cannot be opened; while running, if a dataset cannot be, or if its fields
        are others.
    """

    def __init__(self, like: str | Source, split: str | None = None, features: str | None = None):
        super().__init__()
        self.source = like if isinstance(like, Source) else open_source(like, split, features)
        self._split, self._features = split, features

    @property
    def schema(self) -> Schema:
        return self.source.schema

    def display_data(self) -> dict[str, Any]:
        return {"like": self.source.dataset, "split": self._split or "all"}

    def expand(self, paths: beam.PCollection[str]) -> beam.PCollection[Episode]:
        return (
            paths
            | "List" >> beam.FlatMap(_list_pieces, self.schema, self._split, self._features)
            | "Spread" >> beam.Reshuffle()
            | "Read" >> beam.ParDo(_ReadPiecesFn(self._split, self._features)).with_output_types(Episode)
        )


def _list_pieces(
    path: str | FileMetadata, schema: Schema, split: str | None, features: str | None
) -> Iterator[tuple[str, Piece]]:
    """The segments of a dataset. Raises UsageError if its fields are others."""
    path = path if isinstance(path, str) else path.path
    source = open_source(path, split, features)
    for fields, expected in ((source.schema.steps, schema.steps), (source.schema.metadata, schema.metadata)):
        for name in sorted({*fields, *expected}):
            if fields.get(name) != expected.get(name):
                raise UsageError(
                    f"{path}: its field {name} is {fields.get(name)}, but in the dataset given as `like` it is "
                    f"{expected.get(name)}"
                )
    for work in plan_ranges(source):
        for segment in work.segments:
            yield path, (work.split, segment)


class _ReadPiecesFn(beam.DoFn):
    """Reads segments of any dataset whole: a runner splits them no further, so they may come from a stream."""

    def __init__(self, split: str | None, features: str | None):
        self._open = functools.partial(open_source, split=split, features=features)

    def setup(self) -> None:
        self._find_reader = functools.lru_cache(_KEPT_READERS)(lambda path: EpisodeReader(self._open(path)))

    def process(self, element: tuple[str, Piece]) -> Iterator[Episode]:
        path, piece = element
        report_source(piece[1].shard.path)
        yield from self._find_reader(path).read(*piece)


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
        report_source(segment.shard.path)
        _log.info("Reading %s from %d to %d", segment.shard.path, restriction.start, restriction.stop)
        splittable = self._reader.files.is_splittable(segment.shard.path)
        if splittable:
            start = _first_record(self._reader.files, segment, restriction.start)
            segment = dataclasses.replace(segment, start=start, stop=restriction.stop)
        elif not tracker.try_claim(restriction.start):
            return
        records = self._claim(segment, tracker, restriction.stop, splittable)
        yield from screen_batches(self._reader.decode_batches(split, segment, records))
        _log.info("Read %s from %d to %d", segment.shard.path, restriction.start, tracker.current_restriction().stop)

    def _claim(self, segment: Segment, tracker: Any, stop: int, splittable: bool) -> Iterator[Record | Damage]:
        """Yields the records of a segment until one is not claimed: it belongs to the reader of the rest."""
        claimed = not splittable
        for record in self._reader.files.read(segment.shard.path, segment.start, segment.stop):
            # Damage belongs to the reader of the record before it, so it needs no claim.
            if not (claimed and isinstance(record, Damage)) and splittable and not tracker.try_claim(record.position):
                return
            claimed = True
            self._records.inc()
            self._bytes.inc(len(record.payload))
            yield record
            del record  # not held while the next one is read
        tracker.try_claim(stop)  # Tells the tracker that the segment was read to its end.


def _first_record(files: RecordFormat, segment: Segment, position: int) -> int:
    """The first record of a segment at or after `position`, by the framing from the segment's start.

    Returns the segment's end if there is none.
    """
    if position == segment.start or not has_offsets(files, segment.shard.path):
        return position
    positions = files.scan(segment.shard.path, segment.start, segment.stop).positions
    after = positions[np.searchsorted(positions, position) :]
    end = segment.shard.size if segment.stop is None else segment.stop
    return int(after[0]) if len(after) else end
