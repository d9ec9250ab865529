"""The stages of a conversion, after the search for duplicates and the fitting: convert, number, commit."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from rlds_beam import storage
from rlds_beam.checking.duplicates import Duplicates
from rlds_beam.checking.rules import CheckOptions
from rlds_beam.checking.verdicts import Rejection
from rlds_beam.connectors.base import Batch
from rlds_beam.connectors.pipeline import ConnectorRunner
from rlds_beam.encoding.metadata import encode
from rlds_beam.episodes.episode import Episode
from rlds_beam.output import append, commits
from rlds_beam.output.base import GlobalIndices, Output
from rlds_beam.output.commits import EarlierOutput, RangeCommit, rejected_path
from rlds_beam.output.files import REPORT
from rlds_beam.output.plans import remove_parts
from rlds_beam.output.shards import RejectedWriter, ShardInfo, WrittenFile
from rlds_beam.processing.job import Stage, Totals
from rlds_beam.processing.ranges import RangeWriter, read_range, write_range
from rlds_beam.processing.report import Report, check_counts
from rlds_beam.reading.base import Source, WorkRange
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.worker_status import count


@dataclasses.dataclass(frozen=True)
class OpenOutput(Stage):
    """Prepares the output when the job runs, not when it is planned: the pending ranges.

    Attributes:
      open: prepares the output, and returns the ranges.
    """

    open: Callable[[], Sequence[WorkRange]]
    name = "pending"

    def finish(self, total: Any, totals: Totals) -> Sequence[WorkRange]:
        return self.open()


@dataclasses.dataclass(frozen=True)
class RangeConverter:
    """Converts the episodes of a range into finished files. Picklable.

    Attributes:
      check: decides what happens to episodes that break a rule.
      connecting: runs the connectors on accepted episodes.
      output: the output, in a directory prepared by `directory.make_ready`.
      plan: the job's `OutputPlan.digest`.
    """

    check: CheckOptions
    connecting: ConnectorRunner
    output: Output
    plan: str = ""

    def convert(
        self,
        work: WorkRange,
        episodes: Iterable[Episode],
        *,
        edited: bool = False,
        reject: Callable[[RejectedWriter, Rejection], object] = RejectedWriter.add,
    ) -> RangeCommit:
        """Checks, converts, and writes one range, then commits it.

        Files get their final names only when the range is complete, and converting it again gives the same bytes.

        Args:
          work: the range.
          episodes: its episodes (`read_range`).
          edited: whether they may differ from their records, so that an output must not copy these.
          reject: called with the writer of the range's rejected records, and each of these.

        Raises:
          FailedRuleError: a rule whose policy is `fail` is broken.
          NotVerifiedError: the number of written items differs from the prediction.
        """
        output, ignored = self.output, self.connecting.ignored_values(self.output.ignored_values)
        for file in output.files(work):
            storage.below(output.directory, file)  # also for a user's output
        writer = output.open_range(work)

        def write(batch: Batch) -> None:
            writer.write(batch.replace(read=None) if edited else batch)

        try:
            with RejectedWriter(rejected_path(output.directory, work)) as rejected:
                add = functools.partial(reject, rejected)
                report = write_range(episodes, self.check, self.connecting, ignored, write, add)
                return finish_range(output, work, writer, report, rejected.commit(), self.plan)
        finally:
            writer.abort()


def finish_range(
    output: Output,
    work: WorkRange,
    writer: RangeWriter,
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
    report.unused = dict(getattr(writer, "unused_steps", {}))
    commit = RangeCommit(
        split=work.split, index=work.index, of=work.of, files=written, rejected=rejected, report=report, plan=plan
    )
    commits.commit_range(output.directory, commit)
    return commit


@dataclasses.dataclass(frozen=True)
class ConvertRanges(Stage):
    """Reads and converts ranges.

    One worker processes a whole range, episode by episode, because a shard is finished only when its range is. The
    shard is then renamed atomically, so a killed run loses only the ranges in progress.

    Attributes:
      reader: reads the dataset.
      converter: converts the episodes of a range.
      pending: the ranges to convert; None for those of `OpenOutput`.
    """

    reader: EpisodeReader
    converter: RangeConverter
    pending: Sequence[WorkRange] | None = None
    name = "convert"

    def ranges(self, totals: Totals) -> Sequence[WorkRange]:
        pending: Sequence[WorkRange] = totals[OpenOutput.name] if self.pending is None else self.pending
        return pending

    def convert_range(self, work: WorkRange, duplicates: Duplicates, results: Sequence[Any] = ()) -> RangeCommit:
        """Converts a range, unless it is already finished because a runner restarted the job.

        Args:
          results: the results of fitted connectors (`FitConnectors`).

        Raises: as `RangeConverter.convert`.
        """
        converter = self.converter
        done = commits.read_commit(converter.output.directory, work, converter.plan)
        if done is not None:
            return done
        converter = dataclasses.replace(converter, connecting=converter.connecting.fit(results))
        return converter.convert(work, read_range(self.reader, work, duplicates))

    def process(self, work: WorkRange, totals: Totals) -> None:
        self.convert_range(work, totals.get("duplicates", {}), totals.get("fitted", ()))
        count(ranges=1)


@dataclasses.dataclass(frozen=True)
class NumberRanges(Stage):
    """Completes the ranges' files when all are finished (`GlobalIndices.finish_range`)."""

    output: GlobalIndices
    works: Sequence[WorkRange]
    name = "number"

    def ranges(self, totals: Totals) -> list[tuple[RangeCommit, Any]]:
        """The commit of each finished range, and the indices its files need; none if an earlier run finished it all."""
        if not totals.get(OpenOutput.name, True) and commits.load_manifest(self.output.directory) is not None:
            return []  # what the indices are made of may be removed already
        committed = commits.read_commits(self.output.directory)
        done = [committed[str(work)] for work in self.works if str(work) in committed]
        if len(done) < len(self.works):
            return []  # reported by `commits.commit_dataset`
        return list(zip(done, self.output.global_indices(done), strict=True))

    def describe(self, work: tuple[RangeCommit, Any]) -> str:
        return f"{work[0].range}, its numbers"

    def process(self, work: tuple[RangeCommit, Any], totals: Totals) -> None:
        """Completes a range's files and commits it again with their new checksums.

        Files that it no longer has are removed afterward.
        """
        commit, numbers = work
        finished = commit
        if commit.numbers != numbers:
            # A runner may repeat a range that is already completed and whose first files are gone.
            finished = commits.read_commits(self.output.directory, [commit.range]).get(commit.range, commit)
        if finished.numbers != numbers:
            finished = self.output.finish_range(finished, numbers)
            size = sum(file.shard.bytes for file in finished.kept)
            report = msgspec.structs.replace(finished.report, bytes_written=size)
            finished = msgspec.structs.replace(finished, numbers=numbers, report=report)
            commits.commit_range(self.output.directory, finished)
        written = self.output.files(WorkRange(commit.split, commit.index, commit.of, ()))
        remove_parts(self.output.directory, {*written} - {*finished.names})


