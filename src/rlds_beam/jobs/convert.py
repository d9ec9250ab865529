"""Prepares a conversion: everything that can be checked before the first episode is read."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rlds_beam import storage
from rlds_beam.checking.rules import CheckOptions
from rlds_beam.connectors.base import with_attributes
from rlds_beam.connectors.pipeline import ConnectorRunner
from rlds_beam.errors import DiskError, UsageError
from rlds_beam.formats.inputs import open_input, prepare_input
from rlds_beam.formats.outputs import check_files, configuration_for, create_output
from rlds_beam.formats.registry import FORMATS
from rlds_beam.jobs.options import ConvertOptions
from rlds_beam.output import directory
from rlds_beam.output.append import append_plan, continue_output, number_ranges, open_earlier, select_new
from rlds_beam.output.base import Output
from rlds_beam.output.commits import (
    EarlierOutput,
    read_commits,
    read_report,
    read_reports,
    remove_temporary,
)
from rlds_beam.output.directory import lock_output, read_fitted, write_fitted
from rlds_beam.output.files import JOB
from rlds_beam.output.plans import OUTPUT_FORMAT, OutputPlan, encode_inputs, read_plan
from rlds_beam.output.range_conversion import (
    CommitDataset,
    ConvertRanges,
    DatasetCommitter,
    OpenOutput,
    RangeConverter,
)
from rlds_beam.processing.job import Job, Stage, run_stages
from rlds_beam.processing.ranges import find_duplicates, fit_connectors
from rlds_beam.processing.report import Report, check_counts
from rlds_beam.reading.base import Source, WorkRange
from rlds_beam.reading.changes import Snapshot
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.reading.shard_list import RangeList
from rlds_beam.user_functions import find_version

if TYPE_CHECKING:
    from rlds_beam.recording.record_options import RecordOptions

_ADVICE = "once the file no longer changes, run the same command again with --overwrite"


@dataclasses.dataclass(frozen=True)
class ConvertJob:
    """The work of a conversion, and its progress.

    Attributes:
      source: the dataset.
      ranges: all ranges of the plan.
      check: the policy of each rule.
      connecting: the connectors that run over accepted episodes.
      output: the output to write.
      dataset_report: the report on the dataset as a whole.
      plan: everything that the output's bytes depend on, and its files.
      snapshot: the snapshot of the source's files.
      overwrite: whether it replaces the output of an earlier job, or an unfinished append of other files.
      earlier: the finished output that it adds to (`source` has only the shards that are new); None if it begins one.
      known: the number of shards that the earlier output has already.
      left: the paths of files that `--append` leaves for the next time, because they are still written to.
    """

    source: Source
    ranges: Sequence[WorkRange]
    check: CheckOptions
    connecting: ConnectorRunner
    output: Output
    dataset_report: Report
    plan: OutputPlan
    snapshot: Snapshot
    overwrite: bool = False
    earlier: EarlierOutput | None = None
    known: int = 0
    left: Sequence[str] = ()

    def find_pending(self) -> Sequence[WorkRange] | None:
        """Finds the unfinished ranges; None if an earlier run finished and committed the dataset.

        Reads only the output's commits, and writes nothing.

        Raises:
          UsageError: the output directory holds something else.
        """
        if self.earlier is not None and read_plan(self.target) != self.earlier.plan:  # a bucket has no lock
            raise UsageError(f"another command changed {self.target} meanwhile: run the same command again")
        if self.adds_nothing:
            return None
        directory.check_output(self.directory, self.plan, overwrite=self.overwrite)
        finished = directory.Finished() if self.overwrite else directory.find_finished(self.directory)
        if finished.complete:
            return None
        left = [i for i, work in enumerate(self.ranges) if str(work) not in finished.ranges]
        return self.ranges.choose(left) if isinstance(self.ranges, RangeList) else [self.ranges[i] for i in left]

    def make_ready(self) -> None:
        """Prepares the output directory, after `find_pending`. Raises UsageError if it cannot be written to."""
        try:
            directory.make_ready(self.directory, self.plan, overwrite=self.overwrite)
        except OSError as error:
            disk = DiskError.from_errno(error.errno or 0, self.directory)
            raise UsageError(
                str(disk or f"{self.directory} cannot be written to: {error.strerror or error}")
            ) from error

    def convert_here(self) -> Report:
        """Converts all pending ranges in this process, one after the other, without Beam.

        Does not find duplicates, and connectors must not need fitting.
        """
        with lock_output(self.target):
            if not self.adds_nothing:
                run_stages((OpenOutput(self.open), self.converter, *self._commits()))
            return self.read_report()

    def stages(self, pending: Sequence[WorkRange] | None = None) -> Job:
        """The stages of the job; the result of the last is the report.

        Args:
          pending: the unfinished ranges, if the output is ready; by default it is made ready when the job runs.
        """
        stages: list[Stage] = []
        if pending is None:
            stages.append(OpenOutput(self.open))
        if self.finds_duplicates:
            stages += find_duplicates(self.source)
        connecting = self.connecting
        if connecting.unfitted and (results := read_fitted(self.directory, self.plan)) is not None:
            connecting = connecting.fit(results)
        reads = self.converter
        converter = dataclasses.replace(reads.converter, connecting=connecting)
        if connecting.unfitted:
            ignored = connecting.ignored_values(self.output.ignored_values)
            keep = functools.partial(write_fitted, self.directory, self.plan)
            stages += fit_connectors(reads.reader, self.check, connecting, ignored, self.ranges, keep)
        return (*stages, ConvertRanges(reads.reader, converter, pending), *self._commits())

    def _commits(self) -> Job:
        """The stages after the conversion of the ranges."""
        commit, finisher = CommitDataset(self.committer), self.committer.finisher
        return (commit,) if finisher is None else (finisher, commit)

    def remove_temporary(self) -> None:
        """Removes temporary files of a run that was killed after it had committed the dataset."""
        commits = read_commits(self.directory)
        remove_temporary(self.directory, commits.values())
        storage.rmtree(storage.join(self.directory, JOB))

    def open(self) -> Sequence[WorkRange]:
        """Prepares the output and returns the pending ranges; raises as `find_pending` and `make_ready` do."""
        pending = self.find_pending()
        if pending is not None:
            self.make_ready()
        elif not self.adds_nothing:
            self.remove_temporary()
        return pending or ()

    @property
    def finds_duplicates(self) -> bool:
        """Whether the job looks for duplicate records."""
        return self.source.has_files and "duplicate_episode" not in self.check.accept

    @property
    def shards(self) -> int:
        """The number of output files of the ranges."""
        return sum(len(self.output.files(work)) for work in self.ranges)

    @property
    def directory(self) -> str:
        """The directory in which files are written."""
        return self.output.directory

    @property
    def target(self) -> str:
        """The output directory; of an append, the directory that it is added to."""
        return self.directory if self.earlier is None else self.earlier.directory

    @property
    def adds_nothing(self) -> bool:
        """Whether an append found nothing new."""
        return self.earlier is not None and not self.ranges

    @property
    def converter(self) -> ConvertRanges:
        converter = RangeConverter(self.check, self.connecting, self.output, self.plan.digest)
        return ConvertRanges(EpisodeReader(self.source, self.snapshot), converter)

    @property
    def committer(self) -> DatasetCommitter:
        return DatasetCommitter(
            self.source, self.check, self.output, self.ranges, self.dataset_report, self.plan.digest, self.earlier
        )

    def read_report(self) -> Report:
        """The report of the finished job: of an append, on what it added."""
        if self.earlier is not None:
            report = self.dataset_report.merge(*read_reports(self.target, self.ranges))
            return report.merge(check_counts(self.source, report.shards, self.check))
        return read_report(self.directory)


def prepare(options: ConvertOptions | RecordOptions) -> ConvertJob:
    """Opens the source, plans the work, and checks everything; writes nothing.

    Raises:
      UsageError: the input, the options, or the output cannot be used.
    """
    source = named = open_input(options) if isinstance(options, ConvertOptions) else options.open_source()
    configuration = configuration_for(options, source.schema)
    opened = prepare_input(options, source, configuration)
    check, connecting = CheckOptions.from_options(opened.check), opened.connecting
    snapshot, earlier, known, left = Snapshot(source, _ADVICE, by_content=True), None, 0, list[str]()
    if getattr(options, "append", False):
        _check_append(options, source, connecting)
        earlier = open_earlier(options.output)
        source, known, left = select_new(source, snapshot, earlier)
        opened = dataclasses.replace(opened, source=source)
    if earlier is not None:
        named = with_attributes(named, dataset=earlier.plan.content["dataset"])  # files are named as those there
    output = create_output(named, connecting, options.output, options)
    ranges = opened.ranges(options.shards, whole_shards=output.whole_shards)
    if earlier is None:
        output = output.with_ranges(ranges)
    else:
        ranges = number_ranges(earlier, ranges)
        output = continue_output(output, earlier, ranges, options.to)
    connectors = {"connectors": configuration.plan()} if configuration.connectors else {}
    digest, inputs = encode_inputs(source, ranges, snapshot)
    bare = ranges.bare() if isinstance(ranges, RangeList) else ranges
    content = {**_plan(source, bare, check, output, options), **connectors, "inputs": digest}
    check_files(output, bare, options.to)
    directory.check_apart(options.output, getattr(options, "input", None), "OUTPUT")
    if earlier is None:
        plan, overwrite = OutputPlan.from_content(content, inputs), options.overwrite
        directory.check_output(options.output, plan, overwrite=overwrite)
    else:  # an unfinished append of other files, or with other options, is replaced
        plan = append_plan(earlier, content, inputs, output)
        overwrite = earlier.unfinished not in (None, plan.digest)
    return ConvertJob(
        source=source,
        ranges=ranges,
        check=check,
        connecting=connecting,
        output=output,
        dataset_report=opened.report,
        plan=plan,
        snapshot=snapshot,
        overwrite=overwrite,
        earlier=earlier,
        known=known,
        left=left,
    )


def _check_append(options: ConvertOptions | RecordOptions, source: Source, connecting: ConnectorRunner) -> None:
    """Raises UsageError if `--append` cannot be used with these options."""
    if options.overwrite:
        raise UsageError("--append adds to an output and --overwrite replaces it: leave one of them out")
    if not source.has_files or not source.splits:
        raise UsageError(f"--append: {source.dataset} has no files whose content could be compared")
    if connecting.unfitted:
        raise UsageError(
            "--append: a connector is fitted to the whole dataset, whose files would all change: convert again"
        )


def _plan(
    source: Source,
    ranges: Sequence[WorkRange],
    check: CheckOptions,
    output: Output,
    options: ConvertOptions | RecordOptions,
) -> dict[str, Any]:
    own = source.plan()
    functions = {**own.pop("functions", {}), **_functions(options)}
    spans = {}  # of each split: the first number of its ranges, their number, and the number of the split's files
    for split in source.splits:
        works = [work for work in ranges if work.split == split.name]
        spans[split.name] = (works[0].index, len(works), works[0].of) if works else (0, 0, 0)
    # The options of users' sources and outputs. Our own outputs put theirs in their `plan`.
    known, names = options.with_format(), {"from_options": options.source_format, "to_options": options.to}
    users = [field for field in known.format_options() if names[field] not in FORMATS]
    own_options = {field: dataclasses.asdict(getattr(known, field)) for field in users}
    checked = dataclasses.asdict(check)
    del checked["fail"]  # it may end a job, but does not change what is written
    return {
        "format": OUTPUT_FORMAT,
        "from": options.source_format,
        "to": options.to,
        **{field: values for field, values in own_options.items() if values},
        "dataset": source.dataset,
        **own,
        "splits": {
            split.name: {
                "slice": [split.start, split.stop],
                "shards": len(split.shards),
                "ranges": spans[split.name],
            }
            for split in source.splits
        },
        "check": checked,
        **output.plan(),
        "functions": functions,
    }


def _functions(options: ConvertOptions | RecordOptions) -> dict[str, str]:
    """The versions of the user's functions and classes, by name."""
    named = {
        f"--{field.name}": getattr(group, field.name)
        for group in (*(getattr(options, field) for field in reversed(options.format_options())), options)
        for field in dataclasses.fields(group)
        if field.metadata.get("code")
    }
    named |= {"--from": options.source_format, "--to": options.to}
    return {name: find_version(name, flag) for flag, name in named.items() if name is not None and ":" in name}
