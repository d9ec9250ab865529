"""Checks episodes: passes on the good ones, sets the others aside, and counts them all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import TaggedOutput

from rlds_beam.checking.duplicates import Duplicates, marked
from rlds_beam.checking.options import CheckOptions
from rlds_beam.checking.signals.table import EpisodeTable
from rlds_beam.checking.verdicts import Rejection, count_verdict
from rlds_beam.connectors.base import Batch
from rlds_beam.connectors.runner import ConnectorRunner
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.keys import EpisodeKey
from rlds_beam.processing.ranges import RangeFitter, check_and_connect
from rlds_beam.processing.report import Report
from rlds_beam.reading.base import Source
from rlds_beam.reading.framing import Framing
from rlds_beam.reading.plan import plan_ranges
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.transforms.duplicates import FindDuplicateEpisodes, as_side_input
from rlds_beam.transforms.elements import check_element, in_global_window
from rlds_beam.transforms.jobs.fitting import FitConnectors, Results, as_results
from rlds_beam.transforms.reading import ReadFromRlds


class CheckResult(NamedTuple):
    """The outputs of `ValidateEpisodes`.

    Attributes:
      accepted: a PCollection of `Episode`, repaired if requested.
      rejected: a PCollection of `Rejection`: the key, the violations, and the original bytes.
      report: a PCollection of one `Report` on all records read.
      signals: a PCollection of one `EpisodeTable`: the signals of every record, as read, except those of which
        connectors kept nothing. None unless they are measured.
    """

    accepted: beam.PCollection[Episode]
    rejected: beam.PCollection[Rejection]
    report: beam.PCollection[Report]
    signals: beam.PCollection[EpisodeTable] | None = None


class ValidateEpisodes(beam.PTransform[Episode, Any]):
    """Checks every episode against the rules, in one pass. Without Beam: `validate_episode`.

    Args:
      options: the policy of each rule; None rejects every episode that breaks a rule.
      duplicates: the result of `FindDuplicateEpisodes`, to reject the second of two equal episodes.
      connecting: the connectors that run over accepted episodes; the result has what they return.
      fitted: the result of `FitConnectors`; None if no connector needs fitting.
      measured: an empty table for the signals; None to measure nothing.

    Raises:
      FailedRuleError: while running, at the first violation of a rule whose policy is `fail`.
    """

    def __init__(
        self,
        options: CheckOptions | None = None,
        duplicates: beam.PCollection[Duplicates] | None = None,
        connecting: ConnectorRunner | None = None,
        fitted: beam.PCollection[Results] | None = None,
        measured: EpisodeTable | None = None,
    ):
        super().__init__()
        self._measured = measured
        self._options, self._connecting = options or CheckOptions(), connecting or ConnectorRunner.none()
        self._duplicates, self._fitted = duplicates, fitted

    def expand(self, episodes: beam.PCollection[Episode]) -> CheckResult:
        side_outputs = ["rejected", "report"] if self._measured is None else ["rejected", "report", "signals"]
        checked = episodes | "Check" >> beam.ParDo(
            _CheckFn(self._options, self._connecting, self._measured),
            as_side_input(self._duplicates),
            as_results(self._fitted),
        ).with_outputs(*side_outputs, main="accepted")
        report = checked.report | "MergeReports" >> beam.CombineGlobally(_merge)
        if self._measured is None:
            return CheckResult(checked.accepted, checked.rejected, report)
        signals = checked.signals | "MergeSignals" >> beam.CombineGlobally(_merge_signals, self._measured)
        return CheckResult(checked.accepted, checked.rejected, report, signals)


def _merge(reports: Iterable[Report]) -> Report:
    return Report().merge(*reports)


def _merge_signals(tables: Iterable[EpisodeTable], measured: EpisodeTable) -> EpisodeTable:
    return measured.merge(*tables)


class CheckDataset(beam.PTransform):
    """Reads a dataset, checks every episode, and runs connectors over the accepted ones: a `CheckResult`.

    Args:
      source: the dataset.
      options: the policy of each rule.
      connecting: the connectors.
      measured: an empty table for the signals; None to measure nothing.
    """

    def __init__(
        self, source: Source, options: CheckOptions, connecting: ConnectorRunner, measured: EpisodeTable | None = None
    ):
        super().__init__()
        self._source, self._options, self._connecting, self._measured = source, options, connecting, measured

    def expand(self, root: Any) -> CheckResult:
        source, connecting, framing, fitted = self._source, self._connecting, Framing(self._source), None
        look = self._options.policy("duplicate_episode") != "accept"
        duplicates = root | FindDuplicateEpisodes(source, framing) if look else None
        if connecting.unfitted:
            fitter = RangeFitter(EpisodeReader(source), self._options, connecting, connecting.ignored_values())
            ranges = plan_ranges(source, starts=framing.record_starts)
            fitted = root | FitConnectors(fitter, ranges, duplicates)
        episodes = root | ReadFromRlds(source, framing=framing)
        checked: CheckResult = episodes | ValidateEpisodes(
            self._options, duplicates, connecting, fitted, self._measured
        )
        return checked


class _CheckFn(beam.DoFn):
    def __init__(self, options: CheckOptions, connecting: ConnectorRunner, measured: EpisodeTable | None):
        self._options, self._connecting, self._measured = options, connecting, measured

    def start_bundle(self) -> None:
        self._report = Report()
        self._signals = None if self._measured is None else self._measured.merge()
        self._fitted: ConnectorRunner | None = None

    def process(
        self, episode: Episode, duplicates: Mapping[EpisodeKey, EpisodeKey], results: Sequence[Any]
    ) -> Iterator[Any]:
        check_element("ValidateEpisodes", episode, Episode)
        if self._fitted is None:
            self._fitted = self._connecting.fit(results)
        batches: list[Batch] = []
        ignored = self._connecting.ignored_values()
        record = check_and_connect(
            marked(episode, duplicates), self._options, self._fitted, ignored, batches.append, sound=episode.sound
        )
        verdict = record.verdict
        self._report.add(record)
        if self._signals is not None and (record.written or verdict.rejected is not None):
            self._signals.add(episode, verdict)
        count_verdict(verdict)
        for batch in batches:
            yield from batch.episodes
        if verdict.rejected is not None:
            yield TaggedOutput("rejected", verdict.rejected)

    def finish_bundle(self) -> Iterator[Any]:
        # One report per bundle, not per episode, keeps the merge small.
        yield TaggedOutput("report", in_global_window(self._report))
        if self._signals is not None:
            yield TaggedOutput("signals", in_global_window(self._signals))
