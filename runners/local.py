"""Runs jobs on this machine: Beam's in-process runner, with worker processes if the job is large enough.

Beam is imported only when a job runs, so usage errors are reported at once.

Errors in threads that Beam starts would go unnoticed: `run_watched` ends the job with them.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import rlds_beam.errors
from rlds_beam import interrupts, worker_status
from rlds_beam.errors import NO_MORE_THREADS, DiskError, OutOfMemoryError, RldsBeamError, UsageError, no_more_threads
from rlds_beam.output.scratch import ScratchDirectory
from rlds_beam.platforms import count_cores
from rlds_beam.runners.base import Define, Runner
from rlds_beam.runners.worker_processes import worker_processes
from rlds_beam.user_functions import describe_error, is_users
from rlds_beam.worker_status import Done, Note, is_verbose

LARGE_INPUT = 100 * 10**6
"""Bytes of input for which starting worker processes, a few seconds, pays."""

_OURS = re.compile(r"rlds_beam\.errors\.(?P<name>\w+): (?P<message>[^\n]*?)(?: \[while running|\\n|\n|$)")
_ERRNO = re.compile(r"Error: \[Errno (?P<number>\d+)\] [^\n']*: '(?P<path>[^']+)'")
"""An OSError that names a file, in a worker's traceback."""
_MEMORY = re.compile(r"\b_?\w*MemoryError(: )?(?P<said>.*?)(?: \[while running|\\n|$)")
"""A MemoryError in the last line of a worker's traceback."""
_STEP = re.compile(r" \[while running '[^']*'\]$")
"""The suffix that Beam adds to an error message in a step."""


class LocalRunner(Runner):
    """Runs a job in this process, or in worker processes that it starts."""

    _look: Callable[[], Sequence[Note]] = staticmethod(tuple)

    def check(self) -> None:
        if self.options.beam_options and _running_mode(self.options.beam_options) != "in_memory":
            raise UsageError(
                "--direct_running_mode opens Beam's services to every network; use --workers=N to start workers"
            )

    def run_job(self, define: Define, input_bytes: int) -> dict[str, Any]:
        from rlds_beam.runners.beam_adapters import JobOptions

        self.check()
        workers = self.options.workers or (count_cores() if input_bytes > LARGE_INPUT else 1)
        flags = JobOptions([f"--direct_num_workers={workers}", *self.options.beam_options])
        try:
            return self._in_processes(define, flags) if workers > 1 else self._in_process(define, flags)
        except RldsBeamError as error:
            raise type(error)(_STEP.sub("", str(error))) from error
        except Exception as error:
            if "KeyboardInterrupt [while running" in str(error):  # Beam's wording for Ctrl-C during a step
                raise KeyboardInterrupt from error
            raise plain(error) from error

    def done(self) -> Done | None:
        notes = self._look()
        return sum((note.done for note in notes), Done()) if notes else None

    def notes(self) -> Sequence[Note]:
        return self._look()

    def _in_process(self, define: Define, flags: Any) -> dict[str, Any]:
        import apache_beam as beam
        from apache_beam.runners.portability.fn_api_runner import FnApiRunner

        before = worker_status.done()

        def look() -> list[Note]:
            note = worker_status.note()
            return [note._replace(done=note.done - before)]

        self._look = look
        # DirectRunner would first try to download another runner.
        return self._complete_in(None, beam.Pipeline(runner=FnApiRunner(), options=flags), define)

    def _in_processes(self, define: Define, flags: Any) -> dict[str, Any]:
        import apache_beam as beam

        from rlds_beam.runners.worker_services import WorkerRunner

        with thread_errors() as fatal, worker_processes() as workers:

            def job() -> dict[str, Any]:
                return self._complete_in(
                    workers.home, beam.Pipeline(runner=WorkerRunner(workers), options=flags), define
                )

            def error() -> RldsBeamError | None:
                with contextlib.suppress(queue.Empty):
                    return fatal.get_nowait()
                return workers.error()

            self._look = workers.notes
            metrics = run_watched(job, error)
            workers.end()
            metrics["worker_seconds"] = [note.seconds for note in workers.notes()]
        return metrics

    def _complete_in(self, home: str | None, pipeline: Any, define: Define) -> dict[str, Any]:
        """Completes a pipeline with its temporary files in `home`: Beam removes its directory only after a success."""
        os.rmdir(pipeline.local_tempdir)
        with ScratchDirectory(home) as pipeline.local_tempdir:
            return self.complete(pipeline, define)


def _running_mode(flags: tuple[str, ...]) -> str:
    from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions

    return str(PipelineOptions(list(flags)).view_as(DirectOptions).direct_running_mode)


