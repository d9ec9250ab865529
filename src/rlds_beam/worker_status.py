"""Our processes: how to start one, how Ctrl-C and other signals end it, and what each has counted."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

VERBOSE = "RLDS_BEAM_VERBOSE"
"""The environment variable that passes `--verbose` to a command's processes."""

METRICS_NAMESPACE = "rlds_beam"
"""The namespace of this package's Beam metrics."""


def is_verbose() -> bool:
    """Whether this process and its children show their logs."""
    return bool(os.environ.get(VERBOSE))


def command(module: str, *arguments: str) -> list[str]:
    """The command that runs `module` like `python -m`, but never imports from the current directory.

    A user's `logging.py` there must not shadow an installed module.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


class Done(NamedTuple):
    """The progress of a process or of a whole job.

    Attributes:
      scanned: file segments scanned for duplicates.
      ranges: finished ranges.
      records: records read.
      bytes: bytes read, without framing.
      steps: steps of accepted episodes.
      rejected: rejected records.
      framed: bytes of files read for their records' framing or for a checksum.
    """

    scanned: int = 0
    ranges: int = 0
    records: int = 0
    bytes: int = 0
    steps: int = 0
    rejected: int = 0
    framed: int = 0

    def __sub__(self, other: Done) -> Done:
        return Done(*(a - b for a, b in zip(self, other)))  # noqa: B905


_counts = dict.fromkeys(Done._fields, 0)


def count(**added: int) -> None:
    """Adds to this process's counts, which have the names of the fields of `Done`; takes a microsecond."""
    for name, number in added.items():
        _counts[name] += number


def done() -> Done:
    """This process's counts since it started."""
    return Done(**_counts)


_interrupts = 0


@contextlib.contextmanager
def as_ctrl_c() -> Iterator[None]:
    """SIGTERM and SIGHUP raise KeyboardInterrupt in the block, as SIGINT does, unless they are ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, _raise) for number in numbers if signal.getsignal(number) != signal.SIG_IGN}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _raise(number: int, frame: Any) -> None:
    global _interrupts
    _interrupts += 1
    raise KeyboardInterrupt


def interrupts() -> int:
    """The number of interrupts in `as_ctrl_c`: a library or finalizer may drop a `KeyboardInterrupt`."""
    return _interrupts
