"""`rlds-beam record`: behaviour policies rolled out in environments, into RLDS with propensities."""

from __future__ import annotations

import dataclasses
import functools
import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rlds_beam.options import Options, option
from rlds_beam.pipelines.running import run_ranges
from rlds_beam.recording.options import RecordOptions
from rlds_beam.runners.options import RunOptions
from rlds_beam.text import count, format_size

if TYPE_CHECKING:
    from rlds_beam.checking.report import Report
    from rlds_beam.recording.job import RecordJob
    from rlds_beam.recording.ranges import RolloutRange

__all__ = ["RecordConfig", "RecordOutcome", "RecordResult", "define_pipeline", "record"]

USAGE = "OUTPUT"
EXAMPLES = """
    rlds-beam record data/cartpole --env=gymnasium:CartPole-v1 --policy=random --episodes=100
    rlds-beam record data/greedy --env=gymnasium:CartPole-v1 --episodes=1000 \\
        --policy='EpsilonGreedyHead(my_policies:q_function, epsilon=0.3)' --policy=random
    rlds-beam record data/run --env=dm_control:cheetah/run --policy=random --steps=10000 --step_per_trajectory=100
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShownOptions(Options):
    """What is printed."""

    json: bool = option(False, "print the report as JSON instead of a summary; errors too")
    progress: Literal["auto", "plain", "none"] = option(
        "auto",
        "on standard error: a live line on a terminal, otherwise a plain line every 30 seconds (plain), or nothing",
    )


@dataclasses.dataclass(frozen=True)
class RecordConfig(RunOptions, ShownOptions, RecordOptions):
    """Rolls out behaviour policies in environments, and records RLDS in which each action has its propensity."""

    _: dataclasses.KW_ONLY
    dry_run: bool = option(False, "check everything, print the plan, write nothing")


class RecordResult(NamedTuple):
    """The outputs of the job.

    Attributes:
      written: PCollection of `RangeCommit`, one for each file that this run wrote.
      report: PCollection of one `Report` on the whole dataset, when it is committed.
    """

    written: Any
    report: Any


def define_pipeline(root: Any, config: RecordConfig, job: RecordJob | None = None) -> RecordResult:
    """Records a dataset under `root`.

    Args:
      root: a Beam pipeline.
      config: the job.
      job: the job, where it is prepared already.

    Raises:
      UsageError: the environment, a policy or the output cannot be used as it is. Nothing was written yet.
    """
    from rlds_beam.recording.job import prepare
    from rlds_beam.transforms.ranges import OpenOutput

    job = job or prepare(config)
    return _define(root, job, root | OpenOutput(functools.partial(job.open, config.overwrite)))


def _define(root: Any, job: RecordJob, ranges: Any) -> RecordResult:
    """Records a PCollection of ranges, those of the job that are still to do."""
    from rlds_beam.transforms.ranges import CommitDataset
    from rlds_beam.transforms.recording import RecordRanges

    written = ranges | RecordRanges(job.recorder)
    return RecordResult(written, written | CommitDataset(job.committer))


def record(config: RecordConfig) -> RecordOutcome:
    """Runs the job to its end; what an earlier run of it finished is not done again.

    Raises:
      UsageError: the environment, a policy or the output cannot be used as it is.
      NotVerifiedError: a propensity is not that of the action, or what was written is not what was planned.
      RldsBeamError: the pipeline failed.
    """
    from rlds_beam.output.lock import locked
    from rlds_beam.recording.job import prepare
    from rlds_beam.runners import check

    began, metrics = time.monotonic(), {}
    check(config)
    job = prepare(config)
    with locked(job.directory):
        pending, complete = job.status(config.overwrite)
        if not complete:
            metrics = _run(config, job, pending)
        report = job.read_report()
    return RecordOutcome(job, report, metrics, time.monotonic() - began)


def _run(config: RecordConfig, job: RecordJob, pending: Sequence[RolloutRange]) -> dict[str, Any]:
    """Records the ranges that are not finished; what the run measured of itself."""
    from rlds_beam.console.progress import Total

    total = Total("record", len(job.ranges), len(job.ranges) - len(pending))
    return run_ranges(lambda root, ranges: _define(root, job, ranges), config, job, pending, total)


@dataclasses.dataclass(frozen=True)
class RecordOutcome:
    """A finished job.

    Attributes:
      job: what was done.
      report: on the whole dataset, earlier runs included.
      metrics: what this run measured of itself.
      seconds: that this run took, start-up included.
    """

    job: RecordJob
    report: Report
    metrics: dict[str, Any]
    seconds: float

    def __repr__(self) -> str:
        return f"<RecordOutcome: {count(self.report.episodes, 'episode')}; {self.job.directory}>"

    def __str__(self) -> str:
        """What the command prints."""
        from rlds_beam.pipelines import outcome

        figures = self.figures()
        steps, size = count(figures["transitions"], "step"), format_size(figures["bytes_written"])
        lines = [] if self.metrics else ["nothing was left to do: an earlier run had finished it"]
        lines += [
            f"recorded  {count(figures['episodes'], 'episode')} with {steps}, by {', '.join(figures['policies'])}",
            f"wrote     {size} in {count(figures['output_shards'], 'file')}",
            outcome.timing_line(figures),
            f"output    {figures['output']}",
        ]
        return "\n".join(lines)

    def figures(self) -> dict[str, Any]:
        """For `--json`: what was recorded, and how fast."""
        from rlds_beam.pipelines import outcome

        report = self.report
        return {
            "episodes": report.episodes,
            "steps": report.steps,
            "transitions": report.steps - report.episodes,
            "bytes_written": report.bytes_written,
            **outcome.figures(self.metrics, self.seconds),
            "policies": list(self.job.policies),
            "output_shards": len(self.job.ranges),
            "output": self.job.directory,
        }


def main(config: RecordConfig) -> int:
    """The command: runs the job, prints its summary, returns the exit code."""
    from rlds_beam.console import terminal
    from rlds_beam.recording.job import prepare
    from rlds_beam.runners import check

    if config.dry_run:
        check(config)
        job = prepare(config)
        job.status(config.overwrite)
        print(json.dumps(job.to_json(), indent=2) if config.json else terminal.record_plan(job))
        return 0
    done = record(config)
    print(json.dumps(done.figures(), indent=2) if config.json else done)
    return 0
