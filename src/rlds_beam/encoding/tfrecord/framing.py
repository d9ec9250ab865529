"""How a TFRecord file frames its records, and how frames are found in bytes that hold damage.

A record is `length (u64) | masked CRC32C of the length (u32) | data | masked CRC32C of the data (u32)`,
all little-endian. Source: tensorflow/core/lib/io/record_writer.h; the mask is in lib/hash/crc32c.h.
"""

from __future__ import annotations

import os
import struct
from array import array
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from google_crc32c import value as crc32c

from rlds_beam.encoding.tfrecord.gzip_stream import GzipStream

HEADER = struct.Struct("<QI")
FOOTER = struct.Struct("<I")
OVERHEAD = HEADER.size + FOOTER.size
"""Bytes of a record beside its data."""

LENGTH_LIMIT = 1 << 32
"""A greater length is no record's: Protobuf ends at 2 GiB. It bounds the search for headers."""

BLOCK = 1 << 20
"""Bytes read at a time: small enough to stay in a core's cache between reading, checking and copying."""

EFFORT, EFFORT_BYTES = 16, 16 << 20
"""Bytes that are read and checked at most: for each byte of the file up to the farthest that was seen, and beyond that.
Honest damage takes a few; headers made up to announce large records would take the square of the file's size."""

KEPT = 16 << 20
"""A buffer of more than this is not kept while the record that was read into it is worked on."""

_MASK = 0xA282EAD8
_15, _17, _MASKS = np.array([[15], [17], [_MASK]], np.uint32)
"""Arrays of one element: numpy 1 is slower with scalars, whose values it looks at."""
_U32 = 0xFFFFFFFF


def masked_crc(data: bytes) -> int:
    """The CRC32C of data in the masked form that TFRecord stores."""
    crc: int = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK) & _U32


