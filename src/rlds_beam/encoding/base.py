"""The interface of record files: reading and listing records, and splitting files into ranges."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

import google_crc32c
import numpy as np
import numpy.typing as npt


class Record(NamedTuple):
    """A record.

    Attributes:
      position: the position in the file, in the unit of the format: the offset of the record's first byte in a TFRecord
        file (in the uncompressed bytes if gzipped), or its index in an ArrayRecord file.
      payload: the data of the record.
    """

    position: int
    payload: bytes


class CheckedRecord(Record):
    """A TFRecord record whose payload checksum was just verified; equal to a plain `Record`.

    Attributes:
      crc: the payload's masked CRC32C, kept so that copying the payload need not recompute it.
    """

    crc: int

    @classmethod
    def from_payload(cls, position: int, payload: bytes, crc: int) -> CheckedRecord:
        record = cls(position, payload)
        record.crc = crc
        return record


class Damage(NamedTuple):
    """A region of a file without an intact record.

    Attributes:
      position: the start, in the same unit as a record's position.
      stop: the end (exclusive). Equal to `position` if a gzip stream ends early, but between two records.
      reason: a description of the damage for people.
      payload: the record's data, if its frame is intact but its checksum is wrong; otherwise the first
        `max_damage_bytes` bytes of the region.
    """

    position: int
    stop: int
    reason: str
    payload: bytes


class Headers(NamedTuple):
    """The headers of a file's records, in three arrays of equal length.

    Attributes:
      positions: the records' positions, int64, ascending.
      lengths: the sizes of the payloads in bytes, int64.
      payload_crcs: the checksums of the payloads, uint32. Within a format, equal payloads have equal checksums. For
        TFRecord files, these are the stored masked CRC32Cs, not verified.
    """

    positions: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    payload_crcs: npt.NDArray[np.uint32]

    @classmethod
    def from_records(cls, records: Iterable[Record | Damage]) -> Headers:
        """Computes the headers of records; damaged regions are skipped."""
        rows = [(r.position, len(r.payload), google_crc32c.value(r.payload)) for r in records if isinstance(r, Record)]
        positions, lengths, crcs = zip(*rows, strict=True) if rows else ((), (), ())
        return cls(np.array(positions, np.int64), np.array(lengths, np.int64), np.array(crcs, np.uint32))


class RecordFormat(Protocol):
    """A file format for sequences of records. Picklable; holds no open file.

    Contiguous ranges of positions yield each record and each damaged region exactly once.

    Attributes:
      name: the name of the format as in TFDS, for example `tfrecord`.
      unit: the unit of positions, for messages: `bytes` or `records`.
    """

    @property
    def name(self) -> str: ...

    @property
    def unit(self) -> str: ...

    def read(self, path: str, start: int = 0, stop: int | None = None) -> Iterator[Record | Damage]:
        """Reads the records with positions in [start, stop), and the damage between them, in order.

        A `stop` of None reads to the end.

        Raises:
          OSError: the file cannot be read.
        """

    def scan(self, path: str, start: int = 0, stop: int | None = None) -> Headers:
        """Lists the intact records that `read` yields, as cheaply as the format allows."""

    def is_splittable(self, path: str) -> bool:
        """Whether ranges of the file can be read independently; not for a gzip file."""

    def end(self, path: str, size: int) -> int:
        """The end position of a splittable file of `size` bytes."""

    def positions(self, path: str, low: int, high: int) -> tuple[int, int | None]:
        """The range of positions with the records `low` to `high` (exclusive); None means the end of the file."""


@dataclasses.dataclass(frozen=True)
class MixedFormats:
    """The record format of files that have different ones.

    Attributes:
      formats: the formats.
      of_path: the index of each file's format.
    """

    formats: tuple[RecordFormat, ...]
    of_path: Mapping[str, int]

    unit = "positions"

    @property
    def name(self) -> str:
        return " and ".join(dict.fromkeys(form.name for form in self.formats))

    def read(self, path: str, start: int = 0, stop: int | None = None) -> Iterator[Record | Damage]:
        return format_of(self, path).read(path, start, stop)

    def scan(self, path: str, start: int = 0, stop: int | None = None) -> Headers:
        return format_of(self, path).scan(path, start, stop)

    def is_splittable(self, path: str) -> bool:
        return format_of(self, path).is_splittable(path)

    def end(self, path: str, size: int) -> int:
        return format_of(self, path).end(path, size)

    def positions(self, path: str, low: int, high: int) -> tuple[int, int | None]:
        return format_of(self, path).positions(path, low, high)


def format_of(files: RecordFormat, path: str) -> RecordFormat:
    """The format of a file: `files`, unless they have different ones."""
    return files.formats[files.of_path[path]] if isinstance(files, MixedFormats) else files


def has_offsets(files: RecordFormat, path: str) -> bool:
    """Whether the positions in a file are byte offsets, which may fall within a record, and not record numbers."""
    return format_of(files, path).unit == "bytes"
