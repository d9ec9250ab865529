"""Keeps bytes of remote files on this machine: an SQLite database that processes share.

    files    id, path, and when the bytes of the file were last used
    parts    key (a digest of the path, the offset, the size, and the CRC32C), file, and the bytes

A thread writes what was read, some at a time. What is not there, cannot be read, or does not match its CRC32C is read
from the remote file as without a cache. If the cache is full, the bytes of files that were not used for an hour make
room; if there are none, nothing is added, so that an epoch of a dataset larger than the cache finds what is there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import google_crc32c

from rlds_beam import storage
from rlds_beam.datasets.base import PerThread
from rlds_beam.errors import UsageError
from rlds_beam.text import escape_controls

Part = tuple[str, int, int, int]
"""A path, an offset, a size, and a CRC32C."""

_PAGE = 16384
_AT_ONCE = 256
"""Parts that are written together."""
_WAITING = 2048
"""Parts that wait to be written; more are not added."""
_UNUSED_SECONDS = 3600
_TABLES = """
CREATE TABLE IF NOT EXISTS files (id INTEGER PRIMARY KEY, path TEXT UNIQUE, used INTEGER);
CREATE TABLE IF NOT EXISTS parts (key INTEGER PRIMARY KEY, file INTEGER, data BLOB);
CREATE INDEX IF NOT EXISTS parts_of_files ON parts (file);
"""


class ByteCache:
    """A cache. Picklable and thread-safe; another process uses the same file.

    Args:
      directory: the directory of the file, which is created if needed.
      size: the largest allowed size of the file in bytes.

    Raises:
      UsageError: the directory cannot be written, or belongs to another user.
    """

    def __init__(self, directory: str, size: int):
        self._directory, self._size = directory, size
        self._path = os.path.join(directory, "bytes.sqlite")
        try:
            os.makedirs(directory, mode=0o700, exist_ok=True)
            if os.stat(directory).st_uid != os.geteuid() or not os.access(directory, os.W_OK):
                raise PermissionError(1, "it belongs to another user")
        except OSError as error:
            raise UsageError(
                f"cache_bytes: cannot write to {directory}: {error.strerror or error}. Set RLDS_BEAM_CACHE to "
                "another directory"
            ) from error
        self._connections: PerThread[Any] = PerThread(self._connect, close=lambda connection: connection.close())
        self._start()

    def _start(self) -> None:
        self._process, self._lock, self._is_off = os.getpid(), threading.Lock(), False
        self._queue: queue.Queue[tuple[int, str, bytes] | threading.Event] = queue.Queue(_WAITING)
        self._used: set[str] = set()
        self._writer: threading.Thread | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return ByteCache, (self._directory, self._size)

    def get_many(self, wanted: Mapping[int, Part]) -> dict[int, bytes]:
        """Those of the wanted bytes that are there and match their checksums."""
        if self._is_off or not wanted:
            return {}
        numbers: dict[int, list[int]] = {}
        for number, part in wanted.items():
            numbers.setdefault(_key(part), []).append(number)
        found: dict[int, bytes] = {}
        with self._guard():
            marks = ",".join("?" * len(numbers))
            query = f"SELECT key, data FROM parts WHERE key IN ({marks})"
            for key, data in self._connections[self._path].execute(query, list(numbers)):
                path, _, size, crc = wanted[numbers[key][0]]
                if isinstance(data, bytes) and len(data) == size and google_crc32c.value(data) == crc:
                    found |= dict.fromkeys(numbers[key], data)
                    self._used.add(path)
        return found

    def put(self, path: str, offset: int, crc: int, data: bytes) -> None:
        """Adds bytes soon; not if too many wait."""
        if self._process != os.getpid():
            self._start()  # a forked process: the thread does not exist there
        if self._is_off:
            return
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait((_key((path, offset, len(data), crc)), path, data))
        if self._writer is None:
            with self._lock:
                if self._writer is None:
                    self._writer = threading.Thread(target=self._write, name="byte-cache", daemon=True)
                    self._writer.start()

    def flush(self) -> None:
        """Waits until what was added is written."""
        if self._writer is not None and self._process == os.getpid():
            written = threading.Event()
            self._queue.put(written)
            written.wait()

    def _write(self) -> None:
        while True:
            entries = [self._queue.get()]
            if self._queue.qsize() < _AT_ONCE and not isinstance(entries[0], threading.Event):
                time.sleep(0.05)  # some more may come
            with contextlib.suppress(queue.Empty):
                while len(entries) < _AT_ONCE:
                    entries.append(self._queue.get_nowait())
            parts = [entry for entry in entries if isinstance(entry, tuple)]
            if not self._is_off:
                with self._guard():
                    self._add(parts)
            for entry in entries:
                if isinstance(entry, threading.Event):
                    entry.set()

    def _add(self, parts: list[tuple[int, str, bytes]]) -> None:
        connection, now = self._connections[self._path], int(time.time())
        used, self._used = self._used | {path for _, path, _ in parts}, set()
        with _transaction(connection):
            query = "INSERT INTO files (path, used) VALUES (?, ?) ON CONFLICT (path) DO UPDATE SET used = excluded.used"
            connection.executemany(query, [(path, now) for path in used])
            room = self._size - _used_bytes(connection)
            room += self._evict(connection, sum(len(data) + _PAGE for _, _, data in parts) - room, now)
            files = {path: _one(connection, "SELECT id FROM files WHERE path = ?", path) for path in used}
            for key, path, data in parts:
                room -= len(data) + _PAGE
                if room >= 0:
                    connection.execute("INSERT OR REPLACE INTO parts VALUES (?, ?, ?)", (key, files[path], data))

    def _evict(self, connection: Any, wanted: int, now: int) -> int:
        """Removes parts of files that were not used, the oldest first, until there is room; returns how much."""
        before = _used_bytes(connection)
        query = "SELECT id FROM files WHERE used < ? ORDER BY used LIMIT 1"
        while (freed := before - _used_bytes(connection)) < wanted:
            file = _one(connection, query, now - _UNUSED_SECONDS)
            if file is None:
                return freed
            connection.execute("DELETE FROM parts WHERE file = ?", (file,))
            connection.execute("DELETE FROM files WHERE id = ?", (file,))
        return freed

    def _connect(self, path: str) -> Any:
        import sqlite3

        connection = sqlite3.connect(path, timeout=5, isolation_level=None, check_same_thread=False)
        connection.execute(f"PRAGMA page_size={_PAGE}")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=OFF")  # bytes are compared with their checksums
        connection.execute("PRAGMA journal_size_limit=16777216")
        connection.executescript(_TABLES)
        return connection

    @contextlib.contextmanager
    def _guard(self) -> Iterator[None]:
        """Goes on without the cache if it cannot be used, for example because it is damaged, or the disk is full."""
        import sqlite3

        try:
            yield
        except sqlite3.Error as error:
            if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
                return  # by another process, for now
            self._is_off = True
            damaged = not isinstance(error, sqlite3.OperationalError)
            if damaged:
                for suffix in ("", "-wal", "-shm"):
                    storage.discard(self._path + suffix)
            ending = "it was removed, and is filled again by the next open_dataset" if damaged else "it is not used"
            warnings.warn(escape_controls(f"the cache {self._path}: {error}: {ending}"), stacklevel=2)


def _key(part: Part) -> int:
    digest = hashlib.blake2b(repr(part).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _one(connection: Any, query: str, *values: object) -> Any:
    row = connection.execute(query, values).fetchone()
    return None if row is None else row[0]


def _used_bytes(connection: Any) -> int:
    pages, free = (_one(connection, f"PRAGMA {name}") for name in ("page_count", "freelist_count"))
    return int(pages - free) * _PAGE


@contextlib.contextmanager
def _transaction(connection: Any) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
