"""Processes of ours: how one is started, and what it is doing and has done, told to the one that started it.

The note of a process is one small file, which is left when it dies. It is written again when a range or a file begins
and ends, and otherwise at most twice a second: never for each episode. A process that was not told where (`keep_note`)
only counts.
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
"""The environment variable by which `--verbose` reaches the processes that a command starts."""

_ENDING = ".note"
_UPDATE_SECONDS = 0.5
_RUN_MODULE = (
    "import sys; sys.path[:] = filter(None, sys.path); "
    "import runpy; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def is_verbose() -> bool:
    """Whether this process and those that it starts show their logs."""
    return bool(os.environ.get(VERBOSE))


def command(module: str, *arguments: str) -> list[str]:
    """The command that runs `module` as `python -m` does, but never imports from the current directory.

    A user's `logging.py` there must not take the place of an installed module. (`python -P` does so from 3.11 on.)
    """
    return [sys.executable, "-c", _RUN_MODULE, module, *arguments]


class Done(NamedTuple):
    """How far a process, or a whole job, is.

    Attributes:
      scanned: stretches of files that were looked through for duplicates.
      ranges: that are finished.
      records, bytes: that were read, without framing.
      steps: of accepted episodes.
      rejected: records.
      framed: bytes of files that were gone through for their records' framing, or for a checksum.
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
        """From a job's metrics, by the same names."""
        return cls(**{name: metrics.get(name, 0) for name in cls._fields})


class Note(NamedTuple):
    """What a process noted.

    Attributes:
      process: its id.
      at: what it is doing: a range, and the stretch of a file in it.
      seconds: how long it was at work, up to the start of what it is doing now.
      done: how far it is.
    """

    process: int
    at: tuple[str, ...]
    seconds: float
    done: Done = Done()


class _Notebook:
    """The file of this process."""

    def __init__(self, path: str):
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT)
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
        """Notes what is done by now, unless that was noted a moment ago."""
        if time.monotonic() - self._written > _UPDATE_SECONDS:
            with self._lock:
                self._write()

    def _write(self) -> None:
        self._written = time.monotonic()
        content = {"at": list(self._open.values()), "seconds": self._seconds, "done": _counts}
        line = json.dumps(content) + "\n"
        with contextlib.suppress(OSError):  # A full disk for temporary files is no reason to fail.
            os.pwrite(self._file, line.encode(), 0)  # what an earlier, longer line leaves after it is never read


_notebook: _Notebook | None = None
_counts = [0] * len(Done._fields)


def keep_note(directory: str) -> None:
    """From now on, notes what this process is doing in a file in `directory`."""
    global _notebook
    _notebook = _Notebook(os.path.join(directory, f"{os.getpid()}{_ENDING}"))


@contextlib.contextmanager
def working_on(what: object) -> Iterator[None]:
    """Notes that this process is doing `what` for as long as the block takes. Blocks may be nested."""
    notebook = _notebook
    if notebook is None:
        yield
        return
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
    """Counts what this process has done, in a microsecond."""
    counts = _counts
    counts[0] += scanned
    counts[1] += ranges
    counts[2] += records
    counts[3] += bytes
    counts[4] += steps
    counts[5] += rejected
    counts[6] += framed
    if _notebook is not None:
        _notebook.update()


def done() -> Done:
    """What this process has counted since it started."""
    return Done(*_counts)


def read_notes(directory: str) -> list[Note]:
    """The notes of all processes that keep theirs in `directory`."""
    notes = []
    for path in sorted(Path(directory).glob(f"*{_ENDING}")):
        with contextlib.suppress(OSError, ValueError):  # of a process that has just begun
            content = json.loads(path.read_text().partition("\n")[0])
            process, done = int(path.name.removesuffix(_ENDING)), Done(*content["done"])
            notes.append(Note(process, tuple(content["at"]), content["seconds"], done))
    return notes
