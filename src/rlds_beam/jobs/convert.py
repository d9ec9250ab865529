"""A conversion, prepared: everything that can be known and checked before the first episode is read."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from rlds_beam import storage
from rlds_beam.checking.dataset import check_source
from rlds_beam.checking.options import CheckOptions
from rlds_beam.checking.report import Report
from rlds_beam.errors import UsageError
from rlds_beam.jobs.balance import Balance, balance_of, largest_first
from rlds_beam.jobs.cost import convert_seconds
from rlds_beam.jobs.options import ConvertOptions
from rlds_beam.output import manifest
from rlds_beam.output.ranges import DatasetCommitter, RangeConverter
from rlds_beam.reading.base import Source
from rlds_beam.reading.plan import WorkRange, plan_ranges
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.reading.source import open_dataset
from rlds_beam.trajectories.converter import Conversion
from rlds_beam.trajectories.options import FrameOptions, ItemOptions
from rlds_beam.trajectories.spec import trajectory_spec
from rlds_beam.wording import format_size

FORMAT = 1
"""Of the files that a conversion writes; a change of their bytes makes it another."""


@dataclasses.dataclass(frozen=True)
class ConvertJob:
    """What is to be done, and what of it is done already.

    Attributes:
      source: the dataset.
      ranges: all of the plan.
      conversion: how records become items.
      output: the directory to write to.
      preflight: the report on the dataset as a whole.
      plan: what the output's bytes depend on, as JSON.
    """

    source: Source
    ranges: tuple[WorkRange, ...]
    conversion: Conversion
    output: str
    preflight: Report
    plan: dict[str, Any]

    def open(self, overwrite: bool = False) -> list[WorkRange]:
        """Makes the output ready, and says which ranges are still to do, the largest first.

        Raises:
          UsageError: the output cannot be written to.
        """
        try:
            finished = manifest.open_output(self.output, self.plan, overwrite=overwrite)
        except OSError as error:
            raise UsageError(f"{self.output} cannot be written to: {error}") from error
        return largest_first(self.source, [work for work in self.ranges if str(work) not in finished.ranges])

    @property
    def complete(self) -> bool:
        """Whether an earlier run did all of it."""
        return manifest.is_complete(self.output)

    def text(self) -> str:
        """The plan, for a terminal."""
        episodes = "an unknown number of" if self.source.episodes is None else f"{self.source.episodes:,}"
        lines = [
            f"input     {self.source.dataset}: {episodes} episodes, {format_size(self.source.size)}",
            *self._balance.lines(),
            f"output    {self.output}: {len(self.ranges)} shards",
            "frame",
            *(f"  {leaf}" for leaf in self.conversion.spec.leaves),
        ]
        lines += [f"  left out: {path} ({why})" for path, why in self.conversion.spec.left_out.items()]
        return "\n".join([*lines, "nothing was written (--dry_run)"])

    def to_json(self) -> dict[str, Any]:
        """The plan, for programs."""
        return {
            "input": self.source.dataset,
            "episodes": self.source.episodes,
            "bytes": self.source.size,
            "ranges": self._balance.to_json(),
            "output": self.output,
            "output_shards": len(self.ranges),
            "records": [str(leaf) for leaf in self.conversion.spec.leaves],
            "left_out": dict(self.conversion.spec.left_out),
        }

    @property
    def _balance(self) -> Balance:
        return balance_of(self.source, self.ranges, whole_shards=self.conversion.items.across_episodes)

    @property
    def seconds(self) -> float:
        """What is left of the work takes one core about as long (`cost`)."""
        left = 1 - self._finished / max(1, len(self.ranges))
        return left * convert_seconds(self.source, self.conversion.items, self.conversion.images)

    @property
    def progress(self) -> str:
        """How much of the work is done, for a person."""
        return f"{self._finished} of {len(self.ranges)} ranges are finished"

    @property
    def _finished(self) -> int:
        return len(manifest.read_commits(self.output))

    @property
    def converter(self) -> RangeConverter:
        return RangeConverter(EpisodeReader(self.source), self.conversion, self.output, self.source.name)

    @property
    def committer(self) -> DatasetCommitter:
        return DatasetCommitter(
            self.output, self.source.name, self.source, self.conversion, self.ranges, self.preflight
        )  # fmt: skip

    def read_report(self) -> Report:
        """The report of the finished job."""
        return Report.from_json(json.loads(storage.read_text(storage.join(self.output, manifest.REPORT))))


def prepare(options: ConvertOptions) -> ConvertJob:
    """Opens the input, plans the work, and checks all that can be checked; writes nothing.

    Raises:
      UsageError: the input, the options or the output cannot be used as they are.
    """
    source = open_dataset(options.input, options)
    conversion = Conversion(
        CheckOptions.of(options),
        FrameOptions.of(options),
        ItemOptions.of(options),
        trajectory_spec(source.schema, options, options),
        options.images,
    )
    _ = conversion.fields  # raises where the format cannot hold a leaf
    ranges = plan_ranges(source, options.shards, whole_shards=options.across_episodes)
    preflight = check_source(source, options)
    plan = _plan(source, ranges, conversion)
    manifest.check_output(options.output, plan, overwrite=options.overwrite)
    return ConvertJob(source, ranges, conversion, options.output, preflight, plan)


def _plan(source: Source, ranges: tuple[WorkRange, ...], conversion: Conversion) -> dict[str, Any]:
    check = dataclasses.asdict(conversion.check)
    del check["fail"]  # ends a job, but changes nothing of what it writes
    return {
        "format": FORMAT,
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
        "check": check,
        "frames": dataclasses.asdict(conversion.frames),
        "items": dataclasses.asdict(conversion.items),
        "images": conversion.images,
    }  # fmt: skip
