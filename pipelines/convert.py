"""`rlds-beam convert`: RLDS in, checked trajectory TFRecords out."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from rlds_beam.errors import RldsBeamError
from rlds_beam.jobs.options import ConvertOptions
from rlds_beam.options import option
from rlds_beam.pipelines.options import ReportOptions
from rlds_beam.runners.options import RunOptions

if TYPE_CHECKING:
    from rlds_beam.checking.report import Report
    from rlds_beam.jobs.convert import ConvertJob

__all__ = ["ConvertConfig", "ConvertOutcome", "ConvertResult", "convert", "define_pipeline"]

USAGE = "INPUT OUTPUT"
EXAMPLES = """
    rlds-beam convert /data/bridge_dataset/1.0.0 /data/bridge_pairs
    rlds-beam convert /data/bridge_dataset/1.0.0 /data/bridge_windows --items=sequences --sequence_length=16
    rlds-beam convert /data/bridge_dataset/1.0.0 /data/bridge_pairs --repair=last_not_last --dry_run
"""


@dataclasses.dataclass(frozen=True)
class ConvertConfig(RunOptions, ReportOptions, ConvertOptions):
    """Converts an RLDS dataset to trajectory TFRecords that TF-Agents and TFDS read."""

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


def define_pipeline(root: Any, config: ConvertConfig, job: ConvertJob | None = None) -> ConvertResult:
    """Converts a dataset under `root`.

    Args:
      root: a Beam pipeline.
      config: the job.
      job: the job, where it is prepared already.

    Raises:
      UsageError: the input or the output cannot be used as it is. Nothing was read or written yet.
    """
    import apache_beam as beam

    from rlds_beam.jobs.convert import prepare
    from rlds_beam.transforms import FindDuplicateEpisodes
    from rlds_beam.transforms.ranges import CommitDataset, ConvertRanges

    job = job or prepare(config)
    # Duplicates can be told only when all of the dataset was looked at: at its framing, that is, not at its episodes.
    duplicates = None if "duplicate_episode" in config.accept else root | FindDuplicateEpisodes(job.source)
    # What is spread over the workers is the list of ranges still to do; no episode is ever shuffled.
    ranges = root | "Ranges" >> beam.Create(job.open(config.overwrite), reshuffle=True)
    written = ranges | ConvertRanges(job.converter, duplicates)
    return ConvertResult(written, written | CommitDataset(job.committer))


def convert(config: ConvertConfig) -> ConvertOutcome:
    """Runs the job to its end; what an earlier run of it finished is not done again.

    Raises:
      UsageError: the input or the output cannot be used as it is.
      FailedRuleError: a rule whose policy is `fail` was broken.
      NotVerifiedError: what was written is not what was predicted.
      RldsBeamError: the pipeline failed.
    """
    from rlds_beam.jobs.convert import prepare
    from rlds_beam.runners import check, run_pipeline
    from rlds_beam.seeing.progress import Progress, Total

    began = time.monotonic()
    check(config)
    job, metrics = prepare(config), {}
    if config.overwrite or not job.complete:
        seconds = job.whole_seconds if config.overwrite else job.seconds
        finished = 0 if config.overwrite else job.finished
        total = Total("convert", len(job.ranges), finished, None if finished else job.source.size)
        try:
            with Progress(total, config.progress, job.look(finished)).shown() as progress:
                metrics = run_pipeline(lambda root: define_pipeline(root, config, job), config, seconds, progress)
        except RldsBeamError as error:
            if error.exit_code != RldsBeamError.exit_code:
                raise
            raise type(error)(f"{error} ({job.progress})") from error
    return ConvertOutcome(job, job.read_report(), metrics, time.monotonic() - began)


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

    def figures(self) -> dict[str, Any]:
        """For `--json`: steps of this run, and how fast it did them once it had started."""
        from rlds_beam.pipelines import outcome

        return {
            **outcome.figures(self.metrics, self.seconds),
            "output_shards": len(self.job.ranges),
            "output": self.job.directory,
        }


def main(config: ConvertConfig) -> int:
    """The command: runs the job, prints its summary, returns the exit code."""
    from rlds_beam.jobs.convert import prepare
    from rlds_beam.pipelines import outcome
    from rlds_beam.runners import check
    from rlds_beam.seeing import terminal

    if config.dry_run:
        check(config)
        job = prepare(config)
        print(json.dumps(job.to_json(), indent=2) if config.json else terminal.convert_plan(job))
        return 0
    done = convert(config)
    figures = done.figures()
    lines = [outcome.took(figures), f"output    {config.output}"]
    if not done.metrics:
        lines.insert(0, "nothing was left to do: an earlier run had finished it")
    outcome.show(done.report, config, figures, lines)
    return outcome.exit_code(done.report, config)
