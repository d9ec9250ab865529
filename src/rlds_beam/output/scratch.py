"""Temporary directories and files that do not outlive a killed process for long: the next process removes them.

A process holds the operating system's lock (`flock`) on each of its directories. Unlike a process id in a name, it
means the same in every container, and it ends with its process. On a file system without locks nothing is removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
import tempfile
from types import TracebackType
from typing import Any

from rlds_beam import storage
from rlds_beam.output.checksums import checksum_of
from rlds_beam.output.shards import ShardInfo

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
                fcntl.flock(self._lock, fcntl.LOCK_EX)
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
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)


_BLOCK = 4 << 20


class LocalFile:
    """A local temporary file that becomes a file of an output, possibly in a bucket.

    A context manager: it removes the file if it was not committed by the end of the block.

    Attributes:
      name: the path to write to.
    """

    def __init__(self, path: str):
        self._path = path
        self._home: ScratchDirectory | None = None
        if storage.scheme(path) is None:
            self.name = storage.temporary_name(path)
        else:
            self._home = ScratchDirectory()
            self.name = os.path.join(self._home.name, f"file{os.path.splitext(path)[1]}")

    def commit(self, records: int, first_key: str | None = None, last_key: str | None = None) -> ShardInfo:
        """Moves the file to its final path, replacing any file there; returns its `ShardInfo`."""
        size, checksum = os.path.getsize(self.name), checksum_of(self.name)
        if storage.scheme(self._path) is None:
            storage.rename(self.name, self._path)
        else:
            with open(self.name, "rb") as file, storage.open_write(self._path) as target:
                while block := file.read(_BLOCK):
                    target.write(block)
            self.abort()
        return ShardInfo(records, size, checksum, first_key, last_key)

    def abort(self) -> None:
        """Removes the unfinished file; does nothing after `commit`."""
        storage.discard(self.name)
        if self._home is not None:
            self._home.cleanup()

    def __enter__(self) -> LocalFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()
