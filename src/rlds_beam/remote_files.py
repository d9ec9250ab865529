"""Remote files: read in windows that grow, or by ranges, many at once; uploaded when they are closed."""

from __future__ import annotations

import functools
import io
import os
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, BinaryIO, TypeVar, cast

from rlds_beam.remote import Entry, Store

_FIRST_WINDOW, _LAST_WINDOW = 128 << 10, 8 << 20
"""Bytes of the first request for a file, and of the first after a jump; the most of a request."""
_AHEAD = 2
"""Windows that are requested before they are needed."""
_IN_MEMORY = 64 << 20
"""The most bytes of an upload in memory; larger files are in a temporary file until then."""
_RANGES_PER_CALL = 10  # obstore sends as many requests at once
_CALLS = 40
"""Threads that wait for a store: with ten requests each, 1 Gbit/s of images of 15 kB, 30 ms away."""

Result = TypeVar("Result")


def open_read(store: Store, path: str) -> BinaryIO:
    """Opens a remote file as a seekable file. Raises FileNotFoundError if it does not exist."""
    return cast(BinaryIO, io.BufferedReader(_Windows(store, *store.open(path, _FIRST_WINDOW)), _FIRST_WINDOW))


class _Windows(io.RawIOBase):
    """Reads a file in windows, and keeps the last one.

    Sequential reads double the size of a window and request the next ones. A jump resets it, so that random reads stay
    small.
    """

    def __init__(self, store: Store, entry: Entry, first: bytes):
        self._store, self._entry, self._size = store, entry, entry.size or 0
        self._window, self._start, self._position, self._length = memoryview(first), 0, 0, _FIRST_WINDOW
        self._ahead: deque[tuple[int, Future[bytes]]] = deque()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence])
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        if self._position >= self._size:
            return 0
        if not self._start <= self._position < self._start + len(self._window):
            self._move(len(buffer))
        part = self._window[self._position - self._start :][: len(buffer)]
        buffer[: len(part)] = part
        self._position += len(part)
        return len(part)

    def close(self) -> None:
        self._forget()
        super().close()

    def _forget(self) -> None:
        while self._ahead:
            self._ahead.pop()[1].cancel()

    def _move(self, wanted: int) -> None:
        """Fetches the window at the current position, and requests what follows if it follows the last one."""
        is_next = self._position == self._start + len(self._window) and self._position > 0
        if self._ahead and self._ahead[0][0] == self._position:
            content = self._ahead.popleft()[1].result()
        else:
            self._forget()
            self._length = min(2 * self._length, _LAST_WINDOW) if is_next else _FIRST_WINDOW
            stop = min(self._size, self._position + max(wanted, self._length))
            content = self._store.read(self._entry, self._position, stop)
        self._window, self._start = memoryview(content), self._position
        start = self._start + len(content) + sum(self._length for _ in self._ahead)
        while is_next and start < self._size and len(self._ahead) < _AHEAD:
            stop = min(self._size, start + self._length)
            self._ahead.append((start, submit(functools.partial(self._store.read, self._entry, start, stop))))
            start = stop


def open_write(store: Store, path: str) -> BinaryIO:
    """Opens a remote file for writing; it is uploaded when it is closed, unless its `with` block raises."""
    return cast(BinaryIO, _Upload(store, path))


class _Upload(io.BufferedIOBase):
    def __init__(self, store: Store, path: str):
        self._store, self._path = store, path
        self._file = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        return self._file.write(content)

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        if self.closed:
            return
        try:
            self._file.seek(0)
            self._store.write(self._path, cast(BinaryIO, self._file))
        finally:
            self.discard()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def __del__(self) -> None:
        self.discard()

    def discard(self) -> None:
        """Closes the file without uploading it."""
        self._file.close()
        super().close()


class RangeReader:
    """Reads ranges of a remote file. Thread-safe. Raises FileNotFoundError if the file does not exist."""

    def __init__(self, store: Store, path: str):
        self._store = store
        self._entry, _ = self._store.open(path, 1)

    def request(self, start: int, stop: int) -> Future[bytes]:
        """Starts to read the bytes from `start` to `stop`; raises BucketError if the file was replaced."""
        return submit(functools.partial(self._store.read, self._entry, start, stop))

    def request_many(self, ranges: Sequence[tuple[int, int]]) -> list[Callable[[], bytes]]:
        """Starts to read many ranges; returns functions that wait for their bytes.

        Callers compare checksums: that the file was replaced is not noticed.
        """
        parts: list[Callable[[], bytes]] = []
        for first in range(0, len(ranges), _RANGES_PER_CALL):
            some = ranges[first : first + _RANGES_PER_CALL]
            future = submit(functools.partial(self._store.read_ranges, self._entry.path, some))
            parts += [functools.partial(_take, future, i) for i in range(len(some))]
        return parts


def _take(future: Future[Sequence[bytes]], i: int) -> bytes:
    return future.result()[i]


def submit(function: Callable[[], Result]) -> Future[Result]:
    """Calls a function that waits for a store, in a pool of threads."""
    return _find_pool(os.getpid()).submit(function)


@functools.lru_cache(maxsize=1)
def _find_pool(process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_CALLS, thread_name_prefix="remote")
