"""Reads intact TFRecord files fast, with records of equal length as a matrix.

`file.read_records` continues after damage and yields records one by one. Files written by rlds-beam must be intact, so
here damage is an error, and consecutive records of equal length are read together. Only checksums are computed record
by record.
"""

from __future__ import annotations

from typing import BinaryIO, Protocol

import numpy as np
import numpy.typing as npt

from rlds_beam.encoding.tfrecord.framing import (
    BLOCK,
    HEADER,
    LENGTH_LIMIT,
    OVERHEAD,
    masked_crc,
    payload_crcs,
    record_dtype,
)
from rlds_beam.errors import RldsBeamError

Bytes = npt.NDArray[np.uint8]


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
            raise self._damaged("the record is cut short")
        count = min(limit, (len(self._data) - self._at) // size)
        records = np.frombuffer(self._data, record_dtype(length), count, self._at)
        count = _leading(records["header"] == records["header"][0])
        sound = _leading(payload_crcs(records[:count]) == records["crc"][:count])
        rows = np.frombuffer(self._data, np.uint8, count * size, self._at).reshape(count, size)
        if sound < count:
            self._skip(sound, size)
            raise self._damaged("the data does not match its checksum")
        self._skip(count, size)
        return rows[:, HEADER.size : HEADER.size + length]

    def _skip(self, count: int, size: int) -> None:
        self._at += count * size
        self.position += count * size
        self.records += count

    def _length(self) -> int:
        if self._load(HEADER.size) < HEADER.size:
            raise self._damaged("the record's header is cut short")
        length, crc = HEADER.unpack_from(self._data, self._at)
        if masked_crc(self._data[self._at : self._at + 8]) != crc or length >= LENGTH_LIMIT // 2:
            raise self._damaged("the record's length does not match its checksum")
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

    def _damaged(self, reason: str) -> RldsBeamError:
        return RldsBeamError(
            f"{self._name}, byte {self.position}: {reason}; the file is damaged: fetch it again, or "
            "convert the dataset again"
        )


def _leading(good: npt.NDArray[np.bool_]) -> int:
    """The number of leading True values."""
    return len(good) if good.all() else int(np.argmin(good))
