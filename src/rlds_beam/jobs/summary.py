"""The stage of `check`, `stats`, and `report`: reads and checks every range, and summarizes its episodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rlds_beam import storage
from rlds_beam.checking.rules import CheckOptions
from rlds_beam.connectors.base import Batch
from rlds_beam.connectors.pipeline import ConnectorRunner
from rlds_beam.connectors.statistics.episode_statistics import DatasetStatistics, Groups
from rlds_beam.episodes.episode import Episode
from rlds_beam.processing.job import Job, Stage, Totals
from rlds_beam.processing.ranges import find_duplicates, fit_connectors, read_range, write_range
from rlds_beam.processing.report import Processed, Report
from rlds_beam.reading.base import Source, WorkRange
from rlds_beam.reading.plan import plan_ranges
from rlds_beam.reading.reader import EpisodeReader

if TYPE_CHECKING:
    from rlds_beam.checking.signals.table import EpisodeTable


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


@dataclasses.dataclass(frozen=True)
class Summarize(Stage):
    """Reads and checks every range, runs connectors over the accepted episodes, and summarizes them.

    Attributes:
      reader: reads the dataset.
      check: the policy of each rule.
      connecting: the connectors that run over accepted episodes.
      finisher: makes the result from the `RangeSummary` of all ranges.
      measured: an empty table for the signals; None to measure nothing.
      parts: the directory for the signals, a Parquet file for each range.
      groups: makes the `Groups` of a part of the data, by its name; None to compute no statistics.
      all_ranges: the ranges of the dataset; `job` sets them.
    """

    reader: EpisodeReader
    check: CheckOptions
    connecting: ConnectorRunner
    finisher: Callable[[RangeSummary], Any]
    measured: EpisodeTable | None = None
    parts: str = ""
    groups: Callable[[str], Groups] | None = None
    name: str = "summary"
    all_ranges: Sequence[WorkRange] = ()
    large = True

    def job(self, source: Source) -> Job:
        """The stages that summarize a dataset: the search for duplicates, fitting the connectors, and this one."""
        last, stages = dataclasses.replace(self, all_ranges=plan_ranges(source)), list[Stage]()
        duplicates, ignored = f"duplicates of {self.name}", self.connecting.ignored_values()
        if self.check.policy("duplicate_episode") != "accept":
            stages += find_duplicates(source, duplicates)
        if self.connecting.unfitted:
            name, ranges = f"fitted for {self.name}", last.all_ranges
            stages += fit_connectors(
                self.reader, self.check, self.connecting, ignored, ranges, name=name, duplicates=duplicates
            )
        return (*stages, last)

    def ranges(self, totals: Totals) -> Iterable[WorkRange]:
        return self.all_ranges

    def process(self, work: WorkRange, totals: Totals) -> RangeSummary:
        connecting = self.connecting.fit(totals.get(f"fitted for {self.name}", ()))
        duplicates = totals.get(f"duplicates of {self.name}", {})
        groups = None if self.groups is None else self.groups(str(work))
        signals = None if self.measured is None else self.measured.merge()

        def add(batch: Batch) -> None:
            if groups is not None:
                for accepted in batch.episodes:
                    groups.add(accepted)

        def measure(episode: Episode, record: Processed) -> None:
            if signals is not None and (record.written or record.verdict.rejected is not None):
                signals.add(episode, record.verdict)

        ignored = self.connecting.ignored_values()
        episodes = read_range(self.reader, work, duplicates)
        report = write_range(episodes, self.check, connecting, ignored, add, measure=measure)
        if signals is not None:
            signals.write(storage.join(self.parts, f"{work}.parquet"))
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
