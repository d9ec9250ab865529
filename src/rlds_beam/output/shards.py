"""Writes shards, as TFRecord and ArrayRecord files, which get their names when they are complete."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import msgspec

from rlds_beam import storage
from rlds_beam.encoding.arrayrecord import num_records, open_writer
from rlds_beam.encoding.metadata import Count, FilePath
from rlds_beam.encoding.tfrecord.framing import frame, frame_record
from rlds_beam.output.files import CHECKSUM, Checksum, compute_checksum

if TYPE_CHECKING:
    from rlds_beam.checking.verdicts import Rejection
    from rlds_beam.connectors.base import Batch
    from rlds_beam.episodes.episode import Episode


class ShardInfo(msgspec.Struct, frozen=True):
    """The content of a finished shard.

    Attributes:
      records: the number of records.
      bytes: the size of the file.
      checksum: the file's checksum, `xxh3-128:<hex>` (`checksums`).
      first_key, last_key: the keys of the first and last episode in it; None if there is none.
    """

    records: Count
    bytes: Count
    checksum: Annotated[str, msgspec.Meta(pattern=CHECKSUM)]
    first_key: str | None = None
    last_key: str | None = None


Role = Literal["items", "part", "temporary"]


class WrittenFile(msgspec.Struct, frozen=True):
    """A finished file of a range.

    Attributes:
      file: the name in the output directory: `name` or `name/name`.
      shard: the content of the file.
      predicted: the predicted number of records.
      beside: the names of its sidecar files.
      role: how its records count. `items`: as the output's items. `part`: not, because another file counts the same
        items. `temporary`: not, because the file is removed when the dataset is complete.
    """

    file: FilePath
    shard: ShardInfo
    predicted: Count
    beside: tuple[FilePath, ...] = ()
    role: Role = "items"


class MergedFile(NamedTuple):
    """A file merged from the files of a split's ranges (`Output.complete`).

    Attributes:
      file: the name in the output directory.
      split: the split.
      shard: the content of the file.
    """

    file: str
    split: str
    shard: ShardInfo


class ShardWriter:
    """Writes a file under a temporary name in the same directory, and renames it on `commit`.

    A context manager: it removes the file if it was not committed by the end of the block. A killed worker leaves only
    a temporary file (`storage.is_temporary`), which `commits.commit_dataset` removes.

        with ShardWriter(path) as writer:
            writer.write(encoded.buffers, encoded.count, key)
            info = writer.commit()
    """

    def __init__(self, path: str):
        self._path = path
        self._writing = storage.writing(path)
        self._file = self._writing.__enter__()
        self._checksum = Checksum()
        self._records = self._bytes = 0
        self._first_key: object = None
        self._last_key: object = None
        self._open = True

    def write(self, buffers: Iterable[bytes | memoryview], records: int, key: object = None) -> None:
        """Appends `records` records; `str(key)` is their episode, if any."""
        with storage.naming(self._path):
            for buffer in buffers:
                self._file.write(buffer)
                self._checksum.update(buffer)
                self._bytes += len(buffer)
        self._records += records
        if records and key is not None:
            self._first_key = key if self._first_key is None else self._first_key
            self._last_key = key

    def commit(self) -> ShardInfo:
        """Completes the file and gives it its name, replacing any file of that name.

        The file survives the end of this process. To survive a power failure, all shards are flushed to the disk at
        once before the manifest is written (`storage.sync`): flushing each shard would cost a fifth of the time.
        """
        self._writing.__exit__(None, None, None)
        self._open = False
        first, last = (None if key is None else str(key) for key in (self._first_key, self._last_key))
        return ShardInfo(self._records, self._bytes, str(self._checksum), first, last)

    def abort(self) -> None:
        """Removes the unfinished files; does nothing after `commit`."""
        if self._open:
            self._open = False
            with contextlib.suppress(OSError):  # of a full disk, again
                self._writing.__exit__(GeneratorExit, GeneratorExit(), None)

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self.abort()


class EpisodeWriter:
    """Writes one record for each episode, to one file (`processing.ranges.RangeWriter`).

    Args:
      path: the file.
      encode: returns the bytes of an episode's record, including its framing.

    Attributes:
      predicted: the number of episodes so far.
    """

    def __init__(self, path: str, encode: Callable[[Episode], bytes]):
        self._shard, self._encode, self.predicted = ShardWriter(path), encode, 0

    def write(self, batch: Batch) -> None:
        for episode, record in [(episode, self._encode(episode)) for episode in batch.episodes]:
            self._shard.write([record], 1, episode.key)
            self.predicted += 1

    def finish(self) -> ShardInfo:
        return self._shard.commit()

    def abort(self) -> None:
        self._shard.abort()


class RejectedWriter:
    """Writes rejected records: their original bytes to `<path>.tfrecord`, and a line for each to `<path>.jsonl`.

    Creates no file until there is a record. A context manager, like ShardWriter.
    """

    def __init__(self, path: str):
        self._path = path
        self._writers: tuple[ShardWriter, ShardWriter] | None = None

    def write(self, payload: bytes, line: dict[str, Any], key: object) -> None:
        """Appends one record and the line with its reason."""
        if self._writers is None:
            self._writers = ShardWriter(self._path + ".tfrecord"), ShardWriter(self._path + ".jsonl")
        records, lines = self._writers
        records.write([frame(payload)], 1, key)
        lines.write([json.dumps(line, ensure_ascii=False).encode() + b"\n"], 1, key)

    def add(self, rejection: Rejection) -> None:
        """Appends a rejected record as it was read, and why."""
        self.write(rejection.payload, rejection.to_json(), rejection.key)

    def commit(self) -> ShardInfo | None:
        """Completes both files; returns the `ShardInfo` of the first, or None if nothing was rejected."""
        if self._writers is None:
            return None
        records, lines = self._writers
        lines.commit()
        return records.commit()

    def abort(self) -> None:
        """Removes the unfinished files; does nothing after `commit`."""
        for writer in self._writers or ():
            writer.abort()

    def __enter__(self) -> RejectedWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self.abort()


class TFRecordFileWriter(ShardWriter):
    """Writes records to a TFRecord file."""

    def add(self, payload: bytes, key: object, crc: int | None = None) -> None:
        """Writes a record of the episode `key`; `crc` is its masked CRC32C, if known."""
        self.write(frame_record(payload, crc), 1, key)


class ArrayRecordFileWriter:
    """Writes records to an ArrayRecord file, on a local disk."""

    def __init__(self, path: str):
        self._path, self._file = path, LocalFile(path)
        self._writer = open_writer(self._file.name)
        self._keys: list[str] = []
        self._open = True

    def add(self, payload: bytes, key: object, crc: int | None = None) -> None:
        self._writer.write(payload)
        self._keys[1:] = [str(key)]

    def commit(self) -> ShardInfo:
        with storage.naming(self._path):
            self._writer.close()
        first, last = (self._keys[0], self._keys[-1]) if self._keys else (None, None)
        info = self._file.commit(num_records(self._file.name), first, last)
        self._open = False
        return info

    def abort(self) -> None:
        if self._open:
            self._open = False
            with contextlib.suppress(OSError, RuntimeError):
                self._writer.close()
            self._file.abort()


RecordFileWriter = TFRecordFileWriter | ArrayRecordFileWriter


def open_record_file(kind: str, path: str) -> RecordFileWriter:
    """Opens a writer for a file of kind `tfrecord` or `array_record`."""
    if kind == "array_record":
        return ArrayRecordFileWriter(path)
    return TFRecordFileWriter(path)


class LocalFile:
    """A local temporary file that becomes a file of an output, possibly in a bucket.

    Attributes:
      name: the path to write to.
    """

    def __init__(self, path: str):
        self._path = path
        self._home: tempfile.TemporaryDirectory[str] | None = None
        if storage.scheme(path) is None:
            self.name = storage.temporary_name(path)
            storage.makedirs(storage.split(path)[0])
        else:
            self._home = tempfile.TemporaryDirectory(prefix="rlds-beam-")
            self.name = os.path.join(self._home.name, f"file{os.path.splitext(path)[1]}")

    def commit(self, records: int, first_key: str | None = None, last_key: str | None = None) -> ShardInfo:
        """Moves the file to its final path, replacing any file there; returns its `ShardInfo`."""
        size, checksum = os.path.getsize(self.name), compute_checksum(self.name)
        if storage.scheme(self._path) is None:
            storage.rename(self.name, self._path)
        else:
            with open(self.name, "rb") as file, storage.writing(self._path) as target:
                while block := file.read(4 << 20):
                    target.write(block)
            self.abort()
        return ShardInfo(records, size, checksum, first_key, last_key)

    def abort(self) -> None:
        """Removes the unfinished file; does nothing after `commit`."""
        with contextlib.suppress(OSError):
            os.remove(self.name)
        if self._home is not None:
            self._home.cleanup()
