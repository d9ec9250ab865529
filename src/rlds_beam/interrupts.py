"""Ctrl-C and SIGTERM: handlers that count them, and an event that a handler may set."""

from __future__ import annotations

import contextlib
import math
import queue
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

_LOOK_SECONDS = 1.0
_interrupts = 0


class SignalEvent:
    """An event that a signal handler sets and the main thread waits for.

    `threading.Event` is not for that: `set` would wait for a lock that the interrupted `wait` holds.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_set = False

    def set(self) -> None:
        self._is_set = True
        self._queue.put(None)

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the event is set, at most `timeout` seconds; returns whether it is.

        A signal that comes just before the thread begins to wait does not wake it, so it looks again every second.
        """
        end = math.inf if timeout is None else time.monotonic() + timeout
        while not self._is_set and (left := end - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                self._queue.get(timeout=min(left, _LOOK_SECONDS))
        return self._is_set


def on_interrupt(
    handler: Callable[[int, Any], object], numbers: Sequence[int] = (signal.SIGINT, signal.SIGTERM)
) -> dict[int, Any]:
    """Handles these signals unless they are ignored; returns the old handlers."""

    def handle(number: int, frame: Any) -> None:
        global _interrupts
        _interrupts += 1
        handler(number, frame)

    return {number: signal.signal(number, handle) for number in numbers if signal.getsignal(number) != signal.SIG_IGN}


def count() -> int:
    """The number of signals of `on_interrupt`: a `KeyboardInterrupt` is lost where a library or finalizer drops it."""
    return _interrupts