@dataclasses.dataclass(frozen=True)
class DatasetCommitter:
    """Finishes the dataset when all of its ranges are finished. Picklable.

    Attributes:
      source: the input dataset.
      check: the same as for the ranges.
      output: the output.
      ranges: all ranges of the plan.
      dataset_report: the report on the dataset as a whole (`processing.report.check_source`).
      plan: the job's `OutputPlan.digest`.
      earlier: the output that is appended to; None if there is none.
    """

    source: Source
    check: CheckOptions
    output: Output
    ranges: Sequence[WorkRange]
    dataset_report: Report
    plan: str | None = None
    earlier: EarlierOutput | None = None

    @property
    def finisher(self) -> NumberRanges | None:
        """Completes the ranges' files before the dataset is committed; None if they need nothing."""
        return NumberRanges(self.output, self.ranges) if isinstance(self.output, GlobalIndices) else None

    def commit(self) -> Report:
        """Checks all files, writes the report and the metadata, and last the manifest; after the `finisher`.

        Raises:
          NotVerifiedError: the files differ from the prediction.
          FailedRuleError: a shard holds an unexpected number of records, and the policy of `short_shard` is `fail`.
        """
        directory = self.output.directory
        reports = commits.read_reports(directory, self.ranges)
        report = self.dataset_report.merge(*reports)
        report.check()
        report = report.merge(check_counts(self.source, report.shards, self.check))
        report.left_out = dict(self.output.describe().left_out)
        name, whole, earlier = self.source.name, report, self.earlier
        if earlier is not None:  # what the whole has is written next to the new files
            name, whole = str(earlier.manifest["name"]), commits.read_report(earlier.directory).merge(report)
        storage.write_text(storage.below(directory, REPORT), encode(whole))
        commits.commit_dataset(directory, name, self.ranges, self.output.complete, self.plan, earlier)
        if earlier is not None:
            append.publish(earlier.directory)
        return report


@dataclasses.dataclass(frozen=True)
class CommitDataset(Stage):
    """Checks all ranges, and writes the manifest last: the `Report`."""

    committer: DatasetCommitter
    name = "commit"

    def finish(self, total: Any, totals: Totals) -> Report:
        directory = self.committer.output.directory
        if not totals.get(OpenOutput.name, True) and commits.load_manifest(directory) is not None:
            return commits.read_report(directory)  # an earlier run finished it
        return self.committer.commit()
