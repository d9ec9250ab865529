"""Commands in processes of their own, whose current directory holds the test modules as a user's modules."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

_MODULES = Path(__file__).parents[1]
_DEADLINE = 120


@contextlib.contextmanager
def command(*arguments: object, environment: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """`rlds-beam`, in a process group that is gone at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "rlds_beam", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        cwd=_MODULES, env={**os.environ, "PYTHONPATH": str(_MODULES / "support"), **(environment or {})},
    )  # fmt: skip
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=_DEADLINE)


def run(*arguments: object) -> tuple[int, str, str]:
    """Exit code, output and errors of a command."""
    with command(*arguments) as process:
        out, err = process.communicate(timeout=_DEADLINE)
        return process.returncode, out, err
