"""The work of a conversion: one range of input at a time, then the dataset."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from rlds_beam import storage
from rlds_beam.checking.rules import CheckOptions
from rlds_beam.connectors.runner import ConnectorRunner
from rlds_beam.encoding.checked_json import read_json
from rlds_beam.output import append, commits, manifest
from rlds_beam.output.base import EarlierOutput, FileRangeWriter, Output
from rlds_beam.output.commits import RangeCommit, rejected_path
from rlds_beam.output.completion import GlobalIndices, RangeFinisher
from rlds_beam.output.files import REPORT
from rlds_beam.output.shards import RejectedWriter, ShardInfo, WrittenFile
from rlds_beam.processing.dataset import check_counts
from rlds_beam.processing.ranges import Duplicates, write_range
from rlds_beam.processing.report import Report
from rlds_beam.reading.base import Source
from rlds_beam.reading.changes import Snapshot
from rlds_beam.reading.plan import WorkRange
from rlds_beam.reading.reader import EpisodeReader


@dataclasses.dataclass(frozen=True)
class RangeConverter:
    """Converts a range of input into a finished file. Picklable.

    Attributes:
      reader: reads the dataset.
      check: decides what happens to episodes that break a rule.
      connecting: runs the connectors on accepted episodes.
      output: the output, in a directory prepared by `directory.open_output`.
      plan: the job's `OutputPlan.digest`.
    """

    reader: EpisodeReader
    check: CheckOptions
    connecting: ConnectorRunner
    output: Output
    plan: str = ""

    def convert_range(self, work: WorkRange, duplicates: Duplicates, results: Sequence[Any] = ()) -> RangeCommit:
        """Reads, checks, converts, and writes one range, then commits it.

        Files get their final names only when the range is complete, and converting it again gives the same bytes. If
        it is already finished because a runner restarted the job, it is left as it is.

        Args:
          results: the results of fitted connectors (`FitConnectors`).

        Raises:
          FailedRuleError: a rule whose policy is `fail` is broken.
          NotVerifiedError: the number of written items differs from the prediction.
        """
        output, directory = self.output, self.output.directory
        done = commits.read_commit(directory, work, output.files(work), self.plan)
        if done is not None:
            return done
        for file in output.files(work):
            storage.below(directory, file)  # also for a user's output
        writer = output.open_range(work)
        try:
            with RejectedWriter(rejected_path(directory, work)) as rejected:
                connecting = self.connecting.fit(results)
                ignored = connecting.ignored_values(output.ignored_values)
                report = write_range(
                    self.reader, work, self.check, connecting, ignored, duplicates, writer, rejected.add
                )
                return finish_range(output, work, writer, report, rejected.commit(), self.plan)
        finally:
            writer.abort()


def finish_range(
    output: Output,
    work: WorkRange,
    writer: FileRangeWriter,
    report: Report,
    rejected: ShardInfo | None,
    plan: str,
) -> RangeCommit:
    """Completes the files of a range, adds their counts to its report, and commits it.

    Args:
      rejected: the file of its rejected records, if any.
      plan: the job's `OutputPlan.digest`.

    Raises:
      NotVerifiedError: the number of written items differs from the prediction.
    """
    written = writer.finish()
    if isinstance(written, ShardInfo):
        file = output.file(work)
        written = (WrittenFile(file, written, writer.predicted, output.list_sidecars(file)),)
    report.items_predicted = writer.predicted
    report.items_written = sum(file.shard.records for file in written if file.role == "items")
    report.bytes_written = sum(file.shard.bytes for file in written if file.role != "temporary")
    report.unused = getattr(writer, "unused_steps", {})
    return commits.commit_range(output.directory, work, written, rejected=rejected, report=report, plan=plan)


@dataclasses.dataclass(frozen=True)
class DatasetCommitter:
    """Finishes the dataset when all of its ranges are finished. Picklable.

    Attributes:
      source: the input dataset.
      check: the same as for the ranges.
      output: the output.
      ranges: all ranges of the plan.
      dataset_report: the report on the dataset as a whole (`processing.dataset.check_source`).
      plan: the job's `OutputPlan.digest`.
      snapshot: a snapshot of the source's files.
    """

    source: Source
    check: CheckOptions
    output: Output
    ranges: tuple[WorkRange, ...]
    dataset_report: Report
    plan: str | None = None
    snapshot: Snapshot | None = None

    @property
    def finisher(self) -> RangeFinisher | None:
        """Completes the ranges' files before the dataset is committed; None if they need nothing."""
        return RangeFinisher(self.output, self.ranges) if isinstance(self.output, GlobalIndices) else None

    def commit(self, *, numbered: bool = False) -> Report:
        """Checks all files, writes the report and the metadata, and last the manifest.

        Args:
          numbered: whether the `finisher` has already completed the ranges' files.

        Raises:
          NotVerifiedError: the files differ from the prediction, or an input file changed during the job.
          FailedRuleError: a shard holds an unexpected number of records, and the policy of `short_shard` is `fail`.
        """
        directory = self.output.directory
        if self.snapshot is not None:
            self.snapshot.verify_all()
        if not numbered and (finisher := self.finisher) is not None:
            for commit, numbers in finisher.commits():
                finisher.finish(commit, numbers)
        reports = commits.read_reports(directory, self.ranges)
        report = self.dataset_report.merge(*reports)
        report.check()
        report = report.merge(check_counts(self.source, report.shards, self.check))
        report.left_out = dict(self.output.describe().left_out)
        for file in self.output.metadata:
            storage.below(directory, file)
        self.write(report)
        return report

    def write(self, report: Report) -> None:
        """Writes the report, the metadata, and the manifest."""
        directory = self.output.directory
        storage.write_text(storage.below(directory, REPORT), json.dumps(report.to_json(), indent=2) + "\n")
        manifest.commit_dataset(directory, self.source.name, self.ranges, self.output.complete, self.plan)


@dataclasses.dataclass(frozen=True)
class AppendCommitter(DatasetCommitter):
    """Finishes an append when all of its ranges are finished. Picklable.

    Attributes:
      earlier: the output that is appended to.
    """

    earlier: EarlierOutput | None = None

    def write(self, report: Report) -> None:
        """Writes what the whole has next to the new files, then moves all of it into the output."""
        assert self.earlier is not None
        directory, earlier = self.output.directory, self.earlier
        path = storage.below(earlier.directory, REPORT)
        whole = Report.from_json(read_json(path), path).merge(report)
        storage.write_text(storage.below(directory, REPORT), json.dumps(whole.to_json(), indent=2) + "\n")
        name = str(earlier.manifest["name"])
        manifest.commit_dataset(directory, name, self.ranges, self.output.complete, self.plan, earlier)
        append.publish(earlier.directory)
