"""Finds duplicate episodes in a dataset."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.pvalue import PBegin

from rlds_beam import storage
from rlds_beam.checking.duplicates import Duplicates, Hashed, confirm, duplicates_among, scan
from rlds_beam.encoding.base import RecordFormat
from rlds_beam.reading.base import Segment, Source
from rlds_beam.reading.plan import select_segments

_log = logging.getLogger(__name__)

Piece = tuple[int, tuple[str, Segment]]
"""The number of a segment; its split; and the segment."""


class FindDuplicateEpisodes(beam.PTransform[PBegin, Duplicates]):
    """Finds duplicates: a PCollection of one dict from each duplicate's key to the key of the original.

    Workers read the framing of all records, and the payload of records with equal fingerprints. Pass the result to
    `ValidateEpisodes(duplicates=...)`.

    Args:
      source: the dataset, whose (selected) records are compared with each other.
      in_buckets: also search files in a bucket, where the framing costs a request a record. Otherwise, the result for
        them is empty, and a warning says so.
    """

    def __init__(self, source: Source, *, in_buckets: bool = False):
        super().__init__()
        self._source, self._in_buckets = source, in_buckets

    def display_data(self) -> dict[str, Any]:
        return {"dataset": self._source.dataset, "in_buckets": self._in_buckets}

    def expand(self, root: beam.Pipeline | PBegin) -> beam.PCollection[Duplicates]:
        files, found = self._source.files, [(s.name, own) for s in self._source.splits for own in self._segments(s)]
        pieces = root | "Segments" >> beam.Create([*enumerate(found)], reshuffle=True).with_output_types(Piece)
        suspects = (
            pieces
            | "Mark" >> beam.FlatMap(_mark, files).with_output_types(tuple[int, tuple[int, int]])
            | "Equal" >> beam.GroupByKey()
            | "Suspects" >> beam.FlatMapTuple(_keep_equal).with_output_types(tuple[int, int])
        )
        return (
            {"piece": pieces, "positions": suspects}
            | "BySegment" >> beam.CoGroupByKey()
            | "Hash" >> beam.FlatMap(_hash, self._source.dataset, files).with_output_types(Hashed)
            | "All" >> beam.combiners.ToList()
            | "Compare" >> beam.Map(duplicates_among).with_output_types(Duplicates)
        )

    def _segments(self, split: Any) -> list[Segment]:
        segments = select_segments(self._source, split)
        if self._in_buckets or all(storage.scheme(segment.shard.path) is None for segment in segments):
            return segments
        _log.warning(
            "FindDuplicateEpisodes: split %s is in a bucket, so it is not searched: each of its records would cost a "
            "request. Pass in_buckets=True to search it",
            split.name,
        )
        return []


def as_side_input(duplicates: beam.PCollection[Duplicates] | None) -> Any:
    """The result of `FindDuplicateEpisodes` as an argument of a ParDo; None means no duplicates."""
    return {} if duplicates is None else beam.pvalue.AsSingleton(duplicates)


def _mark(piece: Piece, files: RecordFormat) -> Iterator[tuple[int, tuple[int, int]]]:
    """The fingerprint of each record of a segment, with the number of the segment and the position."""
    number, (_, segment) = piece
    found = scan(files, number, segment)
    yield from zip(found.marks.view(np.int64).tolist(), map(tuple, found.places.tolist()), strict=True)


def _keep_equal(mark: int, places: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    equal = list(places)
    return equal if len(equal) > 1 else []


def _hash(element: tuple[int, dict[str, Iterable[Any]]], dataset: str, files: RecordFormat) -> Iterator[Hashed]:
    """The hashes of a segment's records whose fingerprint is not unique."""
    _, group = element
    ((split, segment),), positions = group["piece"], sorted(group["positions"])
    yield from confirm(dataset, files, split, segment, np.array(positions, np.int64))
