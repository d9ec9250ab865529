"""Reading a sound TFRecord file fast: records of equal length as a matrix.

`tfrecord.read_records` continues after damage, and gives each record on its own. Files of rlds-beam itself must be
intact, so here damage ends the reading, and all records of a block that are of one length are read together: only
their checksums are computed record by record.
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
    """What `hashlib` and `xxhash` make."""

    def update(self, data: bytes, /) -> object: ...


class RowReader:
    """Reads the records of a TFRecord file in order.

    Args:
      file: a binary file at its start; it is not closed.
      name: of the file, for messages.
      digest: is given every byte of the file as it is read.

    Attributes:
      position: offset of the next record's first byte.
      records: number of records read so far.
    """

    def __init__(self, file: BinaryIO, name: str, digest: Digest):
        self._file, self._name, self._digest = file, name, digest
        self._data = b""
        self._at = 0  # of the next record in _data
        self.position = self.records = 0

    def read(self, limit: int) -> Bytes | None:
        """The data of the next records, which are all of one length: uint8 [k, length], 0 < k <= limit.

        None at the end of the file. It is a view of the bytes that were read, and stays valid.

        Raises:
          RldsBeamError: a checksum does not agree or the file ends within a record; names file and offset.
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
            raise self._damaged("the data do not match their checksum")
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
        """Holds `count` bytes from the next record on; returns how many of them there are."""
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
            f"{self._name}, byte {self.position}: {reason}; it is not what was written: fetch the file again, or "
            "convert the dataset again"
        )


def _leading(good: npt.NDArray[np.bool_]) -> int:
    """How many come before the first that is False."""
    return len(good) if good.all() else int(np.argmin(good))
