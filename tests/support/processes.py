"""Commands in process groups of their own. Every wait for one has a deadline, and none outlives its test.

Nothing here forks this process, in which gRPC and TensorFlow run threads: see `test_processes.py`. What a child has to
be given before it starts comes from a program that sets it and then executes the command (`prlimit`, `setpriv`).
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

_PROGRESS = re.compile(r"rlds-beam: .*, [\d:]+ (so far|left)\n")
"""What a command says every 30 s: on a busy machine, one that takes a second elsewhere."""


@contextlib.contextmanager
def running(arguments: Sequence[object], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """`rlds-beam` with these arguments; it and its workers are gone at the end.

    Args:
      arguments: after the name of the command.
      options: of `subprocess.Popen`; output and errors are pipes by default.
    """
    with start([*RLDS_BEAM, *map(str, arguments)], **options) as process:
        yield process


@contextlib.contextmanager
def start(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Any command, as `running`."""
    process = subprocess.Popen(
        command,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True, **options},
    )
    try:
        yield process
    finally:
        kill(process)
        process.communicate(timeout=DEADLINE)


def run(arguments: Sequence[object], **options: Any) -> tuple[int, str, str]:
    """Exit code, output and errors of `rlds-beam` with these arguments; fails if it takes longer than `DEADLINE`.

    Lines of progress are left out.
    """
    with running(arguments, **options) as process:
        out, err = process.communicate(timeout=DEADLINE)
        return process.returncode, out, _PROGRESS.sub("", err)


def kill(process: subprocess.Popen[str], number: int = signal.SIGKILL) -> None:
    """Signals the whole group: a command and its workers."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def members(group: int, module: str = "") -> list[int]:
    """The living processes of a process group that run a Python module (any, by default), oldest first."""
    living = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            state, _, its_group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            command = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if int(its_group) == group and state != "Z" and (not module or module in command):
                living.append(int(entry.name))
    return sorted(living)


def wait_until(condition: Callable[[], object], process: subprocess.Popen[str] | None = None) -> None:
    """Returns when the condition holds, or when the process has ended; fails after `DEADLINE`."""
    deadline = time.monotonic() + DEADLINE
    while not condition() and (process is None or process.poll() is None):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.001)
