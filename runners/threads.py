"""Errors in threads that Beam starts, which would go unnoticed otherwise."""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from rlds_beam import watchdog
from rlds_beam.errors import NO_MORE_THREADS, RldsBeamError, no_more_threads
from rlds_beam.worker_status import is_verbose

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
    before = watchdog.interrupts()
    while True:
        if watchdog.interrupts() > before:
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
