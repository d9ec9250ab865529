"""Prepares a conversion: everything that can be checked before the first episode is read."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sized
from typing import TYPE_CHECKING, Any, NamedTuple

from rlds_beam import storage
from rlds_beam.checking.rules import CheckOptions
from rlds_beam.connectors.runner import ConnectorRunner
from rlds_beam.encoding.checked_json import read_json
from rlds_beam.errors import DiskError, UsageError
from rlds_beam.formats.inputs import prepare_input
from rlds_beam.formats.outputs import configuration_for, create_output, list_files
from rlds_beam.formats.registry import FORMATS
from rlds_beam.jobs.estimates import Balance, balance_of, check_room, convert_seconds, largest_first, predict_size
from rlds_beam.jobs.options import ConvertOptions
from rlds_beam.output import directory
from rlds_beam.output.base import Output
from rlds_beam.output.commits import read_commits
from rlds_beam.output.completion import MergesRanges, RangeFinisher, with_ranges
from rlds_beam.output.directory import lock_output, read_fitted, write_fitted
from rlds_beam.output.files import COMMITS, REPORT
from rlds_beam.output.manifest import load_manifest
from rlds_beam.output.plans import OUTPUT_FORMAT, OutputPlan
from rlds_beam.output.range_conversion import DatasetCommitter, RangeConverter
from rlds_beam.output.removal import remove_temporary
from rlds_beam.processing.ranges import RangeFitter
from rlds_beam.processing.report import Report
from rlds_beam.reading.base import Source
from rlds_beam.reading.changes import Snapshot
from rlds_beam.reading.framing import Framing
from rlds_beam.reading.plan import WorkRange
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.user_functions import version_of
from rlds_beam.worker_status import Done

if TYPE_CHECKING:  # an installation may lack it
    from rlds_beam.recording.record_options import RecordOptions

_ADVICE = "once the file no longer changes, run the same command again with --overwrite"


class OutputStatus(NamedTuple):
    """The progress of a job's output.

    Attributes:
      pending: the unfinished ranges, the largest first.
      complete: whether an earlier run finished and committed the dataset.
      bytes_written: the size of the finished ranges' files.
    """

    pending: list[WorkRange]
    complete: bool
    bytes_written: int


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
      framing: the framing of the source.
      snapshot: the snapshot of the source's files.
    """

    source: Source
    ranges: tuple[WorkRange, ...]
    check: CheckOptions
    connecting: ConnectorRunner
    output: Output
    dataset_report: Report
    plan: OutputPlan
    framing: Framing
    snapshot: Snapshot

    def status(self, overwrite: bool = False) -> OutputStatus:
        """Finds the pending ranges. Reads only the output's commits, and writes nothing.

        Raises:
          UsageError: the output directory holds something else.
        """
        finished = directory.status(self.directory, self.plan, overwrite=overwrite)
        pending = [work for work in self.ranges if str(work) not in finished.ranges]
        written = sum(file.shard.bytes for commit in finished.ranges.values() for file in commit.files)
        return OutputStatus(largest_first(self.source, pending), finished.complete, written)

    def check_room(self, status: OutputStatus, overwrite: bool = False) -> None:
        """Checks that a local disk has room for what is pending; reads a sample of episodes to predict its size.

        Raises:
          UsageError: the disk has too little room.
        """
        if status.complete or storage.scheme(self.directory) is not None or self.size is None:
            return
        freed = directory.own_sizes(self.directory) if overwrite else []
        copies = 2 if isinstance(self.output, MergesRanges) else 1
        check_room(self.directory, self.size * copies - status.bytes_written, freed)

    def make_ready(self, overwrite: bool = False) -> None:
        """Prepares the output directory, after `status`.

        Raises:
          UsageError: the directory cannot be written to.
        """
        try:
            directory.make_ready(self.directory, self.plan, overwrite=overwrite)
        except OSError as error:
            disk = DiskError.of(error.errno or 0, self.directory)
            raise UsageError(
                str(disk or f"{self.directory} cannot be written to: {error.strerror or error}")
            ) from error

    def convert_here(self, overwrite: bool = False) -> Report:
        """Converts all pending ranges in this process, one after the other, without Beam.

        Does not find duplicates, and connectors must not need fitting.
        """
        with lock_output(self.directory):
            for work in self.open(overwrite):
                self.converter.convert(work, {})
            return self.committer.commit()

    def remove_temporary(self) -> None:
        """Removes temporary files of a run that was killed after it had committed the dataset."""
        remove_temporary(self.directory, self.plan, read_commits(self.directory).values())

    def open(self, overwrite: bool = False) -> list[WorkRange]:
        """Prepares the output and returns the pending ranges; raises as `status`, `check_room`, and `make_ready` do."""
        status = self.status(overwrite)
        self.check_room(status, overwrite)
        if not status.complete:
            self.make_ready(overwrite)
        return status.pending

    @functools.cached_property
    def size(self) -> int | None:
        """The predicted bytes of the output, from a sample of the input; None if unknown (`predict_size`)."""
        return predict_size(self.source, self.ranges, self.check, self.connecting, self.output)

    def bytes_of(self, pending: Sized) -> int | None:
        """The estimated output bytes of these ranges; None if unknown."""
        return None if self.size is None else self.size * len(pending) // max(1, len(self.ranges))

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
        """The output directory."""
        return self.output.directory

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON."""
        description = self.output.describe()
        return {
            "input": self.source.dataset,
            "episodes": self.source.episodes,
            "bytes": self.source.size,
            "ranges": self.balance.to_json(),
            "output": self.directory,
            "output_bytes": self.size,
            "output_shards": self.shards,
            "records": description.fields,
            "left_out": dict(description.left_out),
        }

    @property
    def balance(self) -> Balance:
        """The sizes of the ranges."""
        return balance_of(self.source, self.ranges, whole_shards=self.output.whole_shards)

    def seconds(self, pending: Sized) -> float:
        """The estimated seconds for these ranges on one core (`cost`)."""
        return convert_seconds(self.source, self.output.cost_hint) * len(pending) / max(1, len(self.ranges))

    def progress(self) -> str:
        """The number of finished ranges, as text; reads all commits."""
        return f"{len(read_commits(self.directory))} of {len(self.ranges)} parts are finished"

    def committed_since(self, before: int) -> Callable[[], Done]:
        """A function that counts the commits since `before`: the progress if the runner does not report it."""
        commits = storage.join(self.directory, COMMITS)
        return lambda: Done(ranges=sum(name.endswith(".json") for name in storage.listdir(commits)) - before)

    @property
    def _reader(self) -> EpisodeReader:
        return EpisodeReader(self.source, self.snapshot)

    @property
    def converter(self) -> RangeConverter:
        return RangeConverter(self._reader, self.check, self.connecting, self.output, self.plan.digest)

    @property
    def fitter(self) -> RangeFitter:
        ignored = self.connecting.ignored_values(self.output.ignored_values)
        return RangeFitter(self._reader, self.check, self.connecting, ignored)

    def fitted(self) -> ConvertJob:
        """The job with connectors fitted by an earlier run; unchanged if no run has fitted them."""
        results = read_fitted(self.directory, self.plan) if self.connecting.unfitted else None
        return self if results is None else dataclasses.replace(self, connecting=self.connecting.fit(results))

    @property
    def keep_fitted(self) -> Callable[[Any], None]:
        """Saves the connectors' fitted results for later runs of the job."""
        return functools.partial(write_fitted, self.directory, self.plan)

    @property
    def committer(self) -> DatasetCommitter:
        return DatasetCommitter(
            self.source, self.check, self.output, self.ranges, self.dataset_report, self.plan.digest, self.snapshot
        )

    @property
    def finisher(self) -> RangeFinisher | None:
        """Completes the files of ranges before the dataset is committed."""
        return self.committer.finisher

    def notes(self) -> list[str]:
        """Notes for the user of the finished output, one per line."""
        empty = [f"empty     split {split.name} has no episodes" for split in self.source.splits if split.episodes == 0]
        several = len(self.source.splits) > 1
        manifest = load_manifest(self.directory) or {}
        notes = self.output.notes(manifest)
        read = [
            f"note      the connectors change {path}, so the names of its values are left out"
            for path in self.connecting.probed.unnamed
        ]
        read += [f"note      {note}" for note in self.connecting.notes]
        return [*(empty if several else []), *read, *notes]

    def read_report(self) -> Report:
        """The report of the finished job."""
        path = storage.join(self.directory, REPORT)
        return Report.from_json(read_json(path), path)


