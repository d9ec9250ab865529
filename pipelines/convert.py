"""`rlds-beam convert`: episodes in, checked training data out."""

from __future__ import annotations

import dataclasses
import functools
import json
import time
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from rlds_beam.jobs.options import ConvertOptions
from rlds_beam.options import option
from rlds_beam.pipelines.options import ReportOptions
from rlds_beam.pipelines.running import run_ranges
from rlds_beam.runners.options import RunOptions

if TYPE_CHECKING:
    from rlds_beam.checking.report import Report
    from rlds_beam.jobs.convert import ConvertJob
    from rlds_beam.pipelines.record import RecordConfig

__all__ = ["ConvertConfig", "ConvertOutcome", "ConvertResult", "convert", "define_pipeline"]

USAGE = "INPUT... OUTPUT"
EXAMPLES = """
    rlds-beam convert data/point_mass/1.0.0 data/pairs
    rlds-beam convert data/point_mass/1.0.0 data/windows --items=sequences --sequence_length=16
    rlds-beam convert data/point_mass/1.0.0 data/pairs --repair=missing_is_last --dry_run
"""

Config: TypeAlias = "ConvertConfig | RecordConfig"


@dataclasses.dataclass(frozen=True)
class ConvertConfig(RunOptions, ReportOptions, ConvertOptions):
    """Checks the episodes of a dataset, and writes what a learner reads: trajectories, unless --to says otherwise."""

    command = "convert"

    _: dataclasses.KW_ONLY
    dry_run: bool = option(False, "check everything, print the plan, write nothing")


class ConvertResult(NamedTuple):
    """The outputs of the job.

    Attributes:
      written: PCollection of `RangeCommit`, one for each output shard that this run wrote.
      report: PCollection of one `Report` on the whole dataset, when it is committed.
    """

    written: Any
    report: Any


def define_pipeline(root: Any, config: Config, job: ConvertJob | None = None) -> ConvertResult:
    """Converts a dataset under `root`.

    Args:
      root: a Beam pipeline.
      config: the job.
      job: the job, where it is prepared already.

    Raises:
      UsageError: the input or the output cannot be used as it is. Nothing was read or written yet.
    """
    from rlds_beam.jobs.convert import prepare
    from rlds_beam.transforms.ranges import OpenOutput

    job = job or prepare(config)
    # When the pipeline runs: nothing is written or removed while the graph is built, which may never run.
    return _define(config, job, root, root | OpenOutput(functools.partial(job.open, config.overwrite)))


def _define(config: Config, job: ConvertJob, root: Any, ranges: Any) -> ConvertResult:
    """Converts a PCollection of ranges, those of the job that are still to do."""
    from rlds_beam.transforms import FindDuplicateEpisodes
    from rlds_beam.transforms.fitting import FitConnectors
    from rlds_beam.transforms.ranges import CommitDataset, ConvertRanges

    # Duplicates are known only when the framing of the whole dataset was read (not its episodes).
    duplicates = root | FindDuplicateEpisodes(job.source, job.framing) if job.finds_duplicates else None
    job, fitted = job.fitted(), None
    if job.connecting.unfitted:
        fitted = root | FitConnectors(job.fitter, job.ranges, duplicates, job.keep_fitted)
    written = ranges | ConvertRanges(job.converter, duplicates, fitted)
    return ConvertResult(written, written | CommitDataset(job.committer, job.finisher))


def convert(config: Config) -> ConvertOutcome:
    """Runs the job to its end; what an earlier run of it finished is not done again.

    Raises:
      UsageError: the input or the output cannot be used as it is.
      FailedRuleError: a rule whose policy is `fail` was broken.
      NotVerifiedError: what was written is not what was predicted.
      RldsBeamError: the pipeline failed.
    """
    from rlds_beam.console.progress import planning
    from rlds_beam.jobs.convert import prepare
    from rlds_beam.output.lock import locked
    from rlds_beam.runners import check

    began, metrics = time.monotonic(), {}
    check(config)
    with planning(config.command, config.progress):
        job = prepare(config)
    with locked(job.directory):
        status = job.status(config.overwrite)
        if status.complete:
            job.remove_temporary()
        else:
            metrics = run_ranges(functools.partial(_define, config, job), config, job, status.pending)
        report = job.read_report()
    return ConvertOutcome(job, report, metrics, time.monotonic() - began)


@dataclasses.dataclass(frozen=True)
class ConvertOutcome:
    """A finished job.

    Attributes:
      job: what was done.
      report: on the whole dataset, earlier runs included.
      metrics: what this run measured of itself.
      seconds: that this run took, start-up included.
    """

    job: ConvertJob
    report: Report
    metrics: dict[str, Any]
    seconds: float

    def __repr__(self) -> str:
        return f"<ConvertOutcome: {self.report.line()}; {self.job.directory}>"

    def __str__(self) -> str:
        """What the command prints."""
        return "\n".join([self.report.summary(self.job.check.repair), *self.lines()])

    def lines(self) -> list[str]:
        """What the command prints after the report."""
        from rlds_beam.pipelines import outcome

        nothing_to_do = not self.metrics and self.job.ranges
        lines = ["nothing was left to do: an earlier run had finished it"] if nothing_to_do else []
        lines += [outcome.timing_line(self.figures()), f"output    {self.job.directory}"]
        return [*lines, *self.job.notes()]

    def figures(self) -> dict[str, Any]:
        """For `--json`: steps of this run, and how fast it did them once it had started."""
        from rlds_beam.pipelines import outcome

        return {
            **outcome.figures(self.metrics, self.seconds),
            "output_shards": self.job.shards,
            "output": self.job.directory,
        }


def main(config: Config) -> int:
    """The command: runs the job, prints its summary, returns the exit code."""
    from rlds_beam.console import terminal
    from rlds_beam.console.progress import planning
    from rlds_beam.jobs.convert import prepare
    from rlds_beam.pipelines import outcome
    from rlds_beam.pipelines.advice import repair_lines
    from rlds_beam.runners import check

    if config.dry_run:
        check(config)
        with planning(config.command, config.progress):
            job = prepare(config)
        job.status(config.overwrite)
        print(json.dumps(job.to_json(), indent=2) if config.json else terminal.convert_plan(job))
        return 0
    done = convert(config)
    notes = done.job.notes()
    extra = {**done.figures(), **({"notes": notes} if notes else {})}
    lines = [*done.lines(), *repair_lines(config.command, config, done.report)]
    outcome.print_report(done.report, config, extra, lines)
    return outcome.exit_code(done.report, config)
