"""Errors in threads that Beam starts, which would go unnoticed otherwise."""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
import time
from collections.abc import Iterator

from rlds_beam.errors import NoMoreThreadsError, RldsBeamError
from rlds_beam.worker_status import is_verbose

NO_MORE_THREADS = "can't start new thread"
"""Python's message if the system starts no more threads."""

_JOIN_SECONDS = 1.0


def no_more_threads() -> NoMoreThreadsError:
    """The error if the system starts no more threads or processes."""
    return NoMoreThreadsError(
        "the system starts no more threads or processes for this user: raise the limit (ulimit -u, or the container's "
        "limit), or use fewer --workers; finished work is kept"
    )


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
