"""Objects as files: read in windows that grow during sequential reads, and uploaded on close."""

from __future__ import annotations

import io
import os
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import IO, Any, BinaryIO, cast

FIRST_WINDOW = 128 << 10
"""Size in bytes of the first request for an object, and of the first after a jump."""

_LAST_WINDOW = 8 << 20
"""Largest request size in bytes, unless the caller asks for more at once."""

_AHEAD = 3
"""Maximum windows of a file to prefetch."""

_IN_MEMORY = 64 << 20
"""Maximum bytes to hold in memory until upload; larger objects go to a temporary file."""


def reader(fetch: Callable[[int, int], bytes], size: int, first: bytes = b"") -> BinaryIO:
    """Opens an object as a file.

    Args:
      fetch: returns exactly the bytes from `start` to `stop`.
      size: the size of the object in bytes.
      first: the first bytes of the object, if already read.
    """
    return cast(BinaryIO, io.BufferedReader(_Windows(fetch, size, first), FIRST_WINDOW))


def writer(upload: Callable[[IO[bytes], int], None]) -> BinaryIO:
    """A file passed to `upload` with its size on close, unless its `with` block raises."""
    return cast(BinaryIO, _Upload(upload))


class _Windows(io.RawIOBase):
    """Reads an object in windows and keeps the last one.

    Sequential reads double the window size and prefetch the next windows, but no further ahead than the number of
    bytes read in sequence so far. A jump resets the window size, so that small random reads stay cheap.
    """

    def __init__(self, fetch: Callable[[int, int], bytes], size: int, first: bytes):
        self._fetch, self._size, self._process = fetch, size, os.getpid()
        self._window, self._start, self._position = memoryview(first), 0, 0
        self._length, self._row_start = FIRST_WINDOW, 0
        self._ahead: deque[_Request] = deque()
        self._abandoned: list[_Request] = []

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
        at = self._position - self._start
        part = self._window[at : at + len(buffer)]
        buffer[: len(part)] = part
        self._position += len(part)
        return len(part)

    def close(self) -> None:
        self._ahead.clear()  # requests in flight end by themselves
        super().close()

    def _move(self, wanted: int) -> None:
        """Fetches the window at the current position."""
        forked = os.getpid() != self._process  # the parent's threads do not exist here
        if not forked and self._ahead and self._ahead[0].start_at == self._position:
            content = self._ahead.popleft().content()
        else:
            self._abandoned += self._ahead
            self._ahead.clear()
            if self._position == self._start + len(self._window):
                self._length = min(2 * self._length, _LAST_WINDOW)
            else:
                self._length, self._row_start = FIRST_WINDOW, self._position
            content = self._fetch(self._position, min(self._size, self._position + max(wanted, self._length)))
        self._window, self._start = memoryview(content), self._position
        if not forked:
            self._read_ahead(self._start + len(content))

    def _read_ahead(self, end: int) -> None:
        """Prefetches windows after `end`, the end of the current one."""
        self._abandoned = [request for request in self._abandoned if request.is_alive()]
        start = self._ahead[-1].stop_at if self._ahead else end
        while (
            start < self._size
            and start - end < self._start - self._row_start
            and len(self._ahead) + len(self._abandoned) < _AHEAD
        ):
            self._length = min(2 * self._length, _LAST_WINDOW)
            request = _Request(self._fetch, start, min(self._size, start + self._length))
            try:
                request.start()
            except RuntimeError:  # too many threads, or the interpreter is shutting down
                return
            self._ahead.append(request)
            start = request.stop_at


class _Request(threading.Thread):
    """Fetches a window; a daemon thread, so that the process can exit without waiting for the store."""

    def __init__(self, fetch: Callable[[int, int], bytes], start_at: int, stop_at: int):
        super().__init__(name="read-ahead", daemon=True)
        self.start_at, self.stop_at = start_at, stop_at
        self._fetch, self._content = fetch, b""
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._content = self._fetch(self.start_at, self.stop_at)
        except BaseException as error:  # raised by the read that needs these bytes
            self._error = error

    def content(self) -> bytes:
        """Waits for the bytes, or raises the error of the request."""
        self.join()
        if self._error is not None:
            raise self._error
        return self._content


class _Upload(io.BufferedIOBase):
    def __init__(self, upload: Callable[[IO[bytes], int], None]):
        self._upload, self._file = upload, tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115

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
            size = self._file.tell()
            self._file.seek(0)
            self._upload(cast(IO[bytes], self._file), size)
        finally:
            self.discard()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
