"""A pytest plugin that ends a process whose test is stuck where pytest-timeout's signal does not reach it.

Its own module, without our package, so that the test of it starts in a moment on a busy machine.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from typing import Any

import pytest

GRACE = 120.0
"""Seconds that a test has to fail after its deadline, and its fixtures to clean up after a failure."""


def pytest_configure(config: pytest.Config) -> None:
    global _log
    _log = os.dup(sys.__stderr__.fileno())  # while nothing is captured


def _end_process_after(seconds: float) -> None:
    """Dumps the stacks and ends this process if the same test is still running after `seconds`.

    A C thread does this without running Python, since a test may be stuck in a library that holds the GIL.
    """
    faulthandler.dump_traceback_later(seconds, exit=True, file=_log)


def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> None:
    _end_process_after(settings.timeout + GRACE)


def pytest_timeout_cancel_timer(item: pytest.Item) -> None:
    faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    # pytest and pytest-timeout cancel their deadlines when a test fails; this one covers fixture teardown.
    _end_process_after(GRACE)
