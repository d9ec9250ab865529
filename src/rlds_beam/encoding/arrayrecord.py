"""Reads ArrayRecord files with the `array_record` package; local files only.

For a file that is cut short, empty, or not an ArrayRecord file, the package's `num_records()` returns 0 without an
error. Here, `num_records` raises `DamagedFileError`, and `read_records` yields a `Damage`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from typing import Any

from rlds_beam import storage
from rlds_beam.encoding.base import Damage, Headers, Record
from rlds_beam.errors import RldsBeamError, UsageError, needs

_BATCH = 64  # records fetched at a time and held in memory
_RANDOM_ACCESS = "readahead_buffer_size:0,max_parallelism:0"  # no threads, and no 16 MB buffer per reader


class DamagedFileError(RldsBeamError):
    """The whole file is damaged; nothing can be read from it."""


def num_records(path: str) -> int:
    """The number of records in an ArrayRecord file.

    Raises:
      DamagedFileError: the file is cut short, empty, or not an ArrayRecord file.
      FileNotFoundError: the file does not exist.
      UsageError: the path is remote.
      MissingExtraError: the array_record package is not installed.
    """
    with _reader(path) as reader:
        return _count(reader, path)


def read_records(path: str, start: int = 0, stop: int | None = None) -> Iterator[Record | Damage]:
    """Reads the records with indices in [start, stop); `stop` may exceed the number of records.

    An unreadable record becomes a `Damage` of one index, without a payload because chunks are compressed. An unreadable
    file becomes one `Damage` at 0, in the range that starts at 0. Positions are indices, so any partition into ranges
    is exact.

    Raises:
      FileNotFoundError: the file does not exist.
      UsageError: the path is remote.
      MissingExtraError: the array_record package is not installed.
    """
    with _reader(path) as reader:
        try:
            count = _count(reader, path)
        except DamagedFileError as error:
            if start == 0 and stop != 0:
                yield Damage(0, 0, str(error), b"")
            return
        stop = count if stop is None else min(stop, count)
        for first in range(start, stop, _BATCH):
            yield from _read_batch(reader, path, range(first, min(first + _BATCH, stop)))


def _read_batch(reader: Any, path: str, indices: range) -> Iterator[Record | Damage]:
    try:
        payloads = reader.read(list(indices))
    except (RuntimeError, IndexError):  # the error does not name the record: read one by one, with new readers
        pass
    else:
        yield from map(Record, indices, payloads)
        return
    for index in indices:
        with _reader(path) as single:
            try:
                (payload,) = single.read([index])
            except (RuntimeError, IndexError) as error:
                yield Damage(index, index + 1, f"the record cannot be read: {error}", b"")
            else:
                yield Record(index, payload)


def _count(reader: Any, path: str) -> int:
    count = int(reader.num_records())
    if not reader.ok():
        try:
            reader.read([0])
        except (RuntimeError, IndexError) as error:
            detail = str(error)
        else:
            detail = "the file is cut short"
        raise DamagedFileError(f"{path} is not a complete ArrayRecord file: {detail or 'the file is cut short'}")
    return count


def open_reader(path: str) -> Any:
    """Opens a random-access reader; the caller closes it. Raises the same errors as `num_records`, if any."""
    if storage.scheme(path) is not None:
        raise UsageError(f"cannot read {path}: ArrayRecord files are read from local disks only; copy it first")
    with needs("arrayrecord", f"reading {path} needs the array_record package"):
        from array_record.python.array_record_module import ArrayRecordReader
    if not os.path.isfile(path):
        raise FileNotFoundError(f"no such file: {path}")
    return ArrayRecordReader(path, _RANDOM_ACCESS)


@contextlib.contextmanager
def _reader(path: str) -> Iterator[Any]:
    reader = open_reader(path)
    try:
        yield reader
    finally:
        with contextlib.suppress(RuntimeError):  # closing raises the error of the read again
            reader.close()


@dataclasses.dataclass(frozen=True)
class ArrayRecordFormat:
    """ArrayRecord files (`encoding.base.RecordFormat`). Positions are record indices."""

    name: str = "array_record"
    unit: str = "records"

    def read(self, path: str, start: int = 0, stop: int | None = None) -> Iterator[Record | Damage]:
        yield from read_records(path, start, stop)

    def scan(self, path: str, start: int = 0, stop: int | None = None) -> Headers:
        return Headers.from_records(read_records(path, start, stop))

    def is_splittable(self, path: str) -> bool:
        return True

    def end(self, path: str, size: int) -> int:
        return num_records(path)

    def positions(self, path: str, low: int, high: int) -> tuple[int, int | None]:
        return low, high


_ONE_BY_ONE = "group_size:1,snappy"
"""Compress each record on its own, as TFDS does, so that a random read decompresses one record. For rows of a few
hundred bytes, the default, zstd, takes twice as long and saves no space."""


def check_writable(path: str) -> None:
    """Raises UsageError for a remote path, and MissingExtraError without the array_record package."""
    if storage.scheme(path) is not None:
        raise UsageError(f"cannot write {path}: ArrayRecord files are written to local disks only")
    with needs("arrayrecord", "writing ArrayRecord files needs the array_record package"):
        import array_record  # noqa: F401


def open_writer(path: str) -> Any:
    """Opens a writer with `write(record)` and `close()`; raises the same errors as `check_writable`."""
    check_writable(path)
    from array_record.python.array_record_module import ArrayRecordWriter

    return ArrayRecordWriter(path, _ONE_BY_ONE)
