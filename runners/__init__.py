"""Where a job runs: this machine, or a runner that Beam knows by name."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from rlds_beam.errors import UsageError
from rlds_beam.runners.options import DATAFLOW, RunOptions


def check(options: RunOptions) -> None:
    """Refuses what the runner of a job could not do, before anything is read or written.

    Raises:
      UsageError: the message says what to do.
    """
    if options.runner in DATAFLOW:
        from rlds_beam.runners import dataflow

        dataflow.check(options)
    elif options.runner == "flink":
        from rlds_beam.runners import flink_preflight

        flink_preflight.check(options)


def scratch(options: RunOptions) -> contextlib.AbstractContextManager[str | None]:
    """A directory that workers write to and this process reads from, gone at the end; None where there need be none."""
    if options.runner in DATAFLOW:
        from rlds_beam.runners import dataflow

        return dataflow.scratch(options)
    return contextlib.nullcontext()


def run_pipeline(define: Callable[[Any], Any], options: RunOptions, seconds: float) -> dict[str, Any]:
    """Builds a pipeline with `define(root)`, runs it to its end, and raises where it fails.

    Args:
      define: builds the pipeline under the root it is given.
      options: the runner, the worker processes and Beam's own flags.
      seconds: what the work takes one core, about (`cost`): it decides whether worker processes pay.

    Returns:
      What the job measured of itself, by name (`runners.metrics`).

    Raises:
      RldsBeamError: the job failed; the message says why.
    """
    from rlds_beam.runners import dataflow, local, remote

    if options.runner in ("local", "FnApiRunner"):
        return local.run(define, options, seconds)
    if options.runner in DATAFLOW:
        return dataflow.run(define, options)
    if options.runner == "flink":
        from rlds_beam.runners import flink

        return flink.run(define, options)
    if options.workers is not None:
        raise UsageError(f"--workers is for --runner=local; {options.runner} has flags of its own, behind --")
    return remote.run(define, options)
