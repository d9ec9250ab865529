"""Replay buffers of diffusion policy and UMI: `--to=zarr` writes `train.zarr.zip` for each split.

    data/state            (steps, ...)      observation/state
    data/action           (steps, ...)      action; and so on for all step fields
    meta/episode_ends     (episodes,)       the step after the last of each episode
    meta/<field>          (episodes, ...)   fields of the episode

Images are decoded, one in each chunk. Text is an array of bytes (`S`) as long as the longest one. The root's attribute
`rlds_beam` names the field of each array, so that `--from=zarr` reads the same dataset.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, TypeAlias, cast

import msgspec
import numpy as np

from rlds_beam import storage
from rlds_beam.connectors.base import Batch
from rlds_beam.connectors.pipeline import ConnectorRunner
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.schema import Field
from rlds_beam.formats.arrays.array_episodes import split_bytes
from rlds_beam.formats.arrays.leaves import is_text, make_columns, not_representable
from rlds_beam.formats.arrays.parts import ArraysOutput, Part, Sink, StoredColumn, read_blocks
from rlds_beam.formats.format_options import ZarrOptions
from rlds_beam.formats.profiles.zarr_store import ENDS, OWN
from rlds_beam.output.base import FileRangeWriter, RowsOutput, RowsWriter, select_rows
from rlds_beam.output.shards import MergedFile, ShardWriter
from rlds_beam.reading.base import Source, WorkRange
from rlds_beam.reading.last_steps import RowRule
from rlds_beam.typing import Array

Member: TypeAlias = "tuple[str, bytes]"

CHUNK_BYTES = 2_000_000
"""Target size of a chunk, that of diffusion policy's `get_optimal_chunks`."""

BLOSC: dict[str, dict[str, Any]] = {
    "lz4": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 0, "blocksize": 0},
    "zstd": {"id": "blosc", "cname": "zstd", "clevel": 5, "shuffle": 2, "blocksize": 0},
}
"""The compressors that diffusion policy calls `default` and `disk`."""

JPEGXL: dict[str, Any] = {
    "id": "imagecodecs_jpegxl",
    "level": None,
    "effort": 3,
    "distance": None,
    "lossless": True,
    "decodingspeed": None,
    "photometric": None,
    "planar": None,
    "usecontainer": None,
    "index": None,
    "keeporientation": None,
    "numthreads": 1,
}
"""Lossless JPEG XL, with the options that UMI's `JpegXl` and imagecodecs' `Jpegxl` share."""

_LARGE = 1 << 16
"""Rows of this size are chunks, compressed when the range is written."""


@dataclasses.dataclass(frozen=True)
class ZarrColumn(StoredColumn):
    """A field. Attributes: see `StoredColumn`; `compressor`: the compressor of its chunks."""

    compressor: dict[str, Any] = dataclasses.field(default_factory=dict)

    def encode(self, episode: Episode) -> list[bytes]:
        """The texts, or the chunks of the steps."""
        if not is_text(self.field):
            return [_compress(row[None], self.compressor) for row in self.values(episode)]
        texts = super().encode(episode)
        if any(text.endswith(b"\0") for text in texts):
            raise not_representable("a text ends with a zero byte, which arrays of bytes do not keep", self.path)
        return texts

    def members(self, parts: Sequence[Part], at: int) -> Iterator[Member]:
        """The array, from the part columns `at` and, of bytes, `at + 1`."""
        rows = sum(part.total(at + self.as_bytes) for part in parts)
        shape = (rows, *self.shape)
        if not self.as_bytes:
            yield from _array(self.key, shape, self.dtype, read_blocks(parts, at), self.compressor)
            return
        values = (
            value
            for data, lengths in zip(read_blocks(parts, at), read_blocks(parts, at + 1), strict=True)
            for value in split_bytes(data, np.frombuffer(lengths, "<i8"))
        )
        if is_text(self.field):
            lengths = (int(np.frombuffer(block, "<i8").max(initial=0)) for block in read_blocks(parts, at + 1))
            width = max([1, *lengths])
            texts = (text.ljust(width, b"\0") for text in values)
            yield from _array(self.key, (rows,), np.dtype(f"S{width}"), texts, BLOSC["zstd"])
        else:
            yield _describe_array(self.key, shape, 1, self.dtype, self.compressor)
            yield from ((_chunk_key(self.key, i, len(shape)), chunk) for i, chunk in enumerate(values))