def mask_crcs(crcs: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Masks an array of CRC32Cs, as `masked_crc` does."""
    masked: npt.NDArray[np.uint32] = crcs >> _15
    masked |= crcs << _17
    masked += _MASKS
    return masked


def record_dtype(length: int) -> np.dtype[Any]:
    """A record with `length` bytes of data: `header`, `payload` and `crc`."""
    place = {
        "names": ["header", "payload", "crc"],
        "formats": [f"V{HEADER.size}", f"V{length}", "<u4"],
        "offsets": [0, HEADER.size, HEADER.size + length],
        "itemsize": length + OVERHEAD,
    }
    return np.dtype(place)  # type: ignore[call-overload, no-any-return]


def payload_crcs(records: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    """The masked CRC32Cs of the data of records, an array of `record_dtype`."""
    payload = records["payload"]
    # Each payload as one `bytes` object, all made in one call: calling crc32c is most of what is left.
    payloads = payload.tolist() if payload.itemsize else [b""] * len(records)
    # array.array takes Python's integers in half the time that np.fromiter needs.
    return mask_crcs(np.frombuffer(array("I", map(crc32c, payloads)), np.uint32))


def record_header(length: int) -> bytes:
    """The 12 bytes before a record's data."""
    encoded = length.to_bytes(8, "little")
    return encoded + FOOTER.pack(masked_crc(encoded))


_CRC_OF_ZERO_LENGTH = np.uint32(masked_crc(bytes(8)))
_ZERO = np.uint32(crc32c(bytes(8)))
_BYTES = np.array([[crc32c(bytes([0] * i + [b] + [0] * (7 - i))) for b in range(256)] for i in range(4)], np.uint32)
_LOW = (_BYTES[0] ^ _BYTES[1][:, None]).ravel()
_HIGH = (_BYTES[2] ^ _BYTES[3][:, None]).ravel() ^ _ZERO
"""CRC32C is affine: the CRC of a length below 2^32 is the xor of what its lower and its higher 16 bits contribute."""


def find_headers(data: memoryview) -> npt.NDArray[np.int64]:
    """Offsets in `data`, ascending, of all 12 bytes that are a length below 2^32 and its masked CRC."""
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
    """Looking for records in damaged data has taken `EFFORT`."""


class Window:
    """The bytes of a file around a place that mostly moves forward: one block, or one record if that is longer.

    Attributes:
      base: offset in the file of the first byte held.
      filled: number of bytes held, at the front of `data`.
      data, view: the buffer, and a memoryview of it.
      size: bytes of the file; None for a gzip stream whose end has not been seen yet.
      farthest: the end of what was read.
    """

    def __init__(self, file: BinaryIO | GzipStream):
        self._file = file
        self.size: int | None = None
        if not isinstance(file, GzipStream):  # the size of a gzip stream costs its decompression
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
        """Why the file ended early, if it did: only a gzip stream says so."""
        return self._file.error if isinstance(self._file, GzipStream) else None

    @property
    def work(self) -> int:
        """Bytes that were read from the file (of a gzip stream, decompressed), however often."""
        return self._file.inflated if isinstance(self._file, GzipStream) else self._read

    def _grow(self, count: int) -> None:
        data = bytearray(count)
        data[: self.filled] = self.view[: self.filled]
        self.data, self.view = data, memoryview(data)

    def load(self, position: int, count: int) -> int:
        """Holds the bytes from `position` on; returns how many of `count` there are (fewer at the file's end)."""
        held = self.base + self.filled - position
        if self.base <= position and held >= count:
            return count
        if self.size is not None:
            count = max(0, min(count, self.size - position))
            if count == 0 or (self.base <= position and held >= count):
                return count
        self._move_to(position, max(held, 0) if self.base <= position else 0)
        want = max(count, self.block)
        while self.filled < count:
            if self.filled == len(self.data):  # double, so that a false length does not allocate memory
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
        """Makes `position` the base, keeping the last `keep` bytes that are held."""
        self.view[:keep] = bytes(self.view[self.filled - keep : self.filled])
        self.base, self.filled = position, keep
        if self._at != position + keep:
            self._file.seek(position + keep)
            self._at = position + keep

    def let_go(self, position: int) -> None:
        """Frees a large buffer that holds nothing from `position` on."""
        if len(self.data) > KEPT and position >= self.base + self.filled:
            self.base, self.filled = position, 0
            self.data = bytearray(BLOCK)
            self.view = memoryview(self.data)

    def bytes_at(self, position: int, count: int) -> bytes:
        """A copy of the bytes at `position`: `count` of them, or fewer at the file's end."""
        count = self.load(position, count)
        offset = position - self.base
        return bytes(self.view[offset : offset + count])


class FrameFinder:
    """Finds frames in a file: which bytes are a header, where a chain of records can be picked up.

    An *anchor* is a place where a chain of records is certain to go: a header with its right CRC, its
    record within the file, and then either the data's CRC is right, or the next record's header (or
    the file's end) follows it directly. All readers of a file agree on its anchors, wherever they
    start: that is why ranges of a file read on their own add up to the whole.
    """

    def __init__(self, file: BinaryIO | GzipStream, max_record_bytes: int):
        if not 0 < max_record_bytes < LENGTH_LIMIT:
            raise ValueError(f"max_record_bytes={max_record_bytes} is not within [1, {LENGTH_LIMIT - 1}]")
        self.window = Window(file)
        self.max_record_bytes = max_record_bytes
        self._checked = 0  # bytes of data compared with their CRC, of records that are not read in passing
        self._began: int | None = None
        self._barren = (0, 0)  # no anchor is in this range: found by an earlier search

    def spend(self, position: int) -> None:
        """Raises TooDamagedError where looking for records, now at `position`, has become too much work."""
        if self._began is None:
            self._began = position
        allowed = EFFORT * max(0, self.window.farthest - self._began) + EFFORT_BYTES
        if self.window.work + self._checked > allowed:
            raise TooDamagedError

    def length_at(self, position: int) -> int | None:
        """The length that the header at `position` gives; None if these bytes are no header."""
        window = self.window
        if window.load(position, HEADER.size) < HEADER.size:
            return None
        offset = position - window.base
        length, crc = HEADER.unpack_from(window.data, offset)
        if length >= LENGTH_LIMIT or masked_crc(bytes(window.view[offset : offset + 8])) != crc:
            return None
        return int(length)

    def payload(self, position: int, length: int) -> bytes | None:
        """The data of the record at `position`, None if it is not all there or its CRC is wrong."""
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
        """Where the record at `position` ends, if `position` is an anchor; else None."""
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
        """The first anchor at or after `position`; `stop` (the file's end) if there is none before it."""
        start = position
        if self._barren[0] <= position < self._barren[1]:
            start, position = self._barren
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
        """Where the chain continues after a bad record at `position`, whose header gives `length` (None: no header)."""
        end = self.anchor(position)
        if end is not None:
            return end
        next_header = self.search(position + 1)
        if length is None:
            return next_header
        # Data are bad and the next header too, but nothing says that this record ended anywhere else.
        return min(next_header, position + length + OVERHEAD)
