"""A gzip file as a seekable stream of its uncompressed bytes, which ends instead of raising where it is damaged."""

from __future__ import annotations

import io
import os
import zlib
from typing import BinaryIO

_INPUT = 1 << 16
_OUTPUT = 1 << 16  # what a damaged place costs at most, and all that is decompressed ahead
_GZIP = 16 + zlib.MAX_WBITS


class GzipStream(io.RawIOBase):
    """Reads concatenated gzip members, a bounded number of bytes at a time.

    Seeking forward decompresses; seeking backward starts again from the front.

    Attributes:
      error: why the stream ends before its time (cut short, damaged), once that has been seen; else None.
    """

    def __init__(self, file: BinaryIO):
        super().__init__()
        self._file = file
        self.error: str | None = None
        self._rewind()

    def _rewind(self) -> None:
        self._file.seek(0)
        self._inflate = zlib.decompressobj(_GZIP)
        self._input = b""
        self._output = memoryview(b"")
        self._position = 0
        self._broken = False

    def _next(self) -> bytes:
        """The next uncompressed bytes, none at the end of the stream."""
        while not self._broken:
            if self._inflate.eof and not self._begin_member():
                return b""
            compressed = self._input or self._file.read(_INPUT)
            try:
                output = self._inflate.decompress(compressed, _OUTPUT)
            except zlib.error as error:
                self._break(f"the gzip stream is damaged: {error}")
                break
            self._input = self._inflate.unconsumed_tail
            if output:
                return output
            if not compressed and not self._inflate.eof:
                self._break("the gzip stream is cut short")
        return b""

    def _break(self, error: str) -> None:
        self.error, self._broken = error, True

    def _begin_member(self) -> bool:
        """Goes to the next member; False if there is none. Zeros behind a member are padding, as for gzip."""
        rest = self._inflate.unused_data.lstrip(b"\0")
        while not rest:
            block = self._file.read(_INPUT)
            if not block:
                return False
            rest = block.lstrip(b"\0")
        self._input = rest
        self._inflate = zlib.decompressobj(_GZIP)
        return True

    def readinto(self, buffer: memoryview | bytearray, /) -> int:  # type: ignore[override]
        if not self._output:
            self._output = memoryview(self._next())
        count = min(len(buffer), len(self._output))
        buffer[:count] = self._output[:count]
        self._output = self._output[count:]
        self._position += count
        return count

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        if whence != os.SEEK_SET:
            raise io.UnsupportedOperation("the end of a gzip stream is not known beforehand")
        if offset < self._position:
            self._rewind()
        while self._position < offset:
            if not self._output:
                self._output = memoryview(self._next())
                if not self._output:
                    break
            skip = min(offset - self._position, len(self._output))
            self._output = self._output[skip:]
            self._position += skip
        return self._position

    def tell(self) -> int:
        return self._position

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()
