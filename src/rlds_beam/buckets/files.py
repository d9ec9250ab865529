"""Objects as files: read in windows that grow while the reading is sequential, uploaded when they are closed."""

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
"""Bytes of the first request for an object, and of one after a jump."""

_LAST_WINDOW = 8 << 20
"""Bytes of the largest request made on our own account; the client may ask for more at once."""

_AHEAD = 3
"""Windows of a file that are requested in advance, at most."""

_IN_MEMORY = 64 << 20
"""Bytes of an object that are kept in memory until they are uploaded; more go to a temporary file."""


def reader(fetch: Callable[[int, int], bytes], size: int, first: bytes = b"") -> BinaryIO:
    """An object as a file.

    Args:
      fetch: gives the bytes from `start` to `stop`, all of them.
      size: bytes of the object.
      first: its first bytes, if they are known already.
    """
    return cast(BinaryIO, io.BufferedReader(_Windows(fetch, size, first), FIRST_WINDOW))


def writer(upload: Callable[[IO[bytes], int], None]) -> BinaryIO:
    """A file that `upload` gets, with its size, when it is closed; not after an exception in its `with` block."""
    return cast(BinaryIO, _Upload(upload))


class _Windows(io.RawIOBase):
    """Keeps the window read last.

    Sequential reading doubles the windows, and requests the next ones in advance while they start within as many bytes
    as were read in a row. A jump starts with a small window again, so that small reads at random places stay cheap.
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
        self._ahead.clear()  # requests on their way end by themselves
        super().close()

    def _move(self, wanted: int) -> None:
        """Gets the window at the position."""
        forked = os.getpid() != self._process  # without its parent's threads
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
        """Requests windows after `end`, where the current one ends."""
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
            except RuntimeError:  # there are too many threads, or the interpreter is shutting down
                return
            self._ahead.append(request)
            start = request.stop_at


class _Request(threading.Thread):
    """Fetches a window. The thread is a daemon, so that a process can end without waiting for a store."""

    def __init__(self, fetch: Callable[[int, int], bytes], start_at: int, stop_at: int):
        super().__init__(name="read-ahead", daemon=True)
        self.start_at, self.stop_at = start_at, stop_at
        self._fetch, self._content = fetch, b""
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._content = self._fetch(self.start_at, self.stop_at)
        except BaseException as error:  # for the read that needs these bytes
            self._error = error

    def content(self) -> bytes:
        """Waits for the bytes, or raises what went wrong."""
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
