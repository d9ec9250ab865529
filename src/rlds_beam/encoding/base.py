"""The contract of a record file: how a file's records are read, listed and cut into ranges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

import google_crc32c
import numpy as np
import numpy.typing as npt


class Record(NamedTuple):
    """A record that could be read.

    Attributes:
      position: of the record in its file, in the unit of its format: the offset of its first byte in a TFRecord file
        (in the uncompressed bytes of a gzip one), its index in an ArrayRecord file.
      payload: its data.
    """

    position: int
    payload: bytes


class CheckedRecord(Record):
    """A record of a TFRecord file, whose payload has just been compared with its checksum; equal to a plain one.

    Attributes:
      crc: the payload's masked CRC32C, so that whoever copies the payload need not compute it again.
    """

    crc: int

    @classmethod
    def of(cls, position: int, payload: bytes, crc: int) -> CheckedRecord:
        record = cls(position, payload)
        record.crc = crc
        return record


class Damage(NamedTuple):
    """A region of a file that holds no good record.

    Attributes:
      position: where it begins, as of a record.
      stop: the position after it. Equal to `position` where a gzip stream ends too early but between two
        records.
      reason: what is wrong, for a person.
      payload: where a record's frame is intact but its data do not match their checksum, the data as
        they are; else the bytes of the region, the first `max_damage_bytes` of them.
    """

    position: int
    stop: int
    reason: str
    payload: bytes


class Headers(NamedTuple):
    """Where the records of a file are, in three arrays of equal length.

    Attributes:
      positions: int64, the records' positions, ascending.
      lengths: int64, bytes of the records' payloads.
      payload_crcs: uint32, checksums of the payloads: equal payloads of one format have equal ones. A TFRecord file
        states them (masked CRC32Cs, not checked here).
    """

    positions: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    payload_crcs: npt.NDArray[np.uint32]

    @classmethod
    def of(cls, records: Iterable[Record | Damage]) -> Headers:
        """The headers of records that were read; those of a damaged region are not known."""
        rows = [(r.position, len(r.payload), google_crc32c.value(r.payload)) for r in records if isinstance(r, Record)]
        positions, lengths, crcs = zip(*rows, strict=True) if rows else ((), (), ())
        return cls(np.array(positions, np.int64), np.array(lengths, np.int64), np.array(crcs, np.uint32))


class RecordFormat(Protocol):
    """A format of files that hold records one after another, each at a position. Pickles; holds no open file.

    Ranges of positions that lie end to end give each record exactly once, and each damaged region exactly once.

    Attributes:
      name: as TFDS spells it in file names and in dataset_info.json: `tfrecord`.
      unit: what positions count, for messages: `bytes` or `records`.
    """

    @property
    def name(self) -> str: ...

    @property
    def unit(self) -> str: ...

    def read(self, path: str, start: int = 0, stop: int | None = None) -> Iterator[Record | Damage]:
        """The records at a position in [start, stop), and the damage between them, in order; None reads to the end.

        Raises:
          OSError: the file cannot be read at all.
        """

    def scan(self, path: str, start: int = 0, stop: int | None = None) -> Headers:
        """Lists the records that `read` gives, damaged ones left out, as cheaply as the format allows."""

    def is_splittable(self, path: str) -> bool:
        """Whether ranges of the file can be read on their own: those of a gzip file cannot."""

    def end(self, path: str, size: int) -> int:
        """The position after the last record of a splittable file of `size` bytes."""

    def positions(self, path: str, low: int, high: int) -> tuple[int, int | None]:
        """The range that holds the records number `low` to `high` (exclusive); None is the end of the file."""
