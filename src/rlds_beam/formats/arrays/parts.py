"""Outputs with a few large files: each range writes a part, and `complete` writes the files from the parts in order.

A part is an Arrow file with a row for each episode. Each of its columns holds bytes: the episode's rows of a field, end
to end. So a column of a record batch of a few megabytes is one piece, and neither writing nor merging holds more in
memory. Values of varying length take two columns: their bytes, and their lengths.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any, cast

import numpy as np
import pyarrow as pa

from rlds_beam import storage
from rlds_beam.connectors.base import Batch
from rlds_beam.episodes.columns import text_bytes
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.schema import Field
from rlds_beam.formats.arrays.array_episodes import field_json, read_numbers, stored_dtype
from rlds_beam.output.base import Description, Output
from rlds_beam.output.commits import RangeCommit
from rlds_beam.output.shards import MergedFile, ShardInfo, ShardWriter
from rlds_beam.processing.ranges import RangeWriter
from rlds_beam.reading.base import WorkRange
from rlds_beam.reading.meaning import Meaning
from rlds_beam.typing import Array

BLOCK_BYTES = 4 << 20
INT64 = np.dtype("<i8")
STEPS = "/steps"  # the part column with the number of steps of each episode; no key begins with a slash


def lengths_of(key: str) -> str:
    """The part column with the lengths of the values of `key`."""
    return f"{key}/lengths"


def encode_values(key: str, values: Sequence[bytes]) -> dict[str, Array]:
    """An episode's values of varying length, as part columns."""
    lengths = np.array([len(value) for value in values], INT64)
    return {key: np.frombuffer(b"".join(values), np.uint8), lengths_of(key): lengths}


class PartWriter:
    """Writes the part of a range (`processing.ranges.RangeWriter`)."""

    def __init__(self, output: MergedOutput, path: str):
        self._output, self._shard, self.predicted = output, ShardWriter(path), 0
        schema = pa.schema([(name, pa.large_binary()) for name in output.part_columns])
        self._writer = pa.ipc.new_file(pa.PythonFile(Sink(self._shard), "w"), schema)
        self._waiting: list[Mapping[str, Array]] = []
        self._waiting_bytes = 0

    def write(self, batch: Batch) -> None:
        encoded = [self._output.encode(episode) for episode in batch.episodes]
        for episode, columns in zip(batch.episodes, encoded, strict=True):  # nothing can fail after encoding
            self._waiting.append(columns)
            self._waiting_bytes += sum(rows.nbytes for rows in columns.values())
            self._shard.write((), 1, episode.key)
            self.predicted += 1
        if self._waiting_bytes >= BLOCK_BYTES:
            self._flush()

    def _flush(self) -> None:
        arrays = []
        for name in self._output.part_columns:
            rows: list[Any] = [columns[name] for columns in self._waiting]
            ends = np.cumsum([0, *(array.nbytes for array in rows)], dtype=np.int64)
            data = rows[0] if len(rows) == 1 else b"".join(rows)  # a large episode is not copied
            buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
            arrays.append(pa.Array.from_buffers(pa.large_binary(), len(rows), buffers))
        self._writer.write_batch(pa.record_batch(arrays, self._output.part_columns))
        self._waiting, self._waiting_bytes = [], 0

    def finish(self) -> ShardInfo:
        self._flush()
        self._writer.close()
        return self._shard.commit()

    def abort(self) -> None:
        self._shard.abort()


class Sink:
    """A shard as a file, for pyarrow, pickle, and zipfile."""

    closed = False

    def __init__(self, shard: ShardWriter):
        self._shard = shard

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._shard.write([view], 0)
        return len(view)

    def flush(self) -> None: ...


@dataclasses.dataclass(frozen=True)
class Parts:
    """The parts of a split, in order.

    Attributes:
      columns: the names of their columns.
      paths: the files.
      episodes: the number of episodes.
    """

    columns: tuple[str, ...]
    paths: Sequence[str]
    episodes: int

    @functools.cached_property
    def steps(self) -> Array:
        """The number of steps of each episode, int64 [episodes]."""
        return np.concatenate([*self.integers(STEPS)])

    def read(self, column: str) -> Iterator[bytes]:
        """The bytes of a column, block by block; the blocks of all columns hold the same episodes."""
        options = pa.ipc.IpcReadOptions(included_fields=[self.columns.index(column)])
        for path in self.paths:
            with storage.open_read(path) as file:
                reader = pa.ipc.open_file(pa.PythonFile(file, "r"), options=options)
                for i in range(reader.num_record_batches):
                    data = reader.get_batch(i).column(0).buffers()[-1]
                    yield data.to_pybytes() if data is not None else b""

    def integers(self, column: str) -> Iterator[Array]:
        """The int64 values of a column, block by block."""
        return (np.frombuffer(block, INT64) for block in self.read(column))

    def values(self, key: str) -> Iterator[bytes]:
        """The values of varying length (`encode_values`)."""
        for data, lengths in zip(self.read(key), self.integers(lengths_of(key)), strict=True):
            start = 0
            for length in lengths.tolist():
                yield data[start : start + length]
                start += length


