"""The framing of TFRecord files, and finding frames in damaged files.

A record is `length (u64) | masked CRC32C of the length (u32) | data | masked CRC32C of the data (u32)`,
all little-endian. Source: tensorflow/core/lib/io/record_writer.h; the mask is in lib/hash/crc32c.h.
"""

from __future__ import annotations

import gzip
import io
import os
import struct
import zlib
from array import array
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from google_crc32c import value as crc32c

HEADER = struct.Struct("<QI")
FOOTER = struct.Struct("<I")
OVERHEAD = HEADER.size + FOOTER.size
"""Bytes of a record besides its data."""

LENGTH_LIMIT = 1 << 32
"""Maximum plausible length; protobuf messages are under 2 GiB. Bounds the search for headers."""

BLOCK = 1 << 20
"""Bytes to read at a time; stays in a core's cache between reading, checking, and copying."""

EFFORT, EFFORT_BYTES = 16, 16 << 20
"""Maximum bytes to read and check: per byte of the file up to the farthest read, plus a constant. Accidental damage
takes a few per byte; forged headers of large records would take the square of the file size."""

KEPT = 16 << 20
"""Buffers larger than this are freed while their record is processed."""

_MASK = 0xA282EAD8
_15, _17, _MASKS = np.array([[15], [17], [_MASK]], np.uint32)
"""Arrays of one element; numpy 1 is slower with scalars, because it inspects their values."""
_U32 = 0xFFFFFFFF


def masked_crc(data: bytes) -> int:
    """The masked CRC32C of data, as stored in TFRecord files."""
    crc: int = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK) & _U32


