"""A conversion, prepared: everything that can be known and checked before the first episode is read."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

from rlds_beam import storage
from rlds_beam.at_work import Done
from rlds_beam.checking.dataset import check_source
from rlds_beam.checking.options import CheckOptions
from rlds_beam.checking.report import Report
from rlds_beam.errors import UsageError
from rlds_beam.jobs.balance import Balance, balance_of, largest_first
from rlds_beam.jobs.cost import convert_seconds
from rlds_beam.jobs.options import ConvertOptions
from rlds_beam.output import manifest
from rlds_beam.output.base import FileOutput
from rlds_beam.output.outputs import TRAJECTORIES, create_output
from rlds_beam.output.ranges import DatasetCommitter, RangeConverter
from rlds_beam.reading.base import Source
from rlds_beam.reading.plan import WorkRange, plan_ranges
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.reading.source import open_dataset

FORMAT = 1
"""Of the files that a conversion writes; a change of their bytes makes it another."""


@dataclasses.dataclass(frozen=True)
class ConvertJob:
    """What is to be done, and what of it is done already.

    Attributes:
      source: the dataset.
      ranges: all of the plan.
      check: what becomes of episodes that break a rule.
      output: what is written.
      dataset_report: the report on the dataset as a whole.
      plan: what the output's bytes depend on, as JSON.
    """

    source: Source
    ranges: tuple[WorkRange, ...]
    check: CheckOptions
    output: FileOutput
    dataset_report: Report
    plan: dict[str, Any]

    def open(self, overwrite: bool = False) -> list[WorkRange]:
        """Makes the output ready, and says which ranges are still to do, the largest first.

        Raises:
          UsageError: the output cannot be written to.
        """
        files = [self.output.file(work) for work in self.ranges]
        files = [*files, *(file + ending for file in files for ending in self.output.beside), *self.output.metadata]
        try:
            finished = manifest.open_output(self.directory, self.plan, overwrite=overwrite, files=files)
        except OSError as error:
            raise UsageError(f"{self.directory} cannot be written to: {error}") from error
        return largest_first(self.source, [work for work in self.ranges if str(work) not in finished.ranges])

    @property
    def directory(self) -> str:
        """Where the output goes."""
        return self.output.directory

    @property
    def complete(self) -> bool:
        """Whether an earlier run did all of it."""
        return manifest.is_complete(self.directory)

    def to_json(self) -> dict[str, Any]:
        """The plan, for programs."""
        records, left_out = self.output.describe()
        return {
            "input": self.source.dataset,
            "episodes": self.source.episodes,
            "bytes": self.source.size,
            "ranges": self.balance.to_json(),
            "output": self.directory,
            "output_shards": len(self.ranges),
            "records": records,
            "left_out": left_out,
        }

    @property
    def balance(self) -> Balance:
        """How even the ranges are."""
        return balance_of(self.source, self.ranges, whole_shards=self.output.whole_shards)

    @property
    def seconds(self) -> float:
        """What is left of the work takes one core about as long (`cost`)."""
        return self.whole_seconds * (1 - self.finished / max(1, len(self.ranges)))

    @property
    def whole_seconds(self) -> float:
        """The same, were nothing finished."""
        return convert_seconds(self.source, self.output.effort)

    @property
    def progress(self) -> str:
        """How much of the work is done, for a person."""
        return f"{self.finished} of {len(self.ranges)} ranges are finished"

    @property
    def finished(self) -> int:
        """How many ranges are finished."""
        return len(manifest.read_commits(self.directory))

    def look(self, before: int) -> Callable[[], Done]:
        """Counts the ranges that are committed, `before` not included: how far a job is whose runner does not tell."""
        commits = storage.join(self.directory, manifest.COMMITS)
        return lambda: Done(ranges=sum(name.endswith(".json") for name in storage.listdir(commits)) - before)

    @property
    def converter(self) -> RangeConverter:
        return RangeConverter(EpisodeReader(self.source), self.check, self.output)

    @property
    def committer(self) -> DatasetCommitter:
        return DatasetCommitter(self.source, self.check, self.output, self.ranges, self.dataset_report)

    def read_report(self) -> Report:
        """The report of the finished job."""
        return Report.from_json(json.loads(storage.read_text(storage.join(self.directory, manifest.REPORT))))


def prepare(options: ConvertOptions) -> ConvertJob:
    """Opens the input, plans the work, and checks all that can be checked; writes nothing.

    Raises:
      UsageError: the input, the options or the output cannot be used as they are.
    """
    source = open_dataset(options.input, options)
    output, check = create_output(source, options.output, options), CheckOptions.of(options)
    ranges = plan_ranges(source, options.shards, whole_shards=output.whole_shards)
    dataset_report = check_source(source, check)
    plan = _plan(source, ranges, check, output, options)
    manifest.check_output(options.output, plan, overwrite=options.overwrite)
    return ConvertJob(source, ranges, check, output, dataset_report, plan)


def _plan(
    source: Source, ranges: tuple[WorkRange, ...], check: CheckOptions, output: FileOutput, options: ConvertOptions
) -> dict[str, Any]:
    checked = dataclasses.asdict(check)
    del checked["fail"]  # ends a job, but changes nothing of what it writes
    # The first version, whose outputs are still read, had one source and one output, and did not name them.
    kinds = {"from": (options.from_, "rlds"), "to": (options.to, TRAJECTORIES)}
    return {
        "format": FORMAT,
        **{name: kind for name, (kind, default) in kinds.items() if kind != default},
        "dataset": source.dataset,
        **source.plan(),
        "splits": {
            split.name: {
                "slice": [split.start, split.stop],
                "shards": [[storage.split(shard.path)[1], shard.size] for shard in split.shards],
            }
            for split in source.splits
        },
        "ranges": {
            str(work): [[s.shard.index, s.start, s.stop] for s in work.segments] for work in ranges
        },
        "check": checked,
        **output.plan(),
    }  # fmt: skip