def plain(error: Exception) -> RldsBeamError:
    """The error for the user: our own errors by their class, others by their last line."""
    ours = _ours(error)
    if ours is not None:
        return ours
    if NO_MORE_THREADS in str(error):
        return no_more_threads()
    match = _ERRNO.search(str(error))
    if match is not None and (disk := DiskError.of(int(match["number"]), match["path"])) is not None:
        return disk
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    memory = _MEMORY.search(lines[-1] if lines else "")
    if isinstance(error, MemoryError) or memory is not None:
        return OutOfMemoryError.of(memory["said"] if memory else _STEP.sub("", str(error)))
    if is_users(error):
        return RldsBeamError(re.sub(r" \[while running '[^']*'\]", "", f"your code {describe_error(error)}"))
    return RldsBeamError(f"{type(error).__name__}: {lines[-1] if lines else error}")


def _ours(error: Exception) -> RldsBeamError | None:
    """Our own error that a worker raised, if `error` contains one."""
    match = _OURS.search(str(error))
    if match is not None:
        kind: type[RldsBeamError] = getattr(rlds_beam.errors, match["name"], RldsBeamError)
        return kind(match["message"])
    return error if isinstance(error, RldsBeamError) else None


_JOIN_SECONDS = 1.0


@contextlib.contextmanager
def thread_errors() -> Iterator[queue.SimpleQueue[RldsBeamError]]:
    """Collects errors in library threads that must end the job, while the block runs.

    Ignores lost connections, which Beam's threads report whenever a job ends.
    """
    before, previous = {*threading.enumerate()}, threading.excepthook
    fatal: queue.SimpleQueue[RldsBeamError] = queue.SimpleQueue()

    def hook(args: threading.ExceptHookArgs) -> None:
        if NO_MORE_THREADS in str(args.exc_value):
            fatal.put(no_more_threads())
        elif not _is_lost_connection(args.exc_value) or is_verbose():
            previous(args)

    threading.excepthook = hook
    try:
        yield fatal
    finally:
        _join([thread for thread in threading.enumerate() if thread not in before])
        if threading.excepthook is hook:
            threading.excepthook = previous


def _is_lost_connection(error: BaseException | None) -> bool:
    grpc = sys.modules.get("grpc")
    return grpc is not None and isinstance(error, grpc.RpcError)


def _join(threads: list[threading.Thread]) -> None:
    """Waits for threads that are about to end; the threads of a pool never end."""
    deadline = time.monotonic() + _JOIN_SECONDS
    for thread in threads:
        if not thread.daemon and thread is not threading.current_thread():
            thread.join(max(0.0, deadline - time.monotonic()))


_LOOK_SECONDS = 0.2
_CAUSE_SECONDS = 1.0
"""Seconds to look for the cause of a failed job: a worker process that died."""

Outcome = BaseException | dict[str, Any]


def run_watched(job: Callable[[], dict[str, Any]], error: Callable[[], RldsBeamError | None]) -> dict[str, Any]:
    """Runs `job` in a thread and stops waiting once it can no longer end.

    Args:
      job: the function to run.
      error: returns why the job cannot end; None while it is running normally.

    Raises:
      RldsBeamError: the error that `error` returned.
      KeyboardInterrupt: the command was interrupted.
      Exception: any error that `job` raised.
    """
    ended: queue.SimpleQueue[Outcome] = queue.SimpleQueue()

    def target() -> None:
        try:
            ended.put(job())
        except BaseException as raised:
            ended.put(raised)

    try:
        threading.Thread(target=target, name="pipeline", daemon=True).start()
    except RuntimeError as raised:
        raise (no_more_threads() if NO_MORE_THREADS in str(raised) else raised) from raised
    outcome = _next(ended, error)
    if isinstance(outcome, Exception) and not isinstance(outcome, RldsBeamError):
        outcome = _cause(error) or outcome  # Our cause explains more than Beam's error.
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def _next(ended: queue.SimpleQueue[Outcome], error: Callable[[], RldsBeamError | None]) -> Outcome:
    before = interrupts.count()
    while True:
        if interrupts.count() > before:
            raise KeyboardInterrupt
        with contextlib.suppress(queue.Empty):
            return ended.get(timeout=_LOOK_SECONDS)
        cause = error()
        if cause is not None:
            return cause


def _cause(error: Callable[[], RldsBeamError | None]) -> RldsBeamError | None:
    deadline = time.monotonic() + _CAUSE_SECONDS
    while time.monotonic() < deadline:
        cause = error()
        if cause is not None:
            return cause
        time.sleep(_LOOK_SECONDS / 4)
    return None
