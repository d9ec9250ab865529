"""This machine: Beam's in-process runner, with a process for each worker where the job pays for them."""

from __future__ import annotations

import os
import queue
import re
import shlex
import sys
import threading
from collections.abc import Callable
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.transforms.environments import SubprocessSDKEnvironment

import rlds_beam.errors
from rlds_beam.errors import RldsBeamError
from rlds_beam.options import RunOptions
from rlds_beam.runners.metrics import read_metrics

WORTH_A_WORKER = 256 << 20
"""Input bytes from which worker processes pay: starting them takes about as long as reading this much."""

_OURS = re.compile(r"rlds_beam\.errors\.(?P<name>\w+): (?P<message>[^\n]*?)(?: \[while running|\\n|\n|$)")


def run(define: Callable[[Any], Any], options: RunOptions, input_bytes: int) -> dict[str, Any]:
    """Runs the job on this machine and waits for its end.

    Raises:
      RldsBeamError: the job failed, or a worker process died.
    """
    workers = options.workers or (os.cpu_count() or 1 if input_bytes >= WORTH_A_WORKER else 1)
    flags = [f"--direct_num_workers={workers}", *options.beam_options]
    environment = None
    if workers > 1:
        command = f"{shlex.quote(sys.executable)} -m rlds_beam.runners.worker"
        environment = SubprocessSDKEnvironment.from_command_string(command)

    def job() -> dict[str, Any]:
        # DirectRunner would first try to download another runner.
        pipeline = beam.Pipeline(runner=FnApiRunner(environment), options=PipelineOptions(flags))
        define(pipeline)
        result = pipeline.run()
        result.wait_until_finish()
        return read_metrics(result)

    try:
        return _watched(job) if workers > 1 else job()
    except RldsBeamError:
        raise
    except Exception as error:
        raise _plain(error) from error


def _watched(job: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Runs `job` in a thread and stops waiting for it when a worker process dies: Beam would wait forever."""
    ended: queue.SimpleQueue[BaseException | dict[str, Any]] = queue.SimpleQueue()

    def target() -> None:
        try:
            ended.put(job())
        except BaseException as error:
            ended.put(error)

    def on_thread_error(args: threading.ExceptHookArgs) -> None:
        if args.thread is not None and args.thread.name == "run_worker":
            ended.put(RldsBeamError(f"a worker process died ({args.exc_value}); finished shards are kept, run again"))
        else:
            previous(args)

    previous, threading.excepthook = threading.excepthook, on_thread_error
    try:
        threading.Thread(target=target, name="pipeline", daemon=True).start()
        outcome = ended.get()
    finally:
        threading.excepthook = previous
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def _plain(error: Exception) -> RldsBeamError:
    """The error as the person at the terminal needs it: ours by its own class, others by their last line."""
    match = _OURS.search(str(error))
    if match is None and isinstance(error, rlds_beam.errors.RldsBeamError):
        return error
    if match is not None:
        kind = getattr(rlds_beam.errors, match["name"], RldsBeamError)
        return kind(match["message"])
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return RldsBeamError(f"{type(error).__name__}: {lines[-1] if lines else error}")
