"""Where jobs run: processes of this machine, or a Beam pipeline on any runner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rlds_beam.platforms import count_cores
from rlds_beam.processing.job import Stage
from rlds_beam.runners.base import DATAFLOW, RunOptions

if TYPE_CHECKING:
    from rlds_beam.processing.job import Figures
    from rlds_beam.runners.beam import BeamRunner
    from rlds_beam.terminal.job_progress import Progress


def _find_runner(options: RunOptions) -> BeamRunner:
    if options.runner in DATAFLOW:
        from rlds_beam.runners.dataflow import DataflowRunner

        return DataflowRunner(options)
    if options.runner == "flink":
        from rlds_beam.runners.flink import FlinkRunner

        return FlinkRunner(options)
    from rlds_beam.runners.beam import BeamRunner

    return BeamRunner(options)


def check(options: RunOptions) -> None:
    """Checks that the job's runner can run it, before anything is read or written.

    Raises:
      UsageError: it cannot; the message says what to do.
    """
    if options.runner != "local":
        _find_runner(options).check()


def run(
    stages: Sequence[Stage], options: RunOptions, input_bytes: int, progress: Progress, output: str | None = None
) -> tuple[Any, Figures]:
    """Runs a job; every command calls this.

    Args:
      stages: the stages of the job.
      options: the runner, the worker processes, and Beam's own flags.
      input_bytes: the size of the input, which decides whether to start worker processes.
      progress: shows the progress.
      output: the directory into which the workers write, if there is one. Through it, workers on other machines get
        what is too large for Beam's graph, and hand over the result.

    Returns:
      The result of the last stage, and how the job ran.

    Raises:
      RldsBeamError: the job failed; the message says why.
    """
    if options.runner == "local":
        from rlds_beam.runners.local import LARGE_INPUT, run_here

        workers = options.workers or (count_cores() if input_bytes > LARGE_INPUT else 1)
        with progress.show():
            return run_here(stages, workers)
    runner = _find_runner(options)
    with progress.show(runner.done, runner.place, runner.tick_seconds):
        return runner.run(stages, output)
