"""Worker processes of this machine, watched: one that dies ends the job, and what it was at is said."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from rlds_beam.at_work import Note, read_notes
from rlds_beam.errors import RldsBeamError

_LOOK_SECONDS = 1.0
_GRACE_SECONDS = 30.0
"""How long the job may go on when a worker has ended without an error, as all do at its end: longer, and it is dead."""

_END_SECONDS = 5.0
_EXIT_CODE = re.compile(r"return code (-?\d+)")

Outcome = BaseException | dict[str, Any]


def watched(job: Callable[[], dict[str, Any]], home: str) -> dict[str, Any]:
    """Runs `job` in a thread and stops waiting for it when a worker process dies: Beam would wait forever.

    Args:
      job: what to run.
      home: where its worker processes keep their notes (`at_work`) and logs.

    Raises:
      RldsBeamError: a worker process died; and whatever `job` raises.
    """
    ended: queue.SimpleQueue[Outcome] = queue.SimpleQueue()

    def target() -> None:
        try:
            ended.put(job())
        except BaseException as error:
            ended.put(error)

    def on_thread_error(args: threading.ExceptHookArgs) -> None:
        if args.thread is not None and args.thread.name == "run_worker":
            ended.put(_Died(_last_words(home, str(args.exc_value))))
        elif not isinstance(args.exc_value, grpc.RpcError) or os.environ.get("RLDS_BEAM_VERBOSE"):
            previous(args)

    previous, threading.excepthook = threading.excepthook, on_thread_error
    threading.Thread(target=target, name="pipeline", daemon=True).start()
    outcome = _next(ended, home)
    if isinstance(outcome, Exception) and not isinstance(outcome, RldsBeamError):
        with contextlib.suppress(queue.Empty):  # Whatever Beam says of it, the cause may be a worker that died.
            later = ended.get(timeout=_LOOK_SECONDS)
            outcome = later if isinstance(later, _Died) else outcome
    if isinstance(outcome, BaseException):
        raise outcome  # The hook stays: threads of Beam's will complain of lost connections for a while.
    threading.excepthook = previous
    return outcome


def wait_until_gone(home: str) -> None:
    """Returns when no worker is left, or after a while if one does not hear that it is to end."""
    deadline = time.monotonic() + _END_SECONDS
    while len(_dead(home)) < len(read_notes(home)) and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS / 20)


class _Died(RldsBeamError):
    """A worker process died."""


def _next(ended: queue.SimpleQueue[Outcome], home: str) -> Outcome:
    """How the job ended; or that a worker left it, which Beam would not tell."""
    gone_since = None
    while True:
        with contextlib.suppress(queue.Empty):
            return ended.get(timeout=_LOOK_SECONDS)
        if not _dead(home):
            continue
        gone_since = gone_since or time.monotonic()
        if time.monotonic() - gone_since > _GRACE_SECONDS:
            return _Died(_last_words(home, "it ended of itself"))


def _dead(home: str) -> list[Note]:
    """The notes of processes that are no more."""
    return [note for note in read_notes(home) if not _is_alive(note.process)]


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def _last_words(home: str, error: str) -> str:
    """How a worker ended, what it was at, and the last that it said."""
    dead = _dead(home)
    at = "; ".join(", ".join(note.at) for note in dead if note.at)
    where = f" at {at}" if at else " between two ranges" if dead else " at its start"
    logs = [Path(home, f"{note.process}.log") for note in dead] or sorted(Path(home).glob("*.log"))
    said = [line for log in logs if log.exists() for line in log.read_text(errors="replace").splitlines()[-1:]]
    why = ": ".join([_cause(error), *said[:1]])
    return f"a worker process died{where} ({why}); what is finished is kept, run again"


def _cause(error: str) -> str:
    """An exit code in words."""
    match = _EXIT_CODE.search(error)
    if match is None:
        return error
    code = int(match[1])
    if code >= 0:
        return f"exit code {code}"
    if code == -signal.SIGKILL:
        return "killed by SIGKILL, as a system that runs out of memory does: fewer --workers take less"
    return f"killed by {signal.Signals(-code).name}"
