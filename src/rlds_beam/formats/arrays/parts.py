"""Outputs with a few large files: ranges write part files, by column, and `complete` merges them.

A part holds blocks of episodes. In a block, each column's rows are contiguous, episode after episode:

    block 0                                             block 1                            index
    [observations e0 e1 e2][actions e0 e1 e2][...] [observations e3 e4][actions e3 e4] ... [rows, blocks][JSON]

So an episode's rows of a column are contiguous, a column is a few large pieces, and neither writing nor merging holds
more than a block in memory. Values of varying length take two columns: their bytes, and their lengths.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import io
import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

import msgspec
import numpy as np

from rlds_beam import storage
from rlds_beam.connectors.base import Batch
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.schema import Field
from rlds_beam.errors import UsageError
from rlds_beam.images.codecs import encode_jpeg, encode_png
from rlds_beam.output.base import FileRangeWriter, MergedFile, MergesRanges
from rlds_beam.output.commits import RangeCommit
from rlds_beam.output.shards import ShardInfo, ShardWriter
from rlds_beam.reading.base import WorkRange
from rlds_beam.typing import Array

BLOCK_BYTES = 4 << 20
_READ = 1 << 20
_TRAILER = struct.Struct("<8sQ")
_MAGIC = b"rldspart"


class PartColumn(NamedTuple):
    """A column of a part."""

    name: str
    row_bytes: int


def sized_columns(name: str) -> tuple[PartColumn, PartColumn]:
    """The columns of values of varying length: their concatenated bytes, and the length of each."""
    return PartColumn(name, 1), PartColumn(f"{name} lengths", 8)


def sized_rows(values: Sequence[bytes]) -> tuple[Array, Array]:
    """The rows of `sized_columns`."""
    return np.frombuffer(b"".join(values), np.uint8), np.array([len(value) for value in values], "<i8")


class PartWriter:
    """Writes the part of a range (`output.base.FileRangeWriter`)."""

    def __init__(self, output: MergedOutput, path: str):
        self._output, self._columns, self._shard = output, output.part_columns, ShardWriter(path)
        self._at = self._held_bytes = self.predicted = 0
        self._held: list[tuple[Sequence[Array], object]] = []
        self._rows: list[list[int]] = []
        self._blocks: list[list[int]] = []
        self._about: dict[str, Any] = {}

    def write(self, batch: Batch) -> None:
        encoded = [self._output.encode(episode) for episode in batch.episodes]
        for episode, values in zip(batch.episodes, encoded, strict=True):  # nothing can fail after encoding
            self._output.note(self._about, values)
            self._add(values, episode.key)
            self.predicted += 1

    def _add(self, values: Sequence[Array], key: object) -> None:
        self._held.append((values, key))
        self._rows.append([len(rows) for rows in values])
        self._held_bytes += sum(rows.nbytes for rows in values)
        if self._held_bytes >= BLOCK_BYTES:
            self._flush()

    def _flush(self) -> None:
        if not self._held:
            return
        offsets = []
        for i in range(len(self._columns)):
            offsets.append(self._at)
            buffers = [np.ascontiguousarray(values[i]).reshape(-1).view(np.uint8).data for values, _ in self._held]
            self._shard.write(buffers, 0)
            self._at += sum(map(len, buffers))
        self._blocks.append([len(self._rows) - len(self._held), *offsets])
        for _, key in self._held:
            self._shard.write((), 1, key)
        self._held, self._held_bytes = [], 0

    def finish(self) -> ShardInfo:
        self._flush()
        rows = np.array(self._rows, "<i8").reshape(-1, len(self._columns))
        blocks = np.array(self._blocks, "<i8").reshape(-1, 1 + len(self._columns))
        content = {
            "body": self._at,
            "episodes": len(rows),
            "blocks": len(blocks),
            "about": self._about,
            "columns": self._columns,
        }
        text = json.dumps(content).encode()
        self._shard.write([rows.tobytes(), blocks.tobytes(), text, _TRAILER.pack(_MAGIC, len(text))], 0)
        return self._shard.commit()

    def abort(self) -> None:
        self._shard.abort()


class Stretch(NamedTuple):
    """Contiguous rows of a column in a part.

    Attributes:
      offset: the offset in the part.
      rows: the number of rows of each episode, int64.
    """

    offset: int
    rows: Array


class Part:
    """A part opened for reading. Its index is in memory: 8 bytes for each episode and column."""

    def __init__(self, path: str):
        """
        Raises:
          UsageError: the file is not a part.
        """
        self.path = path
        size = storage.size(path)
        with storage.open_read(path) as file:
            file.seek(max(0, size - _TRAILER.size))
            magic, length = _TRAILER.unpack(file.read(_TRAILER.size).rjust(_TRAILER.size, b"\0"))
            if magic != _MAGIC:
                raise UsageError(f"{path} is not a part file of rlds-beam")
            file.seek(size - _TRAILER.size - length)
            content = json.loads(file.read(length))
            self.body: int = content["body"]
            self.about: dict[str, Any] = content["about"]
            self.columns = tuple(PartColumn(*column) for column in content["columns"])
            shape = content["episodes"], len(self.columns)
            file.seek(self.body)
            self.rows: Array = np.frombuffer(file.read(8 * shape[0] * shape[1]), "<i8").reshape(shape)
            count = content["blocks"] * (1 + shape[1])
            self._blocks: Array = np.frombuffer(file.read(8 * count), "<i8").reshape(-1, 1 + shape[1])

    def __len__(self) -> int:
        """The number of episodes."""
        return len(self.rows)

    def total(self, column: int) -> int:
        """The number of rows of a column."""
        return int(self.rows[:, column].sum())

    def stretches(self, column: int) -> Iterator[Stretch]:
        """The location of a column's rows, block by block."""
        ends = [*self._blocks[1:, 0], len(self)]
        for (first, *offsets), end in zip(self._blocks.tolist(), ends, strict=True):
            yield Stretch(offsets[column], self.rows[first:end, column])

    def column_bytes(self, column: int) -> Iterator[bytes]:
        """A column's rows of all episodes, in order."""
        row_bytes = self.columns[column].row_bytes
        with storage.open_read(self.path) as file:
            for offset, rows in self.stretches(column):
                yield from read_pieces(file, offset, int(rows.sum()) * row_bytes)

    def blocks(self, column: int) -> Iterator[tuple[bytes, Array]]:
        """A column's rows block by block, with the number of rows of each episode."""
        row_bytes = self.columns[column].row_bytes
        with storage.open_read(self.path) as file:
            for offset, rows in self.stretches(column):
                yield b"".join(read_pieces(file, offset, int(rows.sum()) * row_bytes)), rows

    def block_bytes(self, column: int) -> Iterator[bytes]:
        """A column's rows block by block; the blocks of all columns hold the same episodes."""
        return (data for data, _ in self.blocks(column))


