"""Checks episodes: passes on the good ones, sets the others aside, and counts them all; finds duplicates."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
from apache_beam.pvalue import PBegin, TaggedOutput

from rlds_beam import storage
from rlds_beam.checking.duplicates import Duplicates, Hashed, confirm, duplicates_among, mark_duplicate, scan
from rlds_beam.checking.rules import CheckOptions
from rlds_beam.checking.verdicts import Rejection, count_verdict
from rlds_beam.connectors.base import Batch
from rlds_beam.connectors.pipeline import ConnectorRunner
from rlds_beam.encoding.base import RecordFormat
from rlds_beam.encoding.metadata import encode
from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.processing.ranges import check_and_connect
from rlds_beam.processing.report import Processed, Report
from rlds_beam.reading.base import Segment, Source
from rlds_beam.reading.plan import select_segments
from rlds_beam.transforms.elements import combine_windows, refuse_windows


class CheckResult(NamedTuple):
    """The outputs of `ValidateEpisodes`.

    Attributes:
      accepted: a PCollection of `Episode`, repaired if requested.
      rejected: a PCollection of `Rejection`: the key, the violations, and the original bytes.
      report: a PCollection of one `Report` on all records read; of windowed episodes, one for each window.
    """

    accepted: beam.PCollection[Episode]
    rejected: beam.PCollection[Rejection]
    report: beam.PCollection[Report]


@beam.typehints.with_input_types(Episode)
class ValidateEpisodes(beam.PTransform[Episode, Any]):
    """Checks every episode against the rules, in one pass. Without Beam: `validate_episode`.

    Args:
      options: the policy of each rule; None rejects every episode that breaks a rule.
      duplicates: the result of `FindDuplicateEpisodes`, to reject the second of two equal episodes.
      connecting: the connectors that run over accepted episodes; the result has what they return.

    Raises:
      FailedRuleError: while running, at the first violation of a rule whose policy is `fail`.
    """

    def __init__(
        self,
        options: CheckOptions | None = None,
        duplicates: beam.PCollection[Duplicates] | None = None,
        connecting: ConnectorRunner | None = None,
    ):
        super().__init__()
        self._options, self._connecting = options or CheckOptions(), connecting or ConnectorRunner.none()
        self._duplicates = duplicates

    def display_data(self) -> dict[str, Any]:
        given = {policy: ", ".join(getattr(self._options, policy)) for policy in ("accept", "repair", "fail")}
        return {**{policy: rules for policy, rules in given.items() if rules}, "duplicates": bool(self._duplicates)}

    def expand(self, episodes: beam.PCollection[Episode]) -> CheckResult:
        check = beam.ParDo(_CheckFn(self._options, self._connecting), as_side_input(self._duplicates))
        checked = episodes | "Check" >> (
            check.with_output_types(Episode, rejected=Rejection, checked=Processed).with_outputs(
                "rejected", "checked", main="accepted"
            )
        )
        report = checked.checked | "Report" >> combine_windows(_ReportCombineFn(), episodes).with_output_types(Report)
        return CheckResult(checked.accepted, checked.rejected, report)


class _ReportCombineFn(beam.CombineFn):
    """Counts records into one report per window; workers count their own first, so few values are merged."""

    def create_accumulator(self) -> Report:
        return Report()

    def add_input(self, report: Report, record: Processed) -> Report:
        return report.add(record)

    def merge_accumulators(self, reports: Iterable[Report]) -> Report:
        return Report().merge(*reports)

    def extract_output(self, report: Report) -> Report:
        return report


class _CheckFn(beam.DoFn):
    def __init__(self, options: CheckOptions, connecting: ConnectorRunner):
        self._options, self._connecting = options, connecting

    def process(self, episode: Episode, duplicates: Mapping[EpisodeKey, EpisodeKey]) -> Iterator[Any]:
        batches: list[Batch] = []
        ignored = self._connecting.ignored_values()
        marked = mark_duplicate(episode, duplicates)
        record = check_and_connect(marked, self._options, self._connecting, ignored, batches.append)
        count_verdict(record.verdict)
        for batch in batches:
            yield from batch.episodes
        if record.verdict.rejected is not None:
            yield TaggedOutput("rejected", record.verdict.rejected)
        yield TaggedOutput("checked", record)


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
    for mark, index, position in scan(files, number, segment).tolist():
        yield mark, (index, position)


def _keep_equal(mark: int, places: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    equal = list(places)
    return equal if len(equal) > 1 else []


def _hash(element: tuple[int, dict[str, Iterable[Any]]], dataset: str, files: RecordFormat) -> Iterator[Hashed]:
    """The hashes of a segment's records whose fingerprint is not unique."""
    _, group = element
    ((split, segment),), positions = group["piece"], sorted(group["positions"])
    yield from confirm(dataset, files, split, segment, np.array(positions, np.int64))


@beam.typehints.with_input_types(Report)
class WriteReport(beam.PTransform[Report, Report]):
    """Writes a PCollection of one `Report` to a file as JSON, and returns the PCollection."""

    def __init__(self, path: str):
        super().__init__()
        self._path = path

    def expand(self, report: beam.PCollection[Report]) -> beam.PCollection[Report]:
        refuse_windows(type(self).__name__, report)
        return report | "Write" >> beam.Map(_write, self._path).with_output_types(Report)


def _write(report: Report, path: str) -> Report:
    storage.write_text(path, encode(report))
    return report
