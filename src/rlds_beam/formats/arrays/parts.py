"""Outputs with a few large files: ranges write part files, by column, and `complete` merges them.

A part is an Arrow file with a row for each episode. A column holds the episode's rows of a field as bytes, end to end,
so a column of a record batch of a few megabytes is one piece, and neither writing nor merging holds more than that in
memory. Values of varying length take two columns: their bytes, and their lengths.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from rlds_beam import storage
from rlds_beam.connectors.base import Batch
from rlds_beam.episodes.columns import text_bytes
from rlds_beam.episodes.episode import Episode
from rlds_beam.errors import UsageError
from rlds_beam.formats.arrays.leaves import LeafColumn, field_json, text_values
from rlds_beam.output.base import Description, FileRangeWriter, Output
from rlds_beam.output.commits import RangeCommit
from rlds_beam.output.shards import MergedFile, ShardInfo, ShardWriter
from rlds_beam.reading.base import WorkRange
from rlds_beam.reading.meaning import Meaning
from rlds_beam.text import shorten
from rlds_beam.typing import Array

BLOCK_BYTES = 4 << 20
_ROWS = "rows"
"""The column with the number of rows in each of the others."""


class PartWriter:
    """Writes the part of a range (`output.base.FileRangeWriter`)."""

    def __init__(self, output: MergedOutput, path: str):
        self._output, self._shard = output, ShardWriter(path)
        self._names = [*output.part_columns]
        types = [pa.field(name, pa.large_binary()) for name in self._names]
        schema = pa.schema([pa.field(_ROWS, pa.binary(8 * len(types))), *types])
        self._writer = pa.ipc.new_file(pa.PythonFile(Sink(self._shard), "w"), schema)
        self._held: list[tuple[Sequence[Array], object]] = []
        self._held_bytes = self.predicted = 0

    def write(self, batch: Batch) -> None:
        encoded = [self._output.encode(episode) for episode in batch.episodes]
        for episode, values in zip(batch.episodes, encoded, strict=True):  # nothing can fail after encoding
            self._held.append((values, episode.key))
            self._held_bytes += sum(rows.nbytes for rows in values)
            self.predicted += 1
            if self._held_bytes >= BLOCK_BYTES:
                self._flush()

    def _flush(self) -> None:
        if not self._held:
            return
        counts = np.array([[len(rows) for rows in values] for values, _ in self._held], "<i8")
        columns = [pa.array([row.tobytes() for row in counts], pa.binary(8 * counts.shape[1]))]
        for i in range(counts.shape[1]):
            buffers = [np.ascontiguousarray(values[i]).reshape(-1).view(np.uint8) for values, _ in self._held]
            ends = np.cumsum([0, *(len(buffer) for buffer in buffers)], dtype=np.int64)
            data = buffers[0] if len(buffers) == 1 else np.concatenate(buffers)
            parts = [None, pa.py_buffer(ends), pa.py_buffer(data)]
            columns.append(pa.Array.from_buffers(pa.large_binary(), len(buffers), parts))
        self._writer.write_batch(pa.record_batch(columns, names=[_ROWS, *self._names]))
        for _, key in self._held:
            self._shard.write((), 1, key)
        self._held, self._held_bytes = [], 0

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


class Part:
    """A part opened for reading. The numbers of rows are in memory: 8 bytes for each episode and column.

    Attributes:
      names: the names of the columns.
      rows: the number of rows of each episode and column, int64 [episodes, columns].
    """

    def __init__(self, path: str):
        """
        Raises:
          UsageError: the file is not a part.
        """
        self.path = path
        with self._open(None) as reader:
            self.names = [name for name in reader.schema.names if name != _ROWS]
        counts = b"".join(self._read(0))
        self.rows: Array = np.frombuffer(counts, "<i8").reshape(-1, len(self.names))

    def __len__(self) -> int:
        """The number of episodes."""
        return len(self.rows)

    def total(self, column: int) -> int:
        """The number of rows of a column."""
        return int(self.rows[:, column].sum())

    def blocks(self, column: int) -> Iterator[bytes]:
        """A column's rows, block by block; the blocks of all columns hold the same episodes."""
        return self._read(column + 1)

    def _read(self, field: int) -> Iterator[bytes]:
        with self._open(field) as reader:
            for i in range(reader.num_record_batches):
                column = reader.get_batch(i).column(0)
                size = column.buffers()[-1]
                yield size.to_pybytes() if size is not None else b""

    @contextlib.contextmanager
    def _open(self, field: int | None) -> Iterator[Any]:
        options = pa.ipc.IpcReadOptions(included_fields=None if field is None else [field])
        with storage.open_read(self.path) as file:
            try:
                reader = pa.ipc.open_file(pa.PythonFile(file, "r"), options=options)
            except pa.ArrowInvalid as error:
                raise UsageError(f"{self.path} is not a complete part file of rlds-beam: {shorten(error)}") from error
            yield reader


PARTS = "parts"
"""Directory of parts that are not yet merged."""