@dataclasses.dataclass(frozen=True)
class ZarrOutput(ArraysOutput, RowsOutput):
    """A zarr store, packed as a zip file, for each split. Attributes: see `ArraysOutput` and `RowsOutput`."""

    columns: tuple[ZarrColumn, ...]
    rule: RowRule

    options_class = ZarrOptions
    input_facts = ("zarr.last_step.assumed",)

    @classmethod
    def create(cls, source: Source, connectors: ConnectorRunner, directory: str, options: ZarrOptions) -> ZarrOutput:
        left_out: dict[str, str] = {}
        columns = []
        for field, key in _storable_fields(connectors.schema.steps.values(), left_out):
            image = field.holds_image_files and field.dtype in ("uint8", "uint16")
            compressor = JPEGXL if image and options.images == "jpegxl" else BLOSC[options.compressor]
            column = ZarrColumn(field, key, False, is_text(field), compressor)
            is_large = math.prod(column.shape) * column.dtype.itemsize >= _LARGE
            if column.is_image or (is_large and not column.as_bytes):
                column = dataclasses.replace(column, as_bytes=True)  # each row is a chunk
            columns.append(column)
        for field, key in _storable_fields(connectors.schema.metadata.values(), left_out, of_episode=True):
            columns.append(ZarrColumn(field, key, True, is_text(field), BLOSC["zstd"]))
        splits = tuple(split.name for split in source.splits)
        meaning, rule = source.meaning, RowRule.of(source, connectors.schema, options.last_step)
        if rule.left_out:  # each row that is left has an action
            meaning = dataclasses.replace(meaning, last_action="real")
        return cls(directory, source.name, splits, tuple(columns), left_out, meaning, rule)

    @property
    def fields(self) -> list[Field]:
        return [column.field for column in self.columns if not column.of_episode]

    def stored_names(self) -> Iterator[tuple[str, str]]:
        yield "the ends of the episodes", ENDS
        yield from ((column.path, column.key) for column in self.columns)

    def plan(self) -> dict[str, Any]:
        compressors = [column.compressor for column in self.columns]
        return {"zarr": {**self.about(), "compressors": compressors, **self.rule.to_json()}}

    def predict(self, batches: Iterable[Batch]) -> int:
        return sum(len(select_rows(batch, self.rule).episodes) for batch in batches)

    def open_range(self, work: WorkRange) -> FileRangeWriter:
        writer = super().open_range(work)
        return RowsWriter(writer, self.rule) if self.rule.left_out else writer

    def merge(self, split: str, parts: Sequence[Part]) -> Iterator[MergedFile]:
        name, episodes = f"{split}.zarr.zip", sum(map(len, parts))
        with ShardWriter(storage.below(self.directory, name)) as shard:
            with zipfile.ZipFile(cast("IO[bytes]", Sink(shard)), "w") as archive:
                for key, data in self._members(split, parts):
                    info = zipfile.ZipInfo(key)  # of 1 January 1980, so that equal members are equal bytes
                    info.external_attr = 0o100644 << 16
                    archive.writestr(info, data)
            yield MergedFile(name, split, msgspec.structs.replace(shard.commit(), records=episodes))

    def _members(self, split: str, parts: Sequence[Part]) -> Iterator[Member]:
        yield ".zgroup", _json({"zarr_format": 2})
        yield ".zattrs", _json({OWN: {"dataset": self.name, "split": split, **self.about()}})
        yield from ((f"{group}/.zgroup", _json({"zarr_format": 2})) for group in ("data", "meta"))
        ends = np.cumsum(np.frombuffer(b"".join(read_blocks(parts, 0)), "<i8")).astype("<i8")
        yield from _array(ENDS, ends.shape, ends.dtype, [ends.tobytes()], None, max(1, len(ends)))
        for column, at in zip(self.columns, self.starts, strict=True):
            yield from column.members(parts, at)

    def describe_merged(self, parts: Mapping[str, Sequence[Part]]) -> dict[str, Any]:
        return {"zarr": {"fields": self.about()["fields"]}}


