"""A job that runs in a thread, and what ends the wait for it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import Any

import pytest
from processes import DEADLINE

from rlds_beam import watchdog
from rlds_beam.runners.local import run_watched


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_that_a_library_drops_ends_the_wait(number: signal.Signals) -> None:
    finish = threading.Event()

    def job() -> dict[str, Any]:
        assert finish.wait(DEADLINE)
        return {}

    def library() -> None:
        with contextlib.suppress(KeyboardInterrupt):  # as a bare `except` does
            os.kill(os.getpid(), number)
            finish.wait(DEADLINE)

    before = watchdog.on_interrupt(signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_watched(job, library)
    finally:
        finish.set()
        for given, handler in before.items():
            signal.signal(given, handler)
