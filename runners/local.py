"""This machine: Beam's in-process runner, with worker processes where the job is large enough."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.transforms.environments import SubprocessSDKEnvironment

import rlds_beam.errors
from rlds_beam.at_work import command, read_notes
from rlds_beam.errors import RldsBeamError
from rlds_beam.runners.metrics import read_metrics
from rlds_beam.runners.notebooks import build
from rlds_beam.runners.options import RunOptions
from rlds_beam.runners.watching import wait_until_gone, watched

START_SECONDS = 2.0
"""Seconds that a job of two workers takes longer to start: two more processes import Beam and connect."""

EFFICIENCY = 0.8
"""Efficiency of n workers on n cores, which share a memory bus and a disk."""

_OURS = re.compile(r"rlds_beam\.errors\.(?P<name>\w+): (?P<message>[^\n]*?)(?: \[while running|\\n|\n|$)")
_STEP = re.compile(r" \[while running '[^']*'\]$")
"""What Beam adds to the message of an error in a step."""


def run(define: Callable[[Any], Any], options: RunOptions, seconds: float) -> dict[str, Any]:
    """Runs the job on this machine and waits for its end.

    Args:
      define, options, seconds: as of `run_pipeline`.

    Raises:
      RldsBeamError: the job failed, or a worker process died.
    """
    workers = options.workers or paying_workers(seconds, _cores())
    flags = [f"--direct_num_workers={workers}", *options.beam_options]

    def job(environment: Any = None, home: str | None = None) -> dict[str, Any]:
        # DirectRunner would first try to download another runner.
        pipeline = beam.Pipeline(runner=FnApiRunner(environment), options=PipelineOptions(flags))
        if home is not None:
            # Beam removes its directory when a pipeline is through, and one whose worker died never is.
            os.rmdir(pipeline.local_tempdir)
            pipeline.local_tempdir = tempfile.mkdtemp(dir=home)
        try:
            build(pipeline, define)
            result = pipeline.run()
            result.wait_until_finish()
        finally:
            shutil.rmtree(pipeline.local_tempdir, ignore_errors=True)  # in an IPython session Beam leaves it behind
        return read_metrics(result)

    try:
        return _with_workers(job) if workers > 1 else job()
    except RldsBeamError as error:
        raise type(error)(_STEP.sub("", str(error))) from error
    except Exception as error:
        if "KeyboardInterrupt [while running" in str(error):  # Beam's wording of an interrupt during a step
            raise KeyboardInterrupt from error
        raise plain(error) from error


def _with_workers(job: Callable[[Any, str], dict[str, Any]]) -> dict[str, Any]:
    """Runs `job` with worker processes, which are gone when this returns or raises."""
    with tempfile.TemporaryDirectory(prefix="rlds-beam-", ignore_cleanup_errors=True) as home:
        # A worker ends when this file does: Beam leaves workers waiting when a pipeline ends badly.
        alive = os.path.join(home, "alive")
        open(alive, "x").close()
        # In place of the shell that Beam starts it by, so that a worker sees when this process is no more.
        worker = f"exec {shlex.join(command('rlds_beam.runners.worker', alive))}"
        try:
            metrics = watched(lambda: job(SubprocessSDKEnvironment.from_command_string(worker), home), home)
        finally:
            os.remove(alive)
            wait_until_gone(home)  # so that nothing changes any more when somebody looks at what is finished
        metrics["worker_seconds"] = [note.seconds for note in read_notes(home)]
        return metrics


def paying_workers(seconds: float, cores: int) -> int:
    """How many processes are best for a job that takes one core so many seconds: one, or one for each core."""
    if cores < 2:
        return 1
    saved = seconds * (1 - 1 / (cores * EFFICIENCY))
    return cores if saved > START_SECONDS else 1


def _cores() -> int:
    """The cores that this process may use, which in a container may be fewer than the machine has."""
    return len(os.sched_getaffinity(0))


def plain(error: Exception) -> RldsBeamError:
    """The error as the user needs it: ours by its own class, others by their last line."""
    ours = _ours(error)
    if ours is not None:
        return ours
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return RldsBeamError(f"{type(error).__name__}: {lines[-1] if lines else error}")


def _ours(error: Exception) -> RldsBeamError | None:
    """The error of this package's that a worker met, if `error` is about one."""
    match = _OURS.search(str(error))
    if match is not None:
        kind: type[RldsBeamError] = getattr(rlds_beam.errors, match["name"], RldsBeamError)
        return kind(match["message"])
    return error if isinstance(error, RldsBeamError) else None
