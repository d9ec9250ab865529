"""This machine: Beam's in-process runner, with a process for each worker where the job pays for them."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import shlex
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apache_beam as beam
import grpc
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
_STEP = re.compile(r" \[while running '[^']*'\]$")
"""What Beam adds to the message of an error that met a step."""


def run(define: Callable[[Any], Any], options: RunOptions, input_bytes: int) -> dict[str, Any]:
    """Runs the job on this machine and waits for its end.

    Raises:
      RldsBeamError: the job failed, or a worker process died.
    """
    workers = options.workers or (os.cpu_count() or 1 if input_bytes >= WORTH_A_WORKER else 1)
    flags = [f"--direct_num_workers={workers}", *options.beam_options]

    def job(environment: Any = None) -> dict[str, Any]:
        # DirectRunner would first try to download another runner.
        pipeline = beam.Pipeline(runner=FnApiRunner(environment), options=PipelineOptions(flags))
        define(pipeline)
        result = pipeline.run()
        result.wait_until_finish()
        return read_metrics(result)

    try:
        return _with_workers(job) if workers > 1 else job()
    except RldsBeamError as error:
        raise type(error)(_STEP.sub("", str(error))) from error
    except Exception as error:
        if "KeyboardInterrupt [while running" in str(error):  # Beam's wording of one that met a step at work
            raise KeyboardInterrupt from error
        raise plain(error) from error


def _with_workers(job: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    """Runs `job` with worker processes, which are gone when this returns or raises."""
    with tempfile.TemporaryDirectory(prefix="rlds-beam-", ignore_cleanup_errors=True) as home:
        # A worker ends when this file does: Beam leaves workers waiting when a pipeline ends badly.
        alive = os.path.join(home, "alive")
        open(alive, "x").close()
        # In place of the shell that Beam starts it by, so that a worker sees when this process is no more; and with
        # a safe path, so that no module in the current directory stands in for one that is installed.
        python = f"exec env PYTHONSAFEPATH=1 {shlex.quote(sys.executable)}"
        command = f"{python} -m rlds_beam.runners.worker {shlex.quote(alive)}"
        return _watched(lambda: job(SubprocessSDKEnvironment.from_command_string(command)), home)


def _watched(job: Callable[[], dict[str, Any]], home: str) -> dict[str, Any]:
    """Runs `job` in a thread and stops waiting for it when a worker process dies: Beam would wait forever."""
    ended: queue.SimpleQueue[BaseException | dict[str, Any]] = queue.SimpleQueue()

    def target() -> None:
        try:
            ended.put(job())
        except BaseException as error:
            ended.put(error)

    def on_thread_error(args: threading.ExceptHookArgs) -> None:
        if args.thread is not None and args.thread.name == "run_worker":
            ended.put(
                RldsBeamError(f"a worker process died ({_cause(args, home)}); what is finished is kept, run again")
            )
        elif not isinstance(args.exc_value, grpc.RpcError) or os.environ.get("RLDS_BEAM_VERBOSE"):
            previous(args)

    previous, threading.excepthook = threading.excepthook, on_thread_error
    threading.Thread(target=target, name="pipeline", daemon=True).start()
    outcome = ended.get()
    if isinstance(outcome, Exception) and _ours(outcome) is None:
        with contextlib.suppress(queue.Empty):  # Whatever Beam says of it, the cause may be a worker that died.
            outcome = ended.get(timeout=1)
    if isinstance(outcome, BaseException):
        raise outcome  # The hook stays: threads of Beam's will complain of lost connections for a while.
    threading.excepthook = previous
    return outcome


def _cause(args: threading.ExceptHookArgs, home: str) -> str:
    """How a worker ended, and the last that it said."""
    said = [line for log in Path(home).glob("*.log") for line in log.read_text().splitlines()[-1:]]
    return ": ".join([str(args.exc_value), *said[:1]])


def plain(error: Exception) -> RldsBeamError:
    """The error as the person at the terminal needs it: ours by its own class, others by their last line."""
    ours = _ours(error)
    if ours is not None:
        return ours
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return RldsBeamError(f"{type(error).__name__}: {lines[-1] if lines else error}")


def _ours(error: Exception) -> RldsBeamError | None:
    """The error of this package's that a worker met, where that is what `error` is about."""
    match = _OURS.search(str(error))
    if match is not None:
        kind: type[RldsBeamError] = getattr(rlds_beam.errors, match["name"], RldsBeamError)
        return kind(match["message"])
    return error if isinstance(error, RldsBeamError) else None
