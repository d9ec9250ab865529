"""Reads and checks the episodes of a work range, and summarizes them, for jobs that write no items."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from rlds_beam.checking.duplicates import mark_duplicate
from rlds_beam.checking.rules import CheckOptions
from rlds_beam.checking.signals.table import EpisodeTable
from rlds_beam.checking.validation import screen_batches
from rlds_beam.checking.verdicts import count_verdict
from rlds_beam.connectors.base import Batch
from rlds_beam.connectors.pipeline import ConnectorRunner
from rlds_beam.connectors.statistics.episode_statistics import DatasetStatistics, Groups
from rlds_beam.processing.job import Job, Stage, Totals
from rlds_beam.processing.ranges import check_and_connect, find_duplicates, fit_connectors
from rlds_beam.processing.report import Report
from rlds_beam.reading.base import Source, WorkRange
from rlds_beam.reading.plan import plan_ranges
from rlds_beam.reading.reader import EpisodeReader

_MAX_FILES = 1000
"""The most segments of files that become ranges of their own."""


@dataclasses.dataclass(frozen=True)
class RangeSummary:
    """The findings of some ranges.

    Attributes:
      report: the report on the records read.
      statistics: the statistics of the accepted episodes, after any connectors; empty if not computed.
      signals: the signals of every record, as read, except those of which connectors kept nothing. None if they are not
        measured.
    """

    report: Report
    statistics: DatasetStatistics
    signals: EpisodeTable | None

    def to_json(self) -> dict[str, Any]:
        """The statistics and the report."""
        return {"statistics": self.statistics.to_json(), "report": msgspec.to_builtins(self.report)}


def plan_summaries(source: Source) -> Sequence[WorkRange]:
    """The ranges to summarize, the same on every run.

    Ranges of several small files are cut at the files, which balances the workers, unless there are too many.
    """
    ranges = plan_ranges(source)
    if sum(len(work.segments) for work in ranges) > _MAX_FILES:
        return ranges
    cut: list[WorkRange] = []
    for split, works in itertools.groupby(ranges, key=lambda work: work.split):
        segments = [segment for work in works for segment in work.segments]
        cut += (WorkRange(split, i, len(segments), (segment,)) for i, segment in enumerate(segments))
    return tuple(cut)


def summarize(
    source: Source,
    reader: EpisodeReader,
    check: CheckOptions,
    connecting: ConnectorRunner,
    finish: Callable[[RangeSummary], Any],
    *,
    measured: EpisodeTable | None = None,
    groups: Callable[[str], Groups] | None = None,
    name: str = "summary",
) -> Job:
    """The stages that read and check a dataset, and run connectors over the accepted episodes.

    Args:
      source: the dataset.
      reader: reads it.
      check: the policy of each rule.
      connecting: the connectors that run over accepted episodes.
      finish: makes the result of the last stage from the `RangeSummary` of all ranges.
      measured: an empty table for the signals; None to measure nothing.
      groups: makes the `Groups` of a part of the data, by its name; None to compute no statistics.
      name: the name of the last stage.
    """
    duplicates, fitted = f"duplicates of {name}", f"fitted for {name}"
    stages: list[Stage] = []
    if check.policy("duplicate_episode") != "accept":
        stages += find_duplicates(source, duplicates)
    if connecting.unfitted:
        ignored = connecting.ignored_values()
        stages += fit_connectors(
            reader, check, connecting, ignored, plan_ranges(source), name=fitted, duplicates=duplicates
        )
    ranges = plan_summaries(source)
    last = Summarize(name, ranges, reader, check, connecting, measured, groups, duplicates, fitted, finish)
    return (*stages, last)


@dataclasses.dataclass(frozen=True)
class Summarize(Stage):
    """Reads, checks, connects, and summarizes every range; see `summarize`."""

    name: str
    all_ranges: Sequence[WorkRange]
    reader: EpisodeReader
    check: CheckOptions
    connecting: ConnectorRunner
    measured: EpisodeTable | None
    groups: Callable[[str], Groups] | None
    duplicates: str
    fitted: str
    finisher: Callable[[RangeSummary], Any]

    def ranges(self, totals: Totals) -> Iterable[WorkRange]:
        return self.all_ranges

    def process(self, work: WorkRange, totals: Totals) -> RangeSummary:
        connecting, duplicates = self.connecting.fit(totals.get(self.fitted, ())), totals.get(self.duplicates, {})
        report, ignored = Report(), self.connecting.ignored_values()
        groups = None if self.groups is None else self.groups(str(work))
        signals = None if self.measured is None else self.measured.merge()

        def add(batch: Batch) -> None:
            if groups is not None:
                for accepted in batch.episodes:
                    groups.add(accepted)

        for segment in work.segments:
            for episode, sound in screen_batches(self.reader.batches(work.split, segment)):
                episode = mark_duplicate(episode, duplicates)
                record = check_and_connect(episode, self.check, connecting, ignored, add, sound=sound)
                report.add(record)
                count_verdict(record.verdict)
                if signals is not None and (record.written or record.verdict.rejected is not None):
                    signals.add(episode, record.verdict)
                del episode, record  # They may be large: free them before reading the next.
        return RangeSummary(report, DatasetStatistics() if groups is None else groups.finish(), signals)

    def merge(self, partials: Iterable[RangeSummary]) -> RangeSummary:
        summaries = [*partials]
        signals = [summary.signals for summary in summaries if summary.signals is not None]
        return RangeSummary(
            Report().merge(*(summary.report for summary in summaries)),
            DatasetStatistics().merge(*(summary.statistics for summary in summaries)),
            None if self.measured is None else self.measured.merge(*signals),
        )

    def finish(self, total: RangeSummary, totals: Totals) -> Any:
        return self.finisher(total)