def _storable_fields(
    fields: Iterable[Field], left_out: dict[str, str], *, of_episode: bool = False
) -> Iterator[tuple[Field, str]]:
    """The fields that zarr can hold, with the keys of their arrays: `data/state` for observation/state."""
    kept = []
    for field in fields:
        if of_episode and field.holds_image_files:
            left_out[field.path] = "an image of the episode"
        else:
            kept += [field] if is_text(field) else [leaf.field for leaf in make_columns([field], left_out)]
    prefix = "episode_metadata/" if of_episode else "observation/"
    short = [_name(field.path.removeprefix(prefix)) for field in kept]
    taken = Counter(short)
    for field, name in zip(kept, short, strict=True):
        yield field, f"{'meta' if of_episode else 'data'}/{name if taken[name] == 1 else _name(field.path)}"


def _name(path: str) -> str:
    """A field's path as the name of an array; a name that begins with a dot would be one of zarr's own."""
    name = re.sub(r"[/\\]", "_", path)
    return f"_{name}" if name.startswith(".") else name


def _compress(values: Array, compressor: dict[str, Any]) -> bytes:
    """A chunk as bytes. Deterministic."""
    import imagecodecs

    if compressor["id"] == "blosc":
        data: bytes = imagecodecs.blosc_encode(
            values.tobytes(),
            level=compressor["clevel"],
            compressor=compressor["cname"],
            shuffle=compressor["shuffle"],
            typesize=values.dtype.itemsize,
            numthreads=1,
        )
        return data
    image = values[0, ..., 0] if values.shape[-1] == 1 else values[0]
    image_bytes: bytes = imagecodecs.jpegxl_encode(image, effort=compressor["effort"], lossless=True, numthreads=1)
    return image_bytes


def _describe_array(
    key: str, shape: tuple[int, ...], rows: int, dtype: np.dtype[Any], compressor: dict[str, Any] | None
) -> Member:
    """The `.zarray` of an array whose chunks have `rows` rows."""
    content = {
        "chunks": [max(1, rows), *(max(1, size) for size in shape[1:])],
        "compressor": compressor,
        "dtype": dtype.str,
        "fill_value": 0 if dtype.kind in "biuf" else None,
        "filters": None,
        "order": "C",
        "shape": list(shape),
        "zarr_format": 2,
    }
    return f"{key}/.zarray", _json(content)


def _json(content: Any) -> bytes:
    return json.dumps(content, indent=4, sort_keys=True).encode()


def _chunk_key(key: str, i: int, dimensions: int) -> str:
    """The key of the chunk with the first index i."""
    return f"{key}/{'.'.join([str(i), *['0'] * (dimensions - 1)])}"


def _array(
    key: str,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    pieces: Iterable[bytes],
    compressor: dict[str, Any] | None,
    rows: int | None = None,
) -> Iterator[Member]:
    """An array, from its values in C order, in pieces of any size; a chunk is in memory.

    Args:
      key, shape, dtype: of the array.
      pieces: the bytes of all rows.
      compressor: the compressor; None stores the values as they are.
      rows: the rows of a chunk; by default those of about `CHUNK_BYTES`.
    """
    row_bytes = math.prod(shape[1:]) * dtype.itemsize
    if rows is None:
        rows = max(1, min(shape[0], -(-CHUNK_BYTES // max(row_bytes, 1))))
    yield _describe_array(key, shape, rows, dtype, compressor)
    if not row_bytes:
        return
    held, size, i = bytearray(), rows * row_bytes, 0
    for piece in pieces:
        held += piece
        while len(held) >= size:
            yield _chunk(key, i, shape, dtype, bytes(held[:size]), compressor)
            del held[:size]
            i += 1
    if held:
        yield _chunk(key, i, shape, dtype, bytes(held).ljust(size, b"\0"), compressor)


def _chunk(
    key: str, i: int, shape: tuple[int, ...], dtype: np.dtype[Any], data: bytes, compressor: dict[str, Any] | None
) -> Member:
    values = np.frombuffer(data, dtype)
    return _chunk_key(key, i, len(shape)), data if compressor is None else _compress(values, compressor)