def read_pieces(file: BinaryIO, offset: int, size: int) -> Iterator[bytes]:
    """Reads `size` bytes of a file from an offset, at most 1 MiB at a time."""
    file.seek(offset)
    while size:
        piece = file.read(min(size, _READ))
        if not piece:
            raise UsageError(f"{file.name} is cut short: run the same command again")
        yield piece
        size -= len(piece)


@functools.lru_cache(maxsize=1024)
def npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """The header of a `.npy` file with an array in C order."""
    file = io.BytesIO()
    formats: Any = np.lib.format
    content = {"descr": formats.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    formats.write_array_header_1_0(file, content)
    return file.getvalue()


def as_images(field: Field, raw_images: str) -> Field:
    """The field of frames of pixels (uint8 or uint16 [H, W, C], stored as bytes) as images, unless they stay `raw`.

    What a JPEG cannot hold, for example depth, becomes PNGs.
    """
    is_raw = field.dtype in ("uint8", "uint16") and field.encoding == "bytes" and len(field.shape) == 3
    if not is_raw or raw_images == "raw":
        return field
    is_color = field.dtype == "uint8" and field.shape[-1] in (1, 3)
    return dataclasses.replace(field, encoding="jpeg" if raw_images == "jpeg" and is_color else "png", feature="Image")


def encode_frames(pieces: Iterable[Array], encoding: str) -> Array:
    """Frames as PNGs, fast rather than small, or JPEGs. Holds the pixels of one piece at a time.

    Args:
      pieces: uint8 or uint16 [any, H, W, C], one after the other.
      encoding: `png` or `jpeg`.

    Returns:
      object [T], bytes.
    """
    encoded = (encode_jpeg(piece) if encoding == "jpeg" else encode_png(piece, level=1) for piece in pieces)
    rows = [image for images in encoded for image in images]
    return np.fromiter(rows, object, len(rows))


PARTS = "parts"
"""Directory of parts that are not yet merged."""


class MergedOutput(MergesRanges):
    """An output of a few large files.

    Attributes:
      splits: the names of the dataset's splits.
    """

    splits: tuple[str, ...]

    @property
    @abc.abstractmethod
    def part_columns(self) -> tuple[PartColumn, ...]:
        """The columns of a part."""

    @abc.abstractmethod
    def encode(self, episode: Episode) -> Sequence[Array]:
        """The rows of each column of a part. Raises BadEpisode if the format cannot hold the episode."""

    def note(self, about: dict[str, Any], values: Sequence[Array]) -> None:
        """Adds what merging will need to know about this part."""

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


def write_merged(directory: str, name: str, split: str, episodes: int, pieces: Iterable[bytes]) -> MergedFile:
    """Writes these bytes to a file, which gets its name when complete."""
    with ShardWriter(storage.below(directory, name)) as writer:
        writer.write(pieces, episodes)
        return MergedFile(name, split, msgspec.structs.replace(writer.commit(), records=episodes))