def mask_crcs(crcs: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Masks an array of CRC32Cs, like `masked_crc`."""
    masked: npt.NDArray[np.uint32] = crcs >> _15
    masked |= crcs << _17
    masked += _MASKS
    return masked


def record_dtype(length: int) -> np.dtype[Any]:
    """The dtype of a record with `length` bytes of data: `header`, `payload`, and `crc`."""
    place = {
        "names": ["header", "payload", "crc"],
        "formats": [f"V{HEADER.size}", f"V{length}", "<u4"],
        "offsets": [0, HEADER.size, HEADER.size + length],
        "itemsize": length + OVERHEAD,
    }
    return np.dtype(place)  # type: ignore[call-overload, no-any-return]


def payload_crcs(records: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    """The masked CRC32Cs of the payloads of an array of `record_dtype`."""
    payload = records["payload"]
    # One call converts all payloads to `bytes`, so that calling crc32c takes most of the time.
    payloads = payload.tolist() if payload.itemsize else [b""] * len(records)
    # array.array converts Python integers twice as fast as np.fromiter.
    return mask_crcs(np.frombuffer(array("I", map(crc32c, payloads)), np.uint32))


def record_header(length: int) -> bytes:
    """The 12-byte header of a record."""
    encoded = length.to_bytes(8, "little")
    return encoded + FOOTER.pack(masked_crc(encoded))


_CRC_OF_ZERO_LENGTH = np.uint32(masked_crc(bytes(8)))
_ZERO = np.uint32(crc32c(bytes(8)))
_BYTES = np.array([[crc32c(bytes([0] * i + [b] + [0] * (7 - i))) for b in range(256)] for i in range(4)], np.uint32)
_LOW = (_BYTES[0] ^ _BYTES[1][:, None]).ravel()
_HIGH = (_BYTES[2] ^ _BYTES[3][:, None]).ravel() ^ _ZERO
"""CRC32C is affine: the CRC of a length below 2^32 is the xor of the tables' entries for its low and high 16 bits."""


def find_headers(data: memoryview) -> npt.NDArray[np.int64]:
    """Ascending offsets in `data` of all 12 bytes that are a length below 2^32 and its masked CRC."""
    offsets = [np.zeros(0, np.int64)]
    for phase in range(min(4, len(data) - HEADER.size + 1)):
        words = np.frombuffer(data, "<u4", (len(data) - phase) // 4, phase)
        low, high, crc = words[:-2], words[1:-1], words[2:]
        # Long runs of zeros are common (black images, holes in a file): drop them before the tables.
        at = np.flatnonzero((high == 0) & ((low != 0) | (crc == _CRC_OF_ZERO_LENGTH)))
        if not len(at):
            continue
        halves = low[at].view("<u2")
        crcs = _LOW[halves[::2]] ^ _HIGH[halves[1::2]]
        offsets.append(at[mask_crcs(crcs) == crc[at]] * 4 + phase)
    return np.sort(np.concatenate(offsets))


class TooDamagedError(Exception):
    """Searching damaged data for records has exceeded `EFFORT`."""


class Window:
    """A buffered window of a file that mostly moves forward: one block, or one record if that is longer.

    Attributes:
      base: the file offset of the first byte held.
      filled: the number of bytes held, at the front of `data`.
      data, view: the buffer, and a memoryview of it.
      size: the size of the file in bytes; None for a gzip stream before its end was seen.
      farthest: the farthest offset read.
    """

    def __init__(self, file: BinaryIO | GzipStream):
        self._file = file
        self.size: int | None = None
        if not isinstance(file, GzipStream):  # only decompression gives the size of a gzip stream
            file.seek(0, os.SEEK_END)
            self.size = file.tell()
        self._at = -1
        self._read = self.farthest = 0
        self.block = BLOCK
        self.base = self.filled = 0
        self.data = bytearray(BLOCK if self.size is None else max(1, min(BLOCK, self.size)))
        self.view = memoryview(self.data)

    @property
    def error(self) -> str | None:
        """The reason why a gzip stream ended early; otherwise None."""
        return self._file.error if isinstance(self._file, GzipStream) else None

    @property
    def work(self) -> int:
        """Bytes read from the file (decompressed from a gzip stream), including repeated reads."""
        return self._file.inflated if isinstance(self._file, GzipStream) else self._read

    def _grow(self, count: int) -> None:
        data = bytearray(count)
        data[: self.filled] = self.view[: self.filled]
        self.data, self.view = data, memoryview(data)

    def load(self, position: int, count: int) -> int:
        """Loads `count` bytes from `position`; returns how many are available (fewer at the end of the file)."""
        held = self.base + self.filled - position
        if self.base <= position and held >= count:
            return count
        if self.size is not None:
            count = max(0, min(count, self.size - position))
            if count == 0 or (self.base <= position and held >= count):
                return count
        self._move_to(position, max(held, 0) if self.base <= position else 0)
        want = max(count, self.block)
        if self.size is not None and len(self.data) < count:
            self._grow(want + want // 4)  # the next record may be a little longer
        while self.filled < count:
            if self.filled == len(self.data):  # double: a gzip stream may be shorter than a wrong length
                self._grow(min(want, 2 * len(self.data)))
            got = self._file.readinto(self.view[self.filled : want])  # type: ignore[union-attr]
            if not got:
                self.size = position + self.filled
                break
            self.filled += got
            self._at += got
            self._read += got
        self.farthest = max(self.farthest, self._at)
        return min(count, self.filled)

    def _move_to(self, position: int, keep: int) -> None:
        """Makes `position` the base; keeps the last `keep` bytes."""
        self.view[:keep] = bytes(self.view[self.filled - keep : self.filled])
        self.base, self.filled = position, keep
        if self._at != position + keep:
            self._file.seek(position + keep)
            self._at = position + keep

    def let_go(self, position: int) -> None:
        """Frees a large buffer that ends before `position`."""
        if len(self.data) > KEPT and position >= self.base + self.filled:
            self.base, self.filled = position, 0
            self.data = bytearray(BLOCK)
            self.view = memoryview(self.data)

    def bytes_at(self, position: int, count: int) -> bytes:
        """Copies `count` bytes from `position`, or fewer at the end of the file."""
        count = self.load(position, count)
        offset = position - self.base
        return bytes(self.view[offset : offset + count])


class FrameFinder:
    """Finds frames in a file: headers, and positions from which a chain of records can be read.

    An *anchor* is a position that certainly starts a record: the header's CRC is correct, the record is within the
    file, and either the data's CRC is correct, or the next header or the end of the file follows directly. All readers
    of a file agree on its anchors, wherever they start, so independently read ranges add up to the whole file.
    """

    def __init__(self, file: BinaryIO | GzipStream, max_record_bytes: int):
        if not 0 < max_record_bytes < LENGTH_LIMIT:
            raise ValueError(f"max_record_bytes={max_record_bytes} must be in [1, {LENGTH_LIMIT - 1}]")
        self.window = Window(file)
        self.max_record_bytes = max_record_bytes
        self._checked = 0  # bytes of data checked outside of sequential reading
        self._began: int | None = None
        self._barren = (0, 0)  # an earlier search found no anchor in this range

    def spend(self, position: int) -> None:
        """Raises TooDamagedError if searching for records, now at `position`, takes too much work."""
        if self._began is None:
            self._began = position
        allowed = EFFORT * max(0, self.window.farthest - self._began) + EFFORT_BYTES
        if self.window.work + self._checked > allowed:
            raise TooDamagedError

    def length_at(self, position: int) -> int | None:
        """The record length in the header at `position`; None if these bytes are not a header."""
        window = self.window
        if window.load(position, HEADER.size) < HEADER.size:
            return None
        offset = position - window.base
        length, crc = HEADER.unpack_from(window.data, offset)
        if length >= LENGTH_LIMIT or masked_crc(bytes(window.view[offset : offset + 8])) != crc:
            return None
        return int(length)

    def payload(self, position: int, length: int) -> bytes | None:
        """The data of the record at `position`; None if it is incomplete or its CRC is wrong."""
        window = self.window
        count = length + OVERHEAD
        if length > self.max_record_bytes or window.load(position, count) < count:
            return None
        offset = position - window.base
        data = bytes(window.view[offset + HEADER.size : offset + HEADER.size + length])
        (crc,) = FOOTER.unpack_from(window.data, offset + HEADER.size + length)
        self._checked += length
        return data if masked_crc(data) == crc else None

    def anchor(self, position: int) -> int | None:
        """The end of the record at `position`; None if `position` is not an anchor."""
        length = self.length_at(position)
        if length is None:
            return None
        end = position + length + OVERHEAD
        if length <= self.max_record_bytes:  # in one piece, so that a gzip stream is not rewound
            self.window.load(position, length + OVERHEAD + HEADER.size)
        if self.window.load(end - 1, 1) == 0:
            return None
        if self.window.load(end, 1) == 0 or self.length_at(end) is not None:
            return end
        return end if self.payload(position, length) is not None else None

    def search(self, position: int, stop: int | None = None) -> int:
        """The first anchor at or after `position`; `stop` or the end of the file if there is none before it."""
        start = position
        if self._barren[0] <= position < self._barren[1]:
            start, position = self._barren
        elif self.anchor(position) is not None:  # ranges usually begin at a record
            return position
        while True:
            count = self.window.load(position, BLOCK)
            offset = position - self.window.base
            for candidate in find_headers(self.window.view[offset : offset + count]).tolist():
                self.spend(position)
                if stop is not None and position + candidate >= stop:
                    return stop
                if self.anchor(position + candidate) is not None:
                    self._barren = (start, position + candidate)
                    return int(position + candidate)
            if count < BLOCK:
                end = position + count
                self._barren = (start, end)
                return end if stop is None else min(stop, end)
            position += count - HEADER.size + 1
            if stop is not None and position >= stop:
                return stop

    def follow(self, position: int, length: int | None) -> int:
        """The end of the bad record at `position`; `length` is from its header, None without a header."""
        end = self.anchor(position)
        if end is not None:
            return end
        next_header = self.search(position + 1)
        if length is None:
            return next_header
        # Both the data and the next header are bad, but nothing suggests another end of this record.
        return min(next_header, position + length + OVERHEAD)


_GZIP_OUTPUT = 1 << 16  # maximum bytes lost to damage


class GzipStream(io.RawIOBase):
    """Reads concatenated gzip members, a bounded number of bytes at a time; ends where the stream is damaged.

    Attributes:
      error: the reason why the stream ends early (cut short, damaged), once detected; otherwise None.
      inflated: the number of bytes decompressed so far, including repeated ones.
    """

    def __init__(self, file: BinaryIO):
        super().__init__()
        self._file, self._gzip = file, gzip.GzipFile(fileobj=file, mode="rb")
        self.error: str | None = None
        self.inflated = self._position = 0
        self._ended = False

    def _next(self, count: int) -> bytes:
        """Reads up to `count` uncompressed bytes; empty at the end of the stream."""
        data = b""
        try:
            data = b"" if self._ended else self._gzip.read1(min(count, _GZIP_OUTPUT))
        except EOFError:
            self.error = "the gzip stream is cut short"
        except (gzip.BadGzipFile, zlib.error) as error:
            self.error = f"the gzip stream is damaged: {error}"
        self._ended = not data
        self.inflated += len(data)
        self._position += len(data)
        return data

    def readinto(self, buffer: memoryview | bytearray, /) -> int:  # type: ignore[override]
        data = self._next(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Seeks by decompressing: forward, or from the beginning; to the end of the stream at most."""
        if whence != os.SEEK_SET:
            raise io.UnsupportedOperation("the size of a gzip stream is unknown before it is decompressed")
        if offset < self._position:
            self._gzip.rewind()
            self._position, self._ended = 0, False
        while self._position < offset and self._next(offset - self._position):
            pass
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
