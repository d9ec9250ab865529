"""TFRecord and ArrayRecord files. A file gets its name when it is complete."""

from __future__ import annotations

import contextlib
import os
from types import TracebackType
from typing import Protocol

from rlds_beam import storage
from rlds_beam.encoding.arrayrecord import num_records, open_writer
from rlds_beam.encoding.tfrecord.rows import frame_record
from rlds_beam.output.checksums import Checksum, checksum_of
from rlds_beam.output.scratch import ScratchDirectory
from rlds_beam.output.shards import ShardInfo, ShardWriter

_READ = 1 << 20


class RecordFileWriter(Protocol):
    """Writes records to one file."""

    def add(self, payload: bytes, key: object, crc: int | None = None) -> None:
        """Writes a record of the episode `key`; `crc` is its masked CRC32C, if known."""

    def commit(self) -> ShardInfo:
        """Completes the file, gives it its name, and returns its `ShardInfo`."""

    def abort(self) -> None:
        """Removes the unfinished file; does nothing after `commit`."""


def open_record_file(kind: str, path: str) -> RecordFileWriter:
    """Opens a writer for a file of kind `tfrecord` or `array_record`."""
    kinds: dict[str, type[ArrayRecordFileWriter | TFRecordFileWriter]] = {
        "array_record": ArrayRecordFileWriter,
        "tfrecord": TFRecordFileWriter,
    }
    return kinds[kind](path)


class TFRecordFileWriter:
    """A TFRecord file (`RecordFileWriter`)."""

    def __init__(self, path: str):
        self._shard = ShardWriter(path)

    def add(self, payload: bytes, key: object, crc: int | None = None) -> None:
        self._shard.write(frame_record(payload, crc), 1, key)

    def commit(self) -> ShardInfo:
        return self._shard.commit()

    def abort(self) -> None:
        self._shard.abort()


class ArrayRecordFileWriter:
    """An ArrayRecord file (`RecordFileWriter`), on a local disk."""

    def __init__(self, path: str):
        self._path = path
        self._temporary = storage.temporary_name(path)
        self._writer = open_writer(self._temporary)
        self._keys: list[str] = []
        self._open = True

    def add(self, payload: bytes, key: object, crc: int | None = None) -> None:
        self._writer.write(payload)
        self._keys[1:] = [str(key)]

    def commit(self) -> ShardInfo:
        with storage.naming(self._path):
            self._writer.close()
        checksum, size = Checksum(), 0
        with storage.open_read(self._temporary) as file:
            while part := file.read(_READ):
                checksum.update(part)
                size += len(part)
        records = num_records(self._temporary)
        storage.rename(self._temporary, self._path)
        self._open = False
        first, last = (self._keys[0], self._keys[-1]) if self._keys else (None, None)
        return ShardInfo(records, size, str(checksum), first, last)

    def abort(self) -> None:
        if self._open:
            self._open = False
            with contextlib.suppress(OSError, RuntimeError):
                self._writer.close()
            storage.remove(self._temporary)


_BLOCK = 4 << 20


class LocalFile:
    """A local temporary file that becomes a file of an output, possibly in a bucket.

    A context manager: it removes the file if it was not committed by the end of the block.

    Attributes:
      name: the path to write to.
    """

    def __init__(self, path: str):
        self._path = path
        self._home: ScratchDirectory | None = None
        if storage.scheme(path) is None:
            self.name = storage.temporary_name(path)
        else:
            self._home = ScratchDirectory()
            self.name = os.path.join(self._home.name, f"file{os.path.splitext(path)[1]}")

    def commit(self, records: int, first_key: str | None = None, last_key: str | None = None) -> ShardInfo:
        """Moves the file to its final path, replacing any file there; returns its `ShardInfo`."""
        size, checksum = os.path.getsize(self.name), checksum_of(self.name)
        if storage.scheme(self._path) is None:
            storage.rename(self.name, self._path)
        else:
            with open(self.name, "rb") as file, storage.open_write(self._path) as target:
                while block := file.read(_BLOCK):
                    target.write(block)
            self.abort()
        return ShardInfo(records, size, checksum, first_key, last_key)

    def abort(self) -> None:
        """Removes the unfinished file; does nothing after `commit`."""
        storage.discard(self.name)
        if self._home is not None:
            self._home.cleanup()

    def __enter__(self) -> LocalFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()
