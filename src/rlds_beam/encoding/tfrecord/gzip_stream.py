"""A seekable stream of the uncompressed bytes of a gzip file; ends at damage instead of raising."""

from __future__ import annotations

import io
import os
import zlib
from typing import Any, BinaryIO, NamedTuple

_INPUT = 1 << 16
_OUTPUT = 1 << 16  # maximum bytes lost to damage, and maximum read-ahead
_GZIP = 16 + zlib.MAX_WBITS
_SPACING = 8 << 20  # uncompressed bytes between two restart points
_MARKS = 32  # maximum restart points, 40 KB each


class _Mark(NamedTuple):
    """A restart point: an uncompressed position, and the decompressor state there."""

    position: int
    offset: int
    inflate: Any
    input: bytes


class GzipStream(io.RawIOBase):
    """Reads concatenated gzip members, a bounded number of bytes at a time.

    Seeking forward decompresses; seeking backward decompresses from the restart point before the target.

    Attributes:
      error: the reason why the stream ends early (cut short, damaged), once detected; otherwise None.
      inflated: the number of bytes decompressed so far, including repeated ones.
    """

    def __init__(self, file: BinaryIO):
        super().__init__()
        self._file = file
        self.error: str | None = None
        self.inflated = 0
        self._spacing = _SPACING
        self._marks = [_Mark(0, 0, zlib.decompressobj(_GZIP), b"")]
        self._start_at(self._marks[0])

    def _start_at(self, mark: _Mark) -> None:
        self._file.seek(mark.offset)
        self._inflate = mark.inflate.copy()
        self._input = mark.input
        self._output = memoryview(b"")
        self._position = mark.position
        self._broken = False

    def _mark(self) -> None:
        """Adds a restart point if the last one is far away; drops every other one if there are too many."""
        if self._position < self._marks[-1].position + self._spacing:
            return
        self._marks.append(_Mark(self._position, self._file.tell(), self._inflate.copy(), self._input))
        if len(self._marks) > _MARKS:
            self._marks, self._spacing = self._marks[::2], 2 * self._spacing

    def _next(self) -> bytes:
        """Reads the next uncompressed bytes; empty at the end of the stream."""
        self._mark()
        while not self._broken:
            if self._inflate.eof and not self._begin_member():
                return b""
            compressed = self._input or self._file.read(_INPUT)
            try:
                output: bytes = self._inflate.decompress(compressed, _OUTPUT)
            except zlib.error as error:
                self._break(f"the gzip stream is damaged: {error}")
                break
            self._input = self._inflate.unconsumed_tail
            if output:
                self.inflated += len(output)
                return output
            if not compressed and not self._inflate.eof:
                self._break("the gzip stream is cut short")
        return b""

    def _break(self, error: str) -> None:
        self.error, self._broken = error, True

    def _begin_member(self) -> bool:
        """Starts the next member; False if there is none. Zeros after a member are padding, as in gzip."""
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
            raise io.UnsupportedOperation("the size of a gzip stream is unknown before it is decompressed")
        if offset < self._position:
            self._start_at(next(mark for mark in reversed(self._marks) if mark.position <= offset))
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
