"""`rlds-beam convert`: checks episodes and writes them as training data.

The steps are those of `rlds_to_trajectories`: read, check, connect, convert, write. Here one DoFn does them all for a
range of the input (`range_conversion.RangeConverter`), because a shard is finished only when its whole range is. So a
killed job loses only the ranges in progress, and any number of workers writes the same shards. Bundles, which the
runner chooses in each run, cannot promise that.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from rlds_beam.jobs.options import ConvertOptions
from rlds_beam.options import option
from rlds_beam.pipelines.base import run_ranges
from rlds_beam.runners.base import RunOptions
from rlds_beam.terminal.options import ReportOptions, print_json
from rlds_beam.text import join_lines

if TYPE_CHECKING:
    from rlds_beam.jobs.convert import ConvertJob
    from rlds_beam.processing.report import Report

__all__ = ["ConvertConfig", "ConvertOutcome", "ConvertResult", "convert", "define_pipeline"]

USAGE = "INPUT... OUTPUT"
EXAMPLES = """
    rlds-beam convert data/point_mass/1.0.0 data/pairs
    rlds-beam convert data/point_mass/1.0.0 data/windows --items=sequences --sequence_length=16
    rlds-beam convert data/point_mass/1.0.0 data/pairs --repair=missing_is_last --dry_run
"""


@dataclasses.dataclass(frozen=True)
class ConvertConfig(RunOptions, ReportOptions, ConvertOptions):
    """Check the episodes of a dataset and write training data: trajectories, or the format given by --to."""

    command = "convert"

    _: dataclasses.KW_ONLY
    dry_run: bool = option(False, "check everything and print the plan, but write nothing")


class ConvertResult(NamedTuple):
    """The outputs of the job.

    Attributes:
      written: a PCollection of `RangeCommit`, one for each output shard that this run wrote.
      report: a PCollection of one `Report` on the whole dataset, once it is committed.
    """

    written: Any
    report: Any


def define_pipeline(root: Any, config: ConvertConfig, job: ConvertJob | None = None) -> ConvertResult:
    """Converts a dataset under `root`.

    Args:
      root: a Beam pipeline.
      config: the job's config.
      job: the job, if already prepared.

    Raises:
      UsageError: the input or the output cannot be used; nothing was written.
    """
    from rlds_beam.jobs.convert import prepare
    from rlds_beam.transforms.jobs.ranges import OpenOutput

    job = job or prepare(config)
    # The output is opened when the pipeline runs: building the graph, which may never run, writes nothing.
    return _define(config, job, root, root | OpenOutput(functools.partial(job.open, config.overwrite)))


def _define(config: ConvertConfig, job: ConvertJob, root: Any, ranges: Any) -> ConvertResult:
    """Converts a PCollection of the job's pending ranges."""
    from rlds_beam.transforms import FindDuplicateEpisodes
    from rlds_beam.transforms.jobs.fitted_connectors import FitConnectors
    from rlds_beam.transforms.jobs.ranges import CommitDataset, ConvertRanges

    # Finding duplicates needs the framing of the whole dataset, but not its episodes.
    duplicates = root | FindDuplicateEpisodes(job.source, job.framing) if job.finds_duplicates else None
    job, fitted = job.with_fitted(), None
    if job.connecting.unfitted:
        fitted = root | FitConnectors(job.fitter, job.ranges, duplicates, job.keep_fitted)
    written = ranges | ConvertRanges(job.converter, duplicates, fitted)
    return ConvertResult(written, written | CommitDataset(job.committer, job.finisher))


def convert(config: ConvertConfig) -> ConvertOutcome:
    """Runs the job, or resumes an earlier run.

    Raises:
      UsageError: the input or the output cannot be used.
      FailedRuleError: a rule of `fail` was broken.
      NotVerifiedError: the output differs from the prediction.
      RldsBeamError: the pipeline failed.
    """
    from rlds_beam import storage
    from rlds_beam.jobs.convert import prepare
    from rlds_beam.output.append import finish_interrupted
    from rlds_beam.output.directory import lock_output
    from rlds_beam.runners import check
    from rlds_beam.terminal.job_progress import planning

    began, metrics = time.monotonic(), {}
    check(config)
    if getattr(config, "append", False) and storage.isdir(config.output):
        with lock_output(config.output):
            finish_interrupted(config.output)
    with planning(config.command, config.progress):
        job = prepare(config)
    with lock_output(job.target):
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
      job: the job.
      report: the report on the whole dataset, including earlier runs.
      metrics: the metrics of this run.
      seconds: the duration of this run, including start-up.
    """

    job: ConvertJob
    report: Report
    metrics: dict[str, Any]
    seconds: float

    def __repr__(self) -> str:
        return f"<ConvertOutcome: {self.report.line()}; {self.job.target}>"

    def __str__(self) -> str:
        """The text that the command prints."""
        return "\n".join([self.report.summary(self.job.check.repair), join_lines(self.lines())])

    def lines(self) -> list[str]:
        """The lines printed after the report."""
        from rlds_beam.terminal import outcome

        nothing_to_do = not self.metrics and self.job.ranges
        lines = ["nothing to do: an earlier run finished this job"] if nothing_to_do else []
        lines += [outcome.timing_line(self.figures()), f"output    {self.job.target}"]
        return [*lines, *self.job.notes()]

    def figures(self) -> dict[str, Any]:
        """The figures for `--json`: the steps of this run and its speed."""
        from rlds_beam.terminal import outcome

        return {
            **outcome.figures(self.metrics, self.seconds),
            "output_shards": self.job.shards,
            "output": self.job.target,
        }


def main(config: ConvertConfig) -> int:
    """Runs the command: prints the summary and returns the exit code."""
    from rlds_beam.jobs import plan_text
    from rlds_beam.jobs.convert import prepare
    from rlds_beam.runners import check
    from rlds_beam.terminal import outcome
    from rlds_beam.terminal.job_progress import planning
    from rlds_beam.terminal.outcome import repair_lines

    if config.dry_run:
        check(config)
        with planning(config.command, config.progress):
            job = prepare(config)
        job.status(config.overwrite)
        if config.json:
            print_json(job.to_json())
        else:
            print(plan_text.convert_plan(job))
        return 0
    done = convert(config)
    notes = done.job.notes()
    extra = {**done.figures(), **({"notes": notes} if notes else {})}
    appends = getattr(config, "append", False)
    lines = [*done.lines(), *([] if appends else repair_lines(config.command, config, done.report))]
    if done.job.adds_nothing and not config.json:
        print(join_lines(notes))
    else:
        outcome.print_report(done.report, config, extra, lines, done.job.target)
    return 0 if done.job.adds_nothing else outcome.exit_code(done.report, config)
