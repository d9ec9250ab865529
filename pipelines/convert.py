"""`rlds-beam convert`: checks episodes and writes them as training data.

The steps are those of `rlds_to_trajectories`: read, check, connect, convert, write. Here one function does them all for
a range of the input (`range_conversion.RangeConverter`), because a shard is finished only when its whole range is. So a
killed job loses only the ranges in progress, and any number of workers writes the same shards. Bundles, which a runner
of Beam chooses in each run, cannot promise that.
"""

from __future__ import annotations

import dataclasses
import operator
import time
from typing import TYPE_CHECKING, Any

from rlds_beam.jobs.options import ConvertOptions
from rlds_beam.options import option
from rlds_beam.pipelines.base import run_ranges
from rlds_beam.platforms import process_seconds
from rlds_beam.runners.base import RunOptions
from rlds_beam.terminal.options import ReportOptions, print_json

if TYPE_CHECKING:
    from rlds_beam.jobs.convert import ConvertJob
    from rlds_beam.processing.job import Figures
    from rlds_beam.processing.report import Report

__all__ = ["ConvertConfig", "ConvertOutcome", "convert", "define_pipeline"]

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


def define_pipeline(root: Any, config: ConvertConfig) -> Any:
    """Converts a dataset under `root`, a Beam pipeline, for a pipeline of yours: a PCollection of one `Report`.

    The output is opened when the pipeline runs: building the graph, which may never run, writes nothing.

    Raises:
      UsageError: the input or the output cannot be used; nothing was written.
    """
    import apache_beam as beam

    from rlds_beam.jobs.convert import prepare
    from rlds_beam.transforms.stages import RunStages

    stages = prepare(config).stages()
    return root | "Convert" >> RunStages(stages) | "Report" >> beam.Map(operator.itemgetter(stages[-1].name))


def convert(config: ConvertConfig) -> ConvertOutcome:
    """Runs the job, or resumes an earlier run.

    Raises:
      UsageError: the input or the output cannot be used.
      FailedRuleError: a rule of `fail` was broken.
      NotVerifiedError: the output differs from the prediction.
      RldsBeamError: the pipeline failed.
    """
    from rlds_beam.jobs.convert import prepare
    from rlds_beam.output.append import finish_interrupted
    from rlds_beam.output.directory import lock_output
    from rlds_beam.runners import check
    from rlds_beam.terminal.job_progress import Progress

    began, figures = time.monotonic(), None
    preparing = Progress(config.command, config.progress)
    check(config)
    with lock_output(config.output):
        if getattr(config, "append", False):
            finish_interrupted(config.output)
        with preparing.show():
            job = prepare(config)
        pending = job.find_pending()
        if pending is None:
            job.remove_temporary()
        else:
            figures = run_ranges(config, job, pending)
        report = job.read_report()
    return ConvertOutcome(job, report, figures, time.monotonic() - began)


@dataclasses.dataclass(frozen=True)
class ConvertOutcome:
    """A finished job.

    Attributes:
      job: the job.
      report: the report on the whole dataset, including earlier runs.
      run: how this run went; None if there was nothing to do.
      seconds: the duration of this run, including start-up.
    """

    job: ConvertJob
    report: Report
    run: Figures | None
    seconds: float

    def __repr__(self) -> str:
        return f"<ConvertOutcome: {self.report.line()}; {self.job.target}>"

    def __str__(self) -> str:
        """The text that the command prints."""
        return "\n".join([self.report.summary(self.job.check.repair), *self.lines()])

    def lines(self) -> list[str]:
        """The lines printed after the report."""
        from rlds_beam.terminal import outcome

        nothing_to_do = self.run is None and self.job.ranges
        lines = ["nothing to do: an earlier run finished this job"] if nothing_to_do else []
        lines += [outcome.timing_line(self.figures()), f"output    {self.job.target}"]
        return [*lines, *_notes(self.job)]

    def figures(self) -> dict[str, Any]:
        """The figures for `--json`: the steps of this run and its speed."""
        from rlds_beam.terminal import outcome

        return {
            **outcome.figures(self.run, self.seconds),
            "output_shards": self.job.shards,
            "output": self.job.target,
        }


def main(config: ConvertConfig) -> int:
    """Runs the command: prints the summary and returns the exit code."""
    from rlds_beam.jobs.convert import prepare
    from rlds_beam.runners import check
    from rlds_beam.terminal import outcome
    from rlds_beam.terminal.job_progress import Progress

    if config.dry_run:
        check(config)
        with Progress(config.command, config.progress).show():
            job = prepare(config)
        job.find_pending()
        if config.json:
            print_json(_plan_json(job))
        else:
            print(_describe(job))
        return 0
    done = convert(config)
    done = dataclasses.replace(done, seconds=process_seconds())
    notes = _notes(done.job)
    extra = {**done.figures(), **({"notes": notes} if notes else {})}
    if done.job.adds_nothing and not config.json:
        print("\n".join(notes))
        return 0
    code = outcome.print_report(done.report, config, extra, done.lines(), done.job.target)
    return 0 if done.job.adds_nothing else code


def _describe(job: ConvertJob) -> str:
    """The plan as text: the input and the output."""
    from rlds_beam.output.base import RowsOutput
    from rlds_beam.terminal.tables import NOTHING_WRITTEN, record_lines
    from rlds_beam.text import count

    lines = [f"input     {job.source.describe()}", f"ranges    {len(job.ranges):,}"]
    lines += [f"output    {job.target}: {count(job.shards, 'shard')}", *record_lines(*job.output.describe())]
    lines += job.output.notes({}) if isinstance(job.output, RowsOutput) else ()
    return "\n".join([*lines, NOTHING_WRITTEN])


def _plan_json(job: ConvertJob) -> dict[str, Any]:
    """The plan as JSON."""
    description = job.output.describe()
    return {
        "input": job.source.dataset,
        "episodes": job.source.episodes,
        "bytes": job.source.size,
        "ranges": len(job.ranges),
        "output": job.target,
        "output_shards": job.shards,
        "records": description.fields,
        "left_out": dict(description.left_out),
    }


def _notes(job: ConvertJob) -> list[str]:
    """Notes for the user of the finished output, one per line."""
    from rlds_beam.output.commits import load_manifest
    from rlds_beam.text import count

    manifest, notes = load_manifest(job.target) or {}, list[str]()
    if job.earlier is not None:
        known = count(job.known, "file")
        said = f"{job.target} now has {count(manifest.get('items', 0), 'item')}"
        if job.adds_nothing:
            said = f"nothing: {job.target} has the episodes of all {known} already"
        elif job.known:
            said += f"; {known} were there already"
        notes.append(f"appended  {said}")
    splits = job.source.splits if len(job.source.splits) > 1 else ()
    notes += [f"empty     split {split.name} has no episodes" for split in splits if split.episodes == 0]
    unnamed = "the connectors change {}, so the names of its values are left out"
    told = (*map(unnamed.format, job.connecting.probed.unnamed), *job.connecting.notes)
    left = (f"left      {path}: it is still written to; run the same command again later" for path in job.left)
    return [*notes, *(f"note      {note}" for note in told), *job.output.notes(manifest), *left]