class MergedOutput(Output):
    """An output of a few large files."""

    @property
    @abc.abstractmethod
    def part_columns(self) -> tuple[str, ...]:
        """The names of the columns of a part."""

    @abc.abstractmethod
    def encode(self, episode: Episode) -> Mapping[str, Array]:
        """The rows of each column of a part, in C order. Raises BadEpisode if the format cannot hold the episode."""

    @abc.abstractmethod
    def merge(self, split: str, parts: Parts) -> Iterator[MergedFile]:
        """Writes the files of a split, which has episodes."""

    def write_merged(self, name: str, split: str, records: int, write: Callable[[IO[bytes]], object]) -> MergedFile:
        """Writes a file, which gets its name when it is complete."""
        with ShardWriter(storage.below(self.directory, name)) as shard:
            write(cast("IO[bytes]", Sink(shard)))
            shard.write((), records)
            return MergedFile(name, split, shard.commit())

    def file(self, work: WorkRange) -> str:
        return f"parts/{work}.part"

    def open_range(self, work: WorkRange) -> RangeWriter:
        return PartWriter(self, storage.below(self.directory, self.file(work)))

    def complete(self, commits: Sequence[RangeCommit]) -> dict[str, Any]:
        by_split: dict[str, list[RangeCommit]] = {}
        for commit in commits:
            if commit.items:
                by_split.setdefault(commit.split, []).append(commit)
        merged: list[MergedFile] = []
        for split, own in by_split.items():
            paths = [storage.join(self.directory, commit.files[0].file) for commit in own]
            merged += self.merge(split, Parts(self.part_columns, paths, sum(commit.items for commit in own)))
        return {**self.plan(), "merged": merged}


@dataclasses.dataclass(frozen=True)
class StoredColumn:
    """A field of the steps or of the episode, and the array that stores it.

    Attributes:
      field: the field of the schema.
      key: the name of the array.
      of_episode: whether it is a field of the episode.
      as_bytes: whether its values are bytes of varying length (`ArraysOutput.encode_bytes`).
    """

    field: Field
    key: str
    of_episode: bool = False
    as_bytes: bool = False


@dataclasses.dataclass(frozen=True)
class ArraysOutput(MergedOutput):
    """An output with an array of all values of each field.

    Attributes:
      directory: where the files go.
      name: the name of the dataset.
      columns: the stored fields.
      left_out: the fields not written, with the reasons.
      meaning: what is known of the dataset.
    """

    directory: str
    name: str
    columns: tuple[StoredColumn, ...]
    left_out: dict[str, str]
    meaning: Meaning

    def encode_bytes(self, column: StoredColumn, episode: Episode) -> list[bytes]:
        """The values of a column `as_bytes`: by default its texts. Raises BadEpisode as `encode`."""
        path = column.field.path
        if column.of_episode:
            return [text_bytes(episode.metadata[path], path)]
        return [text_bytes(value, path) for value in episode.steps[path]]

    def describe(self) -> Description:
        return Description([str(column.field) for column in self.columns], self.left_out)

    def about(self) -> dict[str, Any]:
        """The stored fields and what is known of the dataset, as JSON."""
        fields = [{"key": c.key, "of_episode": c.of_episode, **field_json(c.field)} for c in self.columns]
        return {"fields": fields, **self.meaning.entry()}

    @property
    def part_columns(self) -> tuple[str, ...]:
        lengths = (lengths_of(column.key) for column in self.columns if column.as_bytes)
        return (STEPS, *(column.key for column in self.columns), *lengths)

    def encode(self, episode: Episode) -> Mapping[str, Array]:
        encoded: dict[str, Array] = {STEPS: np.array(len(episode), INT64)}
        for column in self.columns:
            key, field = column.key, column.field
            if column.as_bytes:
                encoded |= encode_values(key, self.encode_bytes(column, episode))
            elif column.of_episode:
                encoded[key] = np.ascontiguousarray(episode.metadata[field.path], stored_dtype(field))
            else:
                encoded[key] = read_numbers(field, episode)
        return encoded

    def shape(self, column: StoredColumn, parts: Parts) -> tuple[int, ...]:
        """The shape of a column's array: (steps, ...) or (episodes, ...)."""
        rows = parts.episodes if column.of_episode else int(parts.steps.sum())
        return (rows, *column.field.closed_shape)
