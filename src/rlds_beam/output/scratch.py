"""Temporary directories that do not outlive a killed process for long: the next process removes them.

A process holds the operating system's lock (`flock`) on each of its directories. Unlike a process id in a name, it
means the same in every container, and it ends with its process. On a file system without locks nothing is removed.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import tempfile
from typing import Any

from rlds_beam import platforms

PREFIX = "rlds-beam-tmp-"


class ScratchDirectory(tempfile.TemporaryDirectory[str]):
    """A temporary directory. The first one of a process removes those of killed processes.

    Args:
      parent: the directory to create it in; the system's (`TMPDIR`) by default.
    """

    def __init__(self, parent: str | None = None):
        self._lock: int | None = None
        parent = parent or tempfile.gettempdir()
        _sweep(parent)
        while True:
            super().__init__(prefix=PREFIX, dir=parent, ignore_cleanup_errors=True)
            with contextlib.suppress(OSError):
                self._lock = os.open(self.name, os.O_RDONLY | os.O_DIRECTORY)
                platforms.lock_file(self._lock, wait=True)
            if os.path.isdir(self.name):
                return
            self._unlock()  # another process swept it before it was locked

    def cleanup(self) -> None:
        super().cleanup()
        self._unlock()

    def __exit__(self, *_: Any) -> None:
        self.cleanup()

    def __del__(self) -> None:
        self._unlock()

    def _unlock(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


@functools.lru_cache(maxsize=16)
def _sweep(parent: str) -> None:
    """Removes the directories that killed processes of this user left in `parent`."""
    left: list[str] = []
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        left = [entry.path for entry in entries if entry.name.startswith(PREFIX)]
    for path in left:
        with contextlib.suppress(OSError):
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(lock).st_uid == os.geteuid():
                    platforms.lock_file(lock, wait=False)
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)
