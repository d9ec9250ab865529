"""Frames TFRecord records for writing, and reads intact files fast.

A record is `length (u64) | masked CRC32C of the length (u32) | data | masked CRC32C of the data (u32)`,
all little-endian. Source: tensorflow/core/lib/io/record_writer.h; the mask is in lib/hash/crc32c.h.

`file.read_records` continues after damage and yields records one by one. Files written by rlds-beam must be intact, so
for `RecordRows` damage is an error, and consecutive records of equal length are read together as a matrix. Only
checksums are computed record by record.
"""

from __future__ import annotations

import functools
import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, BinaryIO, Protocol

import numpy as np
import numpy.typing as npt
from google_crc32c import value as crc32c

from rlds_beam.errors import RldsBeamError

Bytes = npt.NDArray[np.uint8]

HEADER = struct.Struct("<QI")
FOOTER = struct.Struct("<I")
OVERHEAD = HEADER.size + FOOTER.size
"""Bytes of a record besides its data."""

LENGTH_LIMIT = 1 << 32
"""Maximum plausible length; protobuf messages are under 2 GiB. Bounds the search for headers."""

BLOCK = 1 << 20
"""Bytes to read at a time; stays in a core's cache between reading, checking, and copying."""

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


_JOINED = 1 << 17
"""Join about this many bytes of records, which stay in the cache; longer records are not copied again."""

_known_header = functools.lru_cache(maxsize=1 << 12)(record_header)


def frame(payload: bytes) -> bytes:
    """Frames one record."""
    return b"".join(frame_record(payload))


def frame_record(payload: bytes, crc: int | None = None) -> tuple[bytes, bytes, bytes]:
    """Frames one record, in pieces; `crc` is the payload's masked CRC32C, if known."""
    return record_header(len(payload)), payload, FOOTER.pack(masked_crc(payload) if crc is None else crc)


def frame_all(payloads: Sequence[bytes]) -> bytes:
    """Frames and joins records of any lengths."""
    return b"".join(framed_blocks(payloads))


def framed_blocks(payloads: Iterable[bytes]) -> Iterator[bytes]:
    """Frames records of any lengths, in pieces: several short records, or part of a long one."""
    rest = iter(payloads)
    for first in rest:
        block = [first, *islice(rest, _JOINED // max(1, len(first)))]
        crcs = mask_crcs(np.frombuffer(array("I", map(crc32c, block)), np.uint32)).astype("<u4", copy=False)
        headers, footers = map(_known_header, map(len, block)), crcs.view(f"V{FOOTER.size}").tolist()
        pieces = chain.from_iterable(zip(headers, block, footers, strict=True))
        yield from pieces if len(block) == 1 else [b"".join(pieces)]


class FramedRows:
    """A reusable buffer for N framed records of R bytes: fill `payload` in place, then call `finish`.

    Attributes:
      payload: the payloads, uint8 [N, R], a view of the frames; initially not set.
    """

    def __init__(self, count: int, length: int):
        self._framed = np.empty((count, length + OVERHEAD), np.uint8)
        self._framed[:, : HEADER.size] = np.frombuffer(record_header(length), np.uint8)
        self.payload: npt.NDArray[np.uint8] = self._framed[:, HEADER.size : HEADER.size + length]
        self._records = self._framed.reshape(-1).view(record_dtype(length))

    def finish(self, count: int | None = None) -> npt.NDArray[np.uint8]:
        """Computes the checksums of the first `count` records (all by default).

        Returns:
          uint8 [count, R + 16], the bytes to write to the file; valid until the buffer is filled again.
        """
        records = self._records[:count]
        records["crc"] = payload_crcs(records)
        return self._framed[:count]


class Digest(Protocol):
    """A hash object of `hashlib` or `xxhash`."""

    def update(self, data: bytes, /) -> object: ...


class RecordRows:
    """Reads the records of a TFRecord file in order.

    Args:
      file: a binary file at its start; it is not closed.
      name: the name of the file, for messages.
      digest: a hash object, updated with every byte read.

    Attributes:
      position: the offset of the next record.
      records: the number of records read so far.
    """

    def __init__(self, file: BinaryIO, name: str, digest: Digest):
        self._file, self._name, self._digest = file, name, digest
        self._data = b""
        self._at = 0  # the offset of the next record in _data
        self.position = self.records = 0

    def read(self, limit: int) -> Bytes | None:
        """Reads the next records of equal length: uint8 [k, length], 0 < k <= limit; None at the end of the file.

        Raises:
          RldsBeamError: a checksum is wrong or the file ends within a record; names the file and the offset.
        """
        if not self._load(1):
            return None
        length = self._length()
        size = length + OVERHEAD
        if self._load(size) < size:
            raise self._damage_error("the record is cut short")
        count = min(limit, (len(self._data) - self._at) // size)
        records = np.frombuffer(self._data, record_dtype(length), count, self._at)
        count = _leading(records["header"] == records["header"][0])
        sound = _leading(payload_crcs(records[:count]) == records["crc"][:count])
        rows = np.frombuffer(self._data, np.uint8, count * size, self._at).reshape(count, size)
        if sound < count:
            self._skip(sound, size)
            raise self._damage_error("the data does not match its checksum")
        self._skip(count, size)
        return rows[:, HEADER.size : HEADER.size + length]

    def _skip(self, count: int, size: int) -> None:
        self._at += count * size
        self.position += count * size
        self.records += count

    def _length(self) -> int:
        if self._load(HEADER.size) < HEADER.size:
            raise self._damage_error("the record's header is cut short")
        length, crc = HEADER.unpack_from(self._data, self._at)
        if masked_crc(self._data[self._at : self._at + 8]) != crc or length >= LENGTH_LIMIT // 2:
            raise self._damage_error("the record's length does not match its checksum")
        return int(length)

    def _load(self, count: int) -> int:
        """Loads `count` bytes from the next record on; returns how many are available."""
        there = len(self._data) - self._at
        if there >= count:
            return count
        parts = [self._data[self._at :]]
        while there < count and (part := self._file.read(max(BLOCK, count - there))):
            self._digest.update(part)
            parts.append(part)
            there += len(part)
        self._data, self._at = b"".join(parts), 0
        return min(there, count)

    def _damage_error(self, reason: str) -> RldsBeamError:
        return RldsBeamError(
            f"{self._name}, byte {self.position}: {reason}; the file is damaged: fetch it again, or "
            "convert the dataset again"
        )


def _leading(good: npt.NDArray[np.bool_]) -> int:
    """The number of leading True values."""
    return len(good) if good.all() else int(np.argmin(good))
