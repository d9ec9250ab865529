"""Finds duplicate episodes in a dataset."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PBegin

from rlds_beam import worker_status
from rlds_beam.checking.duplicates import (
    Duplicates,
    Fingerprints,
    Hashed,
    Suspects,
    confirm,
    duplicates_among,
    known_fingerprints,
    scan,
    suspects_by_segment,
)
from rlds_beam.encoding.base import RecordFormat
from rlds_beam.reading.base import Segment, Source
from rlds_beam.reading.framing import Framing
from rlds_beam.reading.plan import plan_ranges

Numbered = tuple[int, tuple[str, Segment]]


class FindDuplicateEpisodes(beam.PTransform[PBegin, Duplicates]):
    """Finds duplicates: a PCollection of one dict from each duplicate's key to the key of the original.

    Reads the framing of all records, and the payload of records with equal fingerprints. The framing of local files is
    read on construction, in this process; workers read other files. Pass the result to
    `ValidateEpisodes(duplicates=...)`.

    Args:
      source: the dataset, whose (selected) records are compared with each other.
      framing: the framing of the source, if already read.
    """

    def __init__(self, source: Source, framing: Framing | None = None):
        super().__init__()
        self._source, framing = source, framing or Framing(source)
        ranges = plan_ranges(source, starts=framing.record_starts)
        self._segments = [(work.split, segment) for work in ranges for segment in work.segments]
        self._known = known_fingerprints(framing, [segment for _, segment in self._segments])

    def expand(self, root: beam.Pipeline | PBegin) -> beam.PCollection[Duplicates]:
        source = self._source
        suspects = [] if self._known is None else list(suspects_by_segment(self._known, self._segments))
        if self._known is not None and not suspects:
            return root | "None" >> beam.Create([duplicates_among(source.dataset, [])])
        return (
            (root | "Suspects" >> beam.Create(suspects) if suspects else self._find_suspects(root))
            | "Spread" >> beam.Reshuffle()
            | "Hash" >> beam.Map(_confirm, source.files)
            | "Collect" >> beam.CombineGlobally(_collect_all)
            | "Duplicates" >> beam.Map(_among, source.dataset).with_output_types(Duplicates)
        )

    def _find_suspects(self, root: Any) -> Any:
        return (
            root
            | "Segments" >> beam.Create(list(enumerate(self._segments)), reshuffle=True)
            | "Scan" >> beam.Map(_scan, self._source.files).with_output_types(Fingerprints)
            # 24 bytes per record, all in one place: 60 MB for all episodes of Open X-Embodiment.
            | "Compare" >> beam.CombineGlobally(_ConcatenateFn())
            | "Suspects" >> beam.FlatMap(suspects_by_segment, self._segments)
        )


def as_side_input(duplicates: beam.PCollection[Duplicates] | None) -> Any:
    """The result of `FindDuplicateEpisodes` as an argument of a ParDo; None means no duplicates."""
    return {} if duplicates is None else beam.pvalue.AsSingleton(duplicates)


def _scan(numbered: Numbered, files: RecordFormat) -> Fingerprints:
    index, (_, segment) = numbered
    fingerprints = scan(files, index, segment)
    worker_status.count(scanned=1)
    return fingerprints


def _confirm(suspect: Suspects, files: RecordFormat) -> list[Hashed]:
    return [confirm(files, *suspect)]


def _among(hashed: list[Hashed], dataset: str) -> Duplicates:
    return duplicates_among(dataset, hashed)


def _collect_all(parts: Iterable[list[Any]]) -> list[Any]:
    return [entry for part in parts for entry in part]


class _ConcatenateFn(beam.CombineFn):
    def create_accumulator(self) -> list[Fingerprints]:
        return []

    def add_input(self, accumulator: list[Fingerprints], marks: Fingerprints) -> list[Fingerprints]:
        accumulator.append(marks)
        return accumulator

    def merge_accumulators(self, accumulators: Iterable[list[Fingerprints]]) -> list[Fingerprints]:
        return [Fingerprints.concatenate(part for accumulator in accumulators for part in accumulator)]

    def extract_output(self, accumulator: list[Fingerprints]) -> Fingerprints:
        return Fingerprints.concatenate(accumulator)
