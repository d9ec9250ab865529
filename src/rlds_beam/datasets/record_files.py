"""Random access to the records of TFRecord and ArrayRecord files."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlds_beam import storage
from rlds_beam.datasets.base import Indices, PerThread, by_file
from rlds_beam.encoding.arrayrecord import num_records, open_reader
from rlds_beam.encoding.base import RecordFormat
from rlds_beam.encoding.tfrecord.framing import FOOTER, HEADER, OVERHEAD, masked_crc, record_header
from rlds_beam.errors import RldsBeamError, UsageError

_TOGETHER = 1 << 16
"""The largest gap in bytes between two TFRecord records that is read instead of skipped."""


@dataclasses.dataclass(frozen=True)
class IndexedRecordFile:
    """A file.

    Attributes:
      path: its path.
      records: its number of records; None if unknown.
    """

    path: str
    records: int | None


class RecordFiles:
    """The records of several files, in order, by index. Picklable, with its indices of the files.

    A TFRecord file is indexed by its framing when its first record is read, which takes 8 bytes of memory per record
    and one pass over the file. An ArrayRecord file has its own index.
    """

    def __init__(self, files: Sequence[IndexedRecordFile], format: RecordFormat):
        self._files, self._format = tuple(files), format
        self._positions: dict[int, Indices] = {}
        self._readers = PerThread(open_reader, close=_close)
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock())

    def __len__(self) -> int:
        return int(self.starts[-1])

    @functools.cached_property
    def starts(self) -> Indices:
        """The index of each file's first record, then the total number of records."""
        counts = [self._count(i) if file.records is None else file.records for i, file in enumerate(self._files)]
        return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)

    def read(self, indices: Indices) -> list[bytes]:
        """Reads records by index.

        Raises:
          RldsBeamError: a record is damaged, or a file has an unexpected number of records.
        """
        records: list[bytes] = [b""] * len(indices)
        for i, which, numbers in by_file(indices, self.starts):
            order = np.argsort(numbers, kind="stable")
            try:
                payloads = self._read(i, numbers[order])
            except OSError as error:
                raise RldsBeamError(f"cannot read {self._files[i].path}: {error}") from error
            for place, payload in zip(which[order].tolist(), payloads, strict=True):
                records[place] = payload
        return records

    def place(self, index: int) -> tuple[str, int]:
        """The file of a record and its number in the file."""
        ((i, _, numbers),) = by_file(np.array([index]), self.starts)
        return self._files[i].path, int(numbers[0])

    def _count(self, i: int) -> int:
        if self._format.name == "tfrecord":
            return len(self._index(i)) - 1
        return num_records(self._files[i].path)

    def _read(self, i: int, numbers: Indices) -> list[bytes]:
        """Reads records of one file; their numbers ascend."""
        path = self._files[i].path
        if self._format.name == "tfrecord":
            return _read_tfrecord(path, self._index(i), numbers)
        try:
            return list(self._readers[path].read(numbers.tolist()))
        except (RuntimeError, IndexError) as error:
            raise _damaged(path, f"cannot read records {numbers[0]} to {numbers[-1]}: {error}") from None

    def _index(self, i: int) -> Indices:
        """The offset of each record of a TFRecord file, and the file's end."""
        if i not in self._positions:
            with self._lock:
                if i not in self._positions:
                    self._positions[i] = _offsets(self._files[i], self._format)
        return self._positions[i]


def _offsets(file: IndexedRecordFile, format: RecordFormat) -> Indices:
    if not format.is_splittable(file.path):
        raise UsageError(
            f"{file.path} is compressed as a whole, so random access is impossible: decompress it, or convert "
            "the dataset first"
        )
    headers = format.scan(file.path)
    positions = np.append(
        headers.positions, headers.positions[-1] + headers.lengths[-1] + OVERHEAD if len(headers.positions) else 0
    )
    if positions[-1] != storage.size(file.path) or (np.diff(positions) != headers.lengths + OVERHEAD).any():
        raise _damaged(file.path, "some of its bytes are not records")
    if file.records not in (None, len(positions) - 1):
        raise _damaged(file.path, f"it holds {len(positions) - 1} records, but {file.records} are expected")
    return positions


def _read_tfrecord(path: str, offsets: Indices, numbers: Indices) -> list[bytes]:
    """Reads records whose numbers ascend; reads nearby ones together."""
    starts, stops = offsets[numbers], offsets[numbers + 1]
    groups = np.split(np.arange(len(numbers)), np.flatnonzero(starts[1:] - stops[:-1] > _TOGETHER) + 1)
    payloads: list[bytes] = []
    with storage.open_read(path) as file:
        for group in groups:
            first = int(starts[group[0]])
            file.seek(first)
            data = file.read(int(stops[group[-1]]) - first)
            for start, stop in zip(starts[group] - first, stops[group] - first, strict=True):
                payloads.append(_payload(data[start:stop], path, first + int(start)))
    return payloads


def _payload(framed: bytes, path: str, position: int) -> bytes:
    """The data of a record, after verifying its checksums."""
    payload = framed[HEADER.size : -FOOTER.size]
    sound = framed[: HEADER.size] == record_header(len(payload)) and framed[-FOOTER.size :] == FOOTER.pack(
        masked_crc(payload)
    )
    if not sound:
        raise _damaged(path, f"byte {position}: the record does not match its checksum")
    return payload


def _damaged(path: str, what: str) -> RldsBeamError:
    return RldsBeamError(f"{path}: {what}; fetch the file again, or convert the dataset again")


def _close(reader: Any) -> None:
    with contextlib.suppress(RuntimeError):
        reader.close()