class MergedOutput(Output):
    """An output of a few large files.

    Attributes:
      splits: the names of the dataset's splits.
    """

    splits: tuple[str, ...]

    @property
    @abc.abstractmethod
    def part_columns(self) -> tuple[str, ...]:
        """The names of the columns of a part."""

    @abc.abstractmethod
    def encode(self, episode: Episode) -> Sequence[Array]:
        """The rows of each column of a part. Raises BadEpisode if the format cannot hold the episode."""

    @abc.abstractmethod
    def merge(self, split: str, parts: Sequence[Part]) -> Iterator[MergedFile]:
        """Writes the files of a split. Empty parts are not passed."""

    def describe_merged(self, parts: Mapping[str, Sequence[Part]]) -> dict[str, Any]:
        """Writes other files; returns the manifest's entry."""
        del parts
        return {}

    def file(self, work: WorkRange) -> str:
        return f"{PARTS}/{work}.part"

    def open_range(self, work: WorkRange) -> FileRangeWriter:
        return PartWriter(self, storage.below(self.directory, self.file(work)))

    def complete(self, commits: Sequence[RangeCommit]) -> dict[str, Any]:
        parts: dict[str, list[Part]] = {}
        for commit in commits:
            if commit.items:
                part = Part(storage.join(self.directory, commit.files[0].file))
                parts.setdefault(commit.split, []).append(part)
        merged = [file for split, of_split in parts.items() for file in self.merge(split, of_split)]
        return {**self.describe_merged(parts), "merged": merged}


@dataclasses.dataclass(frozen=True)
class StoredColumn(LeafColumn):
    """A field of the steps or of the episode, and the array that stores it.

    Attributes:
      field: see `LeafColumn`.
      key: the name of the array.
      of_episode: whether it is a field of the episode.
      as_bytes: whether its values are bytes of varying length (`encode`).
    """

    key: str
    of_episode: bool = False
    as_bytes: bool = False

    def part_columns(self) -> tuple[str, ...]:
        """The columns of a part that hold its values: of bytes, also the lengths."""
        return (self.key, f"{self.key} lengths") if self.as_bytes else (self.key,)

    def rows(self, episode: Episode) -> Sequence[Array]:
        """The rows of each of `part_columns`. Raises BadEpisode if the format cannot hold them."""
        if self.as_bytes:
            values = self.encode(episode)
            return np.frombuffer(b"".join(values), np.uint8), np.array([len(value) for value in values], "<i8")
        if not self.of_episode:
            return [self.values(episode)]
        value = np.asarray(episode.metadata[self.path], self.dtype)
        return [np.ascontiguousarray(value.reshape(1, *self.shape))]

    def encode(self, episode: Episode) -> list[bytes]:
        """The values as bytes: the text of each step, or of the episode. Raises BadEpisode as `rows`."""
        if self.of_episode:
            return [text_bytes(episode.metadata[self.path], self.path)]
        return text_values(episode.steps[self.path], self.path)


@dataclasses.dataclass(frozen=True)
class ArraysOutput(MergedOutput):
    """An output with an array of all values of each field. The first column of a part has the episodes' lengths.

    Attributes:
      directory, splits: see `MergedOutput`.
      name: the name of the dataset.
      columns: the stored fields.
      left_out: the fields not written, with the reasons.
      meaning: what is known of the dataset.
    """

    directory: str
    name: str
    splits: tuple[str, ...]
    columns: tuple[StoredColumn, ...]
    left_out: dict[str, str]
    meaning: Meaning

    def describe(self) -> Description:
        return Description([str(column.field) for column in self.columns], self.left_out)

    @property
    def part_columns(self) -> tuple[str, ...]:
        return ("steps", *(part for column in self.columns for part in column.part_columns()))

    def encode(self, episode: Episode) -> Sequence[Array]:
        steps = np.array([len(episode)], "<i8")
        return [steps, *(rows for column in self.columns for rows in column.rows(episode))]

    @property
    def starts(self) -> list[int]:
        """The index of each field's first part column."""
        counts = [1, *(len(column.part_columns()) for column in self.columns)]
        return [*itertools.accumulate(counts)][:-1]

    def about(self) -> dict[str, Any]:
        """The stored fields and what is known of the dataset, as JSON."""
        fields = [{"key": c.key, "of_episode": c.of_episode, **field_json(c.field)} for c in self.columns]
        return {"fields": fields, **self.meaning.entry()}


def read_blocks(parts: Sequence[Part], column: int) -> Iterator[bytes]:
    """The rows of a column of all parts, block by block."""
    for part in parts:
        yield from part.blocks(column)


def write_merged(directory: str, name: str, split: str, episodes: int, pieces: Iterable[bytes]) -> MergedFile:
    """Writes these bytes to a file, which gets its name when complete."""
    with ShardWriter(storage.below(directory, name)) as writer:
        writer.write(pieces, episodes)
        return MergedFile(name, split, msgspec.structs.replace(writer.commit(), records=episodes))
