"""Processes of ours: how one is started, and what it is at, told to the one that started it.

Of a process that dies, its note is left.
The note is one small file for each process, written anew when a range or a file begins and when it ends:
nothing is written for an episode. A process that nobody told where to note it (`keep_note`) notes nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_ENDING = ".note"
_RUN_MODULE = (
    "import sys; sys.path[:] = filter(None, sys.path); "
    "import runpy; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def command(module: str, *arguments: str) -> list[str]:
    """The command that runs `module` as `python -m` does, but never imports from the current directory.

    A user's `logging.py` there must not take the place of an installed module. (`python -P` does so from 3.11 on.)
    """
    return [sys.executable, "-c", _RUN_MODULE, module, *arguments]


class Note(NamedTuple):
    """What a process noted.

    Attributes:
      process: its id.
      at: what it is at: a range, and the stretch of a file in it.
      seconds: how long it was at work, what it is at now not counted.
    """

    process: int
    at: tuple[str, ...]
    seconds: float


class _Notebook:
    """The file of this process."""

    def __init__(self, path: str):
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT)
        self._lock = threading.Lock()
        self._open: dict[int, str] = {}
        self._count = 0
        self._began = self._seconds = 0.0
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

    def _write(self) -> None:
        line = json.dumps({"at": list(self._open.values()), "seconds": self._seconds}) + "\n"
        with contextlib.suppress(OSError):  # A full disk for temporary files is no reason to fail.
            os.pwrite(self._file, line.encode(), 0)  # what an earlier, longer line leaves behind it is never read


_notebook: _Notebook | None = None


def keep_note(directory: str) -> None:
    """From now on, notes what this process is at in a file in `directory`."""
    global _notebook
    _notebook = _Notebook(os.path.join(directory, f"{os.getpid()}{_ENDING}"))


@contextlib.contextmanager
def at_work(what: object) -> Iterator[None]:
    """Notes that this process is at `what` for as long as the block takes. Blocks may lie within each other."""
    notebook = _notebook
    if notebook is None:
        yield
        return
    number = notebook.begin(what)
    try:
        yield
    finally:
        notebook.end(number)


def read_notes(directory: str) -> list[Note]:
    """The notes of all processes that keep theirs in `directory`."""
    notes = []
    for path in sorted(Path(directory).glob(f"*{_ENDING}")):
        with contextlib.suppress(OSError, ValueError):  # of a process that has just begun
            content = json.loads(path.read_text().partition("\n")[0])
            notes.append(Note(int(path.name.removesuffix(_ENDING)), tuple(content["at"]), content["seconds"]))
    return notes
