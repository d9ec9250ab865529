"""Tests cannot hang on any machine: no forks, waits have deadlines, stuck tests fail, no test measures time."""

from __future__ import annotations

import os
import re
import sys

from checkout import ROOT
from processes import end_of, start


def run_python(*arguments: object, **environment: str) -> tuple[int, str]:
    """The exit code, and what Python printed."""
    command, options = [sys.executable, *map(str, arguments)], {**os.environ, "PYTHONFAULTHANDLER": "1", **environment}
    with start(command, env=options) as process:
        code, out, err = end_of(process)
    return code, out + err


# Seconds enough for a test to reach the place where it is stuck, also on a busy machine: a deadline that passes in
# pytest's own code is an internal error of pytest.
STUCK = """
import ctypes, threading
import pytest, hard_deadline

hard_deadline.GRACE = 5.0
stuck = pytest.mark.timeout(5)

@pytest.fixture
def endless():
    yield
    threading.Event().wait()

@stuck
def test_in_python(): threading.Event().wait()

@stuck
def test_in_c_with_the_gil():
    lock = ctypes.create_string_buffer(100)
    for _ in range(2):
        ctypes.PyDLL(None).pthread_mutex_lock(lock)

@stuck
def test_fails_and_cannot_clean_up(endless): assert False, "the failure"

def test_sound(): pass
"""


def test_a_stuck_test_fails_and_shows_where(tmp_path) -> None:
    (tmp_path / "test_stuck.py").write_text(STUCK)
    (tmp_path / "pytest.ini").write_text("[pytest]\ntimeout_method = signal\n")
    options = ["-m", "pytest", "-n", "3", "--dist=worksteal", "-p", "hard_deadline", "-p", "no:hypothesispytest"]
    # Without a directory of its own, it would remove those that earlier runs of the suite left: minutes on a slow disk.
    options += [f"--basetemp={tmp_path / 'files'}"]
    code, said = run_python(*options, tmp_path / "test_stuck.py", PYTHONPATH=str(ROOT / "tests" / "support"))
    assert code == 1, said
    assert "4 failed, 1 passed" in said, said
    assert "Failed: Timeout (>5.0s) from pytest-timeout" in said
    assert "AssertionError: the failure" in said
    for test, place in (("in_c_with_the_gil", "test_in_c_with_the_gil"), ("fails_and_cannot_clean_up", "endless")):
        assert f"crashed while running 'test_stuck.py::test_{test}'" in said
        assert re.search(rf'test_stuck.py", line \d+ in {place}$', said, re.MULTILINE), said