def prepare(options: ConvertOptions | RecordOptions) -> ConvertJob:
    """Opens the source, plans the work, and checks everything; writes nothing.

    Raises:
      UsageError: the input, the options, or the output cannot be used.
    """
    options = options.resolved()
    source = options.open_source()
    directory.check_apart(options.output, getattr(options, "input", None), "OUTPUT")
    configuration = configuration_for(options, source.schema)
    opened = prepare_input(options, source, configuration, _ADVICE)
    check, connecting = CheckOptions.of(opened.check), opened.connecting
    output = create_output(source, connecting, options.output, options)
    snapshot = opened.snapshot(by_content=True)
    ranges = opened.ranges(options.shards, whole_shards=output.whole_shards)
    output = with_ranges(output, ranges)
    dataset_report = opened.report
    connectors = {"connectors": configuration.plan()} if configuration.connectors else {}
    content = {**_plan(source, ranges, check, output, options), **connectors, "content": snapshot.content()}
    plan = OutputPlan.of(content, list_files(output, ranges, options.to))
    directory.check_output(options.output, plan, overwrite=options.overwrite)
    return ConvertJob(source, ranges, check, connecting, output, dataset_report, plan, opened.framing, snapshot)


def _plan(
    source: Source,
    ranges: tuple[WorkRange, ...],
    check: CheckOptions,
    output: Output,
    options: ConvertOptions | RecordOptions,
) -> dict[str, Any]:
    own = source.plan()
    functions = {**own.pop("functions", {}), **_functions(options)}
    checked = dataclasses.asdict(check)
    del checked["fail"]  # it may end a job, but does not change what is written
    return {
        "format": OUTPUT_FORMAT,
        "from": options.source_format,
        "to": options.to,
        **_own_options(options),
        "dataset": source.dataset,
        **own,
        "splits": {
            split.name: {
                "slice": [split.start, split.stop],
                "shards": [[storage.split(shard.path)[1], shard.size] for shard in split.shards],
            }
            for split in source.splits
        },
        "ranges": {str(work): [[s.shard.index, s.start, s.stop] for s in work.segments] for work in ranges},
        "check": checked,
        **output.plan(),
        "functions": functions,
    }


def _own_options(options: ConvertOptions | RecordOptions) -> dict[str, Any]:
    """The options of users' sources and outputs, by field. Our own outputs put theirs in their `plan`."""
    groups = [group for group in options.groups(vars(options)) if group.choice.partition("=")[2] not in FORMATS]
    own = {group.field: dataclasses.asdict(getattr(options, group.field)) for group in groups}
    return {field: values for field, values in own.items() if values}


def _functions(options: ConvertOptions | RecordOptions) -> dict[str, str]:
    """The versions of the user's functions and classes, by name."""
    named = {
        f"--{field.name}": getattr(group, field.name)
        for group in (*(getattr(options, group.field) for group in reversed(options.groups(vars(options)))), options)
        for field in dataclasses.fields(group)
        if field.metadata.get("code")
    }
    named |= {"--from": options.source_format, "--to": options.to}
    return {name: version_of(name, flag) for flag, name in named.items() if name is not None and ":" in name}
