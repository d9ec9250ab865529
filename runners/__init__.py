"""Where a job runs: this machine, or whatever runner Beam knows by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlds_beam.errors import UsageError
from rlds_beam.options import RunOptions


def run_pipeline(define: Callable[[Any], Any], options: RunOptions, input_bytes: int) -> dict[str, Any]:
    """Builds a pipeline with `define(root)`, runs it to its end, and raises where it fails.

    Args:
      define: builds the pipeline under the root it is given.
      options: the runner, the worker processes and Beam's own flags.
      input_bytes: how much there is to read, which decides whether worker processes pay.

    Returns:
      What the job measured of itself, by name (`runners.metrics`).

    Raises:
      RldsBeamError: the job failed; the message says why.
    """
    from rlds_beam.runners import local, remote

    if options.runner in ("local", "FnApiRunner"):
        return local.run(define, options, input_bytes)
    if options.runner == "flink":
        from rlds_beam.runners import flink

        return flink.run(define, options)
    if options.workers is not None:
        raise UsageError(f"--workers is for --runner=local; {options.runner} has flags of its own, behind --")
    return remote.run(define, options)
