"""Runners: this machine, Flink, Dataflow, or any other Beam runner."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rlds_beam.runners.base import DATAFLOW, RunOptions

if TYPE_CHECKING:
    from rlds_beam.runners.base import Runner, Watcher


def find_runner(options: RunOptions, watcher: Watcher | None = None) -> Runner:
    """The runner of a job; `watcher` receives the progress."""
    if options.runner in ("local", "FnApiRunner"):
        from rlds_beam.runners.local import LocalRunner

        return LocalRunner(options, watcher)
    if options.runner in DATAFLOW:
        from rlds_beam.runners.dataflow import DataflowRunner

        return DataflowRunner(options, watcher)
    if options.runner == "flink":
        from rlds_beam.runners.flink import FlinkRunner

        return FlinkRunner(options, watcher)
    from rlds_beam.runners.remote import RemoteRunner

    return RemoteRunner(options, watcher)


def check(options: RunOptions) -> None:
    """Checks that the job's runner can run it, before anything is read or written.

    Raises:
      UsageError: it cannot; the message says what to do.
    """
    find_runner(options).check()


def run_pipeline(
    define: Callable[[Any], Any], options: RunOptions, input_bytes: int, watcher: Watcher | None = None
) -> dict[str, Any]:
    """Builds a pipeline with `define(root)` and runs it.

    Args:
      define: builds the pipeline under a given root.
      options: the runner, the worker processes, and Beam's own flags.
      input_bytes: the size of the input, which decides whether to start worker processes.
      watcher: receives the progress.

    Returns:
      The job's metrics, by name (`runners.base`).

    Raises:
      RldsBeamError: the job failed; the message says why.
    """
    return find_runner(options, watcher).run(define, input_bytes)
