"""The keyed sinks of episodes: those of `WriteEpisodes`, `WriteToRlds`, and `write_rlds`."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from rlds_beam.checking.rules import CheckOptions
from rlds_beam.checking.verdicts import Rejection
from rlds_beam.connectors.base import Batch
from rlds_beam.connectors.pipeline import ConnectorRunner
from rlds_beam.episodes.episode import Episode
from rlds_beam.formats.outputs import check_files
from rlds_beam.output.base import Output, with_ranges
from rlds_beam.output.commits import rejected_path
from rlds_beam.output.plans import OUTPUT_FORMAT, OutputPlan
from rlds_beam.output.range_conversion import DatasetCommitter, finish_range
from rlds_beam.output.shards import RejectedWriter
from rlds_beam.processing.ranges import write_range
from rlds_beam.processing.report import Report
from rlds_beam.reading.base import Source, WorkRange
from rlds_beam.writing.keyed_parts import FROM, KeyedSink, PlacedElement


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpisodeSink(KeyedSink):
    """Checks the episodes of each range, and writes them as a conversion does.

    Attributes:
      source: the dataset of the episodes, without its shards.
      output: the output, which does not know its ranges yet.
      to: the name of its format.
      check: the policy of each rule.
      connecting: the connectors that run over the accepted episodes.
      report: the report on the dataset as a whole.
      copies_records: whether the episodes are as their records say. Otherwise the records are not copied.
    """

    source: Source
    output: Output
    to: str
    check: CheckOptions
    connecting: ConnectorRunner
    report: Report

    copies_records: ClassVar[bool] = False

    @abc.abstractmethod
    def read(self, placed: Sequence[PlacedElement]) -> Iterator[tuple[Episode, bool]]:
        """Stored episodes, in order, each with whether its numbers are sound."""

    def describe_rejected(self, rejection: Rejection, placed: Sequence[PlacedElement]) -> dict[str, Any]:
        """The line of a rejected record in `rejected/`, if the sink keeps it."""
        del placed
        return rejection.to_json()

    def plan(self, ranges: Sequence[WorkRange]) -> DatasetCommitter:
        output = with_ranges(self.output, ranges)
        check_files(output, ranges, self.to)
        return DatasetCommitter(self.source, self.check, output, tuple(ranges), self.report, self.output_plan.digest)

    def write_range(self, work: WorkRange, placed: Sequence[PlacedElement], plan: DatasetCommitter) -> list[Rejection]:
        ignored = self.connecting.ignored_values(plan.output.ignored_values)
        rejections, writer = list[Rejection](), plan.output.open_range(work)

        def write(batch: Batch) -> None:
            writer.write(batch if self.copies_records else batch.replace(read=None))

        try:
            with RejectedWriter(rejected_path(self.directory, work)) as rejected:

                def reject(rejection: Rejection) -> None:
                    if self.keeps_rejected:
                        rejected.write(rejection.payload, self.describe_rejected(rejection, placed), rejection.key)
                    else:
                        rejections.append(rejection)

                report = write_range(self.read(placed), self.check, self.connecting, ignored, write, reject)
                finish_range(plan.output, work, writer, report, rejected.commit(), self.output_plan.digest)
            return rejections
        finally:
            writer.abort()

    def commit(self, plan: DatasetCommitter) -> Report:
        return plan.commit()


def plan_output(to: str, source: Source, check: CheckOptions, output: Output, **more: Any) -> OutputPlan:
    """The plan of an episode sink, without its ranges: their number is not known yet.

    Args:
      more: what else the bytes depend on.
    """
    checked = dataclasses.asdict(check)
    del checked["fail"]  # it may end a job, but does not change what is written
    content = {
        "format": OUTPUT_FORMAT,
        "from": FROM,
        "to": to,
        "dataset": source.dataset,
        "splits": {split.name: {"slice": [split.start, split.stop]} for split in source.splits},
        "check": checked,
    }
    return OutputPlan.of({**content, **output.plan(), **more})
