"""Runs commands in their own process groups. Every wait has a deadline, and no process outlives its test.

Nothing here forks this process, since gRPC and TensorFlow run threads in it. Limits and
privileges of a child are set by a program that then executes the command (`prlimit`, `setpriv`).
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

RLDS_BEAM = (sys.executable, "-m", "rlds_beam")
DEADLINE = 120.0
"""Seconds that a command may take on a busy machine."""

_PROGRESS = re.compile(r"(\S+Z )?rlds-beam: .*, [\d:]+ (so far|left)\n")
"""The progress line that a command prints every 30 s; on a busy machine even a short one may print it."""


@contextlib.contextmanager
def running(arguments: Sequence[object], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Runs `rlds-beam` with these arguments; kills it and its workers at the end.

    Args:
      arguments: the arguments after `rlds-beam`.
      options: passed to `subprocess.Popen`; stdout and stderr are pipes by default.
    """
    with start([*RLDS_BEAM, *map(str, arguments)], **options) as process:
        yield process


@contextlib.contextmanager
def start(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Like `running`, for any command."""
    process = subprocess.Popen(
        command,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True, **options},
    )
    try:
        yield process
    finally:
        kill(process)
        process.communicate(timeout=DEADLINE)


def end_of(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Waits until a process of `start` ends; returns its exit code, output, and errors.

    Fails after `DEADLINE`, with what the process printed; with `PYTHONFAULTHANDLER=1` also with where its threads are.
    """
    try:
        out, err = process.communicate(timeout=DEADLINE)
    except subprocess.TimeoutExpired:
        kill(process, signal.SIGABRT)
        out, err = process.communicate(timeout=DEADLINE)
        raise AssertionError(f"not done after {DEADLINE:g} s:\n{out}\n{err}") from None
    return process.returncode, out, err


def run(arguments: Sequence[object], **options: Any) -> tuple[int, str, str]:
    """Runs `rlds-beam` and returns its exit code, output and errors; fails if it takes longer than `DEADLINE`.

    Progress lines are removed.
    """
    with running(arguments, **options) as process:
        code, out, err = end_of(process)
        return code, out, _PROGRESS.sub("", err)


def kill(process: subprocess.Popen[str], number: int = signal.SIGKILL) -> None:
    """Signals the whole process group: a command and its workers."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def stop_when(condition: Callable[[], object], process: subprocess.Popen[str]) -> None:
    """Stops the process group (SIGSTOP) while the condition holds; signals wait until it continues."""

    def stopped() -> bool:
        kill(process, signal.SIGSTOP)
        found = bool(condition())
        if not found:
            kill(process, signal.SIGCONT)
        return found

    wait_until(stopped, process)


def members(group: int, module: str = "") -> list[int]:
    """The live processes of a group that run a Python module (any by default), oldest first."""
    living = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            state, _, its_group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            command = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if int(its_group) == group and state != "Z" and (not module or module in command):
                living.append(int(entry.name))
    return sorted(living)


def wait_until(condition: Callable[[], object], process: subprocess.Popen[str] | None = None) -> None:
    """Waits until the condition holds or the process has ended; fails after `DEADLINE`."""
    deadline = time.monotonic() + DEADLINE
    while not condition() and (process is None or process.poll() is None):
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.001)
