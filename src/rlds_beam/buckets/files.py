"""Objects as files: read in windows that grow while the reading is sequential, uploaded when they are closed."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable
from types import TracebackType
from typing import IO, Any, BinaryIO, cast

FIRST_WINDOW = 128 << 10
"""Bytes of the first request for an object, and of one after a jump."""

_LAST_WINDOW = 16 << 20
"""Bytes of the largest request made on our own account; the client may ask for more at once."""

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
    """Keeps the window read last. Sequential reading doubles it, so that small reads at random places stay cheap."""

    def __init__(self, fetch: Callable[[int, int], bytes], size: int, first: bytes):
        self._fetch, self._size = fetch, size
        self._window, self._start, self._position, self._ahead = memoryview(first), 0, 0, FIRST_WINDOW

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
        end = self._start + len(self._window)
        if self._position >= self._size:
            return 0
        if not self._start <= self._position < end:
            self._ahead = min(2 * self._ahead, _LAST_WINDOW) if self._position == end else FIRST_WINDOW
            stop = min(self._size, self._position + max(len(buffer), self._ahead))
            self._window, self._start = memoryview(self._fetch(self._position, stop)), self._position
        at = self._position - self._start
        part = self._window[at : at + len(buffer)]
        buffer[: len(part)] = part
        self._position += len(part)
        return len(part)


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
