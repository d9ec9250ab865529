"""Runs a job in a thread and ends it on errors that Beam would wait for forever."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from rlds_beam import watchdog
from rlds_beam.errors import RldsBeamError
from rlds_beam.runners.threads import NO_MORE_THREADS, no_more_threads

_LOOK_SECONDS = 0.2
_CAUSE_SECONDS = 1.0
"""Seconds to look for the cause of a failed job: a worker process that died."""

Outcome = BaseException | dict[str, Any]


def watched(job: Callable[[], dict[str, Any]], error: Callable[[], RldsBeamError | None]) -> dict[str, Any]:
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
