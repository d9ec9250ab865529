"""Worker processes: how to start one, and how it reports its status to its parent.

A process writes its status to one small file, its note, which remains if it dies. It updates the note when a range or
a file begins or ends, and otherwise at most twice a second, never for each episode. Without `keep_note`, it writes no
file; `note` has its status.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

VERBOSE = "RLDS_BEAM_VERBOSE"
"""The environment variable that passes `--verbose` to a command's processes."""

METRICS_NAMESPACE = "rlds_beam"
"""The namespace of this package's Beam metrics."""

_ENDING = ".note"
_UPDATE_SECONDS = 0.5
_RUN_MODULE = (
    "import sys; sys.path[:] = filter(None, sys.path); "
    "import runpy; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def is_verbose() -> bool:
    """Whether this process and its children show their logs."""
    return bool(os.environ.get(VERBOSE))


def command(module: str, *arguments: str) -> list[str]:
    """The command that runs `module` like `python -m`, but never imports from the current directory.

    A user's `logging.py` there must not shadow an installed module. (From 3.11 on, `python -P` does the same.)
    """
    return [sys.executable, "-c", _RUN_MODULE, module, *arguments]


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

    def __add__(self, other: Done) -> Done:  # type: ignore[override]
        return Done(*(a + b for a, b in zip(self, other)))  # noqa: B905

    def __sub__(self, other: Done) -> Done:
        return Done(*(a - b for a, b in zip(self, other)))  # noqa: B905

    @classmethod
    def of_metrics(cls, metrics: Mapping[str, Any]) -> Done:
        """Makes one from a job's metrics, which have the same names."""
        return cls(**{name: metrics.get(name, 0) for name in cls._fields})


class Note(NamedTuple):
    """The status of a process.

    Attributes:
      process: the process id.
      at: its current work: a range and a segment of a file in it.
      seconds: working seconds before its current work.
      done: its progress.
    """

    process: int
    at: tuple[str, ...]
    seconds: float
    done: Done = Done()


class _Notebook:
    """What this process is at, and its note file, if it keeps one."""

    def __init__(self, path: str | None = None):
        self.file = None if path is None else os.open(path, os.O_WRONLY | os.O_CREAT)
        self._lock = threading.Lock()
        self._open: dict[int, str] = {}
        self._count = 0
        self._began = self._seconds = self._written = 0.0
        self._write()

    def begin(self, what: object) -> int:
        with self._lock:
            if not self._open:
                self._began = time.monotonic()
            self._count += 1
            self._open[self._count] = str(what)
            self._write()
            return self._count

    def end(self, number: int) -> None:
        with self._lock:
            del self._open[number]
            if not self._open:
                self._seconds += time.monotonic() - self._began
            self._write()

    def update(self) -> None:
        """Writes the current counts, unless they were written a moment ago."""
        if time.monotonic() - self._written > _UPDATE_SECONDS:
            with self._lock:
                self._write()

    def note(self) -> Note:
        """The status of this process."""
        with self._lock:
            return Note(os.getpid(), tuple(self._open.values()), self._seconds, done())

    def _write(self) -> None:
        if self.file is None:
            return
        self._written = time.monotonic()
        content = {"at": list(self._open.values()), "seconds": self._seconds, "done": _counts}
        line = json.dumps(content) + "\n"
        with contextlib.suppress(OSError):  # A full temporary disk is no reason to fail.
            os.pwrite(self.file, line.encode(), 0)  # the rest of an earlier, longer line is never read


_counts = [0] * len(Done._fields)
_notebook = _Notebook()


def keep_note(directory: str) -> None:
    """Starts writing this process's status to a file in `directory`."""
    global _notebook
    _notebook = _Notebook(os.path.join(directory, f"{os.getpid()}{_ENDING}"))


@contextlib.contextmanager
def working_on(what: object) -> Iterator[None]:
    """Reports `what` as this process's current work while the block runs. Blocks may be nested."""
    notebook = _notebook
    number = notebook.begin(what)
    try:
        yield
    finally:
        notebook.end(number)


def count(
    scanned: int = 0,
    ranges: int = 0,
    records: int = 0,
    bytes: int = 0,
    steps: int = 0,
    rejected: int = 0,
    framed: int = 0,
) -> None:
    """Adds to this process's counts; takes a microsecond."""
    counts = _counts
    counts[0] += scanned
    counts[1] += ranges
    counts[2] += records
    counts[3] += bytes
    counts[4] += steps
    counts[5] += rejected
    counts[6] += framed
    if _notebook.file is not None:
        _notebook.update()


def done() -> Done:
    """This process's counts since it started."""
    return Done(*_counts)


def note() -> Note:
    """The status of this process."""
    return _notebook.note()


def read_notes(directory: str) -> list[Note]:
    """The status of every process that writes to `directory`."""
    notes = []
    for path in sorted(Path(directory).glob(f"*{_ENDING}")):
        with contextlib.suppress(OSError, ValueError):  # the process has just started
            content = json.loads(path.read_text().partition("\n")[0])
            process, done = int(path.name.removesuffix(_ENDING)), Done(*content["done"])
            notes.append(Note(process, tuple(content["at"]), content["seconds"], done))
    return notes
