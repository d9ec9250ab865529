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
from collections.abc import Iterable, Iterator
from typing import IO, Any, TypeAlias

import numpy as np

from rlds_beam.connectors.base import Batch
from rlds_beam.connectors.pipeline import ConnectorRunner
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.schema import Field
from rlds_beam.formats.arrays.array_episodes import (
    fields_of_numbers,
    is_text,
    not_representable,
    read_numbers,
    stored_dtype,
)
from rlds_beam.formats.arrays.parts import INT64, ArraysOutput, Parts, StoredColumn, lengths_of
from rlds_beam.formats.format_options import ZarrOptions
from rlds_beam.formats.profiles.zarr_store import ENDS, OWN
from rlds_beam.output.base import RowRule, RowsOutput, RowsWriter, select_rows
from rlds_beam.output.shards import MergedFile
from rlds_beam.processing.ranges import RangeWriter
from rlds_beam.reading.base import Source, WorkRange

Member: TypeAlias = "tuple[str, bytes]"

CHUNK_BYTES = 2_000_000
"""Target size of a chunk, that of diffusion policy's `get_optimal_chunks`."""

BLOSC: dict[str, dict[str, Any]] = {
    "lz4": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 0, "blocksize": 0},
    "zstd": {"id": "blosc", "cname": "zstd", "clevel": 5, "shuffle": 2, "blocksize": 0},
}
"""The compressors that diffusion policy calls `default` and `disk`."""

JPEGXL = {"id": "imagecodecs_jpegxl", "effort": 3, "lossless": True, "numthreads": 1}
"""Lossless JPEG XL, with options that UMI's `JpegXl` and imagecodecs' `Jpegxl` share."""

_LARGE = 1 << 16  # rows of this size in bytes are chunks, compressed when the range is written


@dataclasses.dataclass(frozen=True)
class ZarrOutput(ArraysOutput, RowsOutput):
    """A zarr store, packed as a zip file, for each split. Attributes: see `ArraysOutput` and `RowsOutput`.

    Texts, and rows so large that each is a chunk, are `as_bytes`.
    """

    rule: RowRule
    options: ZarrOptions

    options_class = ZarrOptions
    input_facts = ("zarr.last_step.assumed",)

    @classmethod
    def create(cls, source: Source, connectors: ConnectorRunner, directory: str, options: ZarrOptions) -> ZarrOutput:
        left_out: dict[str, str] = {}
        columns = []
        for fields, of_episode in ((connectors.schema.steps, False), (connectors.schema.metadata, True)):
            for field, key in _choose_keys(fields.values(), left_out, of_episode):
                is_large = math.prod(field.closed_shape) * stored_dtype(field).itemsize >= _LARGE
                is_chunk = not of_episode and (field.holds_image_files or is_large)
                columns.append(StoredColumn(field, key, of_episode, is_text(field) or is_chunk))
        meaning, rule = source.meaning, RowRule.choose(source, connectors.schema, options.last_step)
        if rule.left_out:  # each row that is left has an action
            meaning = dataclasses.replace(meaning, last_action="real")
        return cls(directory, source.name, tuple(columns), left_out, meaning, rule, options)

    @property
    def fields(self) -> list[Field]:
        return [column.field for column in self.columns if not column.of_episode]

    def stored_names(self) -> Iterator[tuple[str, str]]:
        yield "the ends of the episodes", ENDS
        yield from ((column.field.path, column.key) for column in self.columns)

    def plan(self) -> dict[str, Any]:
        compressors = [self._compressor(column) for column in self.columns]
        return {"zarr": {**self.about(), "compressors": compressors, **self.rule.to_json()}}

    def _compressor(self, column: StoredColumn) -> dict[str, Any]:
        field = column.field
        if self.options.images == "jpegxl" and field.holds_image_files and field.dtype in ("uint8", "uint16"):
            return JPEGXL
        return BLOSC["zstd" if column.of_episode or is_text(field) else self.options.compressor]

    def predict(self, batches: Iterable[Batch]) -> int:
        return sum(len(select_rows(batch, self.rule).episodes) for batch in batches)

    def open_range(self, work: WorkRange) -> RangeWriter:
        writer = super().open_range(work)
        return RowsWriter(writer, self.rule) if self.rule.left_out else writer

    def encode_bytes(self, column: StoredColumn, episode: Episode) -> list[bytes]:
        """The texts, or the chunks of the steps."""
        import imagecodecs

        if is_text(column.field):
            texts = super().encode_bytes(column, episode)
            if any(text.endswith(b"\0") for text in texts):
                path = column.field.path
                raise not_representable("a text ends with a zero byte, which arrays of bytes do not keep", path)
            return texts
        rows, compressor = read_numbers(column.field, episode), self._compressor(column)
        if compressor != JPEGXL:
            return [_compress(row.tobytes(), row.dtype, compressor) for row in rows]
        images = rows[..., 0] if rows.shape[-1] == 1 else rows
        return [imagecodecs.jpegxl_encode(image, effort=3, lossless=True, numthreads=1) for image in images]

    def merge(self, split: str, parts: Parts) -> Iterator[MergedFile]:
        def write_zip(file: IO[bytes]) -> None:
            with zipfile.ZipFile(file, "w") as archive:
                for key, data in self._members(split, parts):
                    info = zipfile.ZipInfo(key)  # of 1 January 1980, so that equal members are equal bytes
                    info.external_attr = 0o100644 << 16
                    archive.writestr(info, data)

        yield self.write_merged(f"{split}.zarr.zip", split, parts.episodes, write_zip)

    def _members(self, split: str, parts: Parts) -> Iterator[Member]:
        yield ".zgroup", _json({"zarr_format": 2})
        yield ".zattrs", _json({OWN: {"dataset": self.name, "split": split, **self.about()}})
        yield from ((f"{group}/.zgroup", _json({"zarr_format": 2})) for group in ("data", "meta"))
        ends = np.cumsum(parts.steps, dtype=INT64)
        yield from _write_array(ENDS, ends.shape, INT64, BLOSC["zstd"], [ends.tobytes()])
        for column in self.columns:
            field, compressor = column.field, self._compressor(column)
            dtype, shape = stored_dtype(field), self.shape(column, parts)
            if is_text(field):
                width = max(int(lengths.max(initial=1)) for lengths in parts.integers(lengths_of(column.key)))
                texts = (text.ljust(width, b"\0") for text in parts.values(column.key))
                yield from _write_array(column.key, shape, np.dtype(f"S{width}"), compressor, texts)
            elif column.as_bytes:
                yield _describe_array(column.key, shape, 1, dtype, compressor)
                for i, chunk in enumerate(parts.values(column.key)):
                    yield _chunk_key(column.key, i, len(shape)), chunk
            else:
                yield from _write_array(column.key, shape, dtype, compressor, parts.read(column.key))


def _choose_keys(fields: Iterable[Field], left_out: dict[str, str], of_episode: bool) -> Iterator[tuple[Field, str]]:
    """The fields that zarr can hold, with the keys of their arrays: `data/state` for observation/state."""
    kept = []
    for field in fields:
        if of_episode and field.holds_image_files:
            left_out[field.path] = "an image of the episode"
        else:
            kept += [field] if is_text(field) else fields_of_numbers([field], left_out)
    prefix = "episode_metadata/" if of_episode else "observation/"
    short = [_name(field.path.removeprefix(prefix)) for field in kept]
    taken = Counter(short)
    for field, name in zip(kept, short, strict=True):
        yield field, f"{'meta' if of_episode else 'data'}/{name if taken[name] == 1 else _name(field.path)}"


def _name(path: str) -> str:
    """A field's path as the name of an array; a name that begins with a dot would be one of zarr's own."""
    name = re.sub(r"[/\\]", "_", path)
    return f"_{name}" if name.startswith(".") else name


def _write_array(
    key: str, shape: tuple[int, ...], dtype: np.dtype[Any], compressor: dict[str, Any], pieces: Iterable[bytes]
) -> Iterator[Member]:
    """An array, from the bytes of all rows in C order, in pieces of any size; a chunk is in memory."""
    row_bytes = math.prod(shape[1:]) * dtype.itemsize
    rows = max(1, min(shape[0], -(-CHUNK_BYTES // max(row_bytes, 1))))
    yield _describe_array(key, shape, rows, dtype, compressor)
    waiting, size, i = bytearray(), rows * row_bytes, 0
    for piece in pieces:
        waiting += piece
        while waiting and len(waiting) >= size:
            yield _chunk_key(key, i, len(shape)), _compress(bytes(waiting[:size]), dtype, compressor)
            del waiting[:size]
            i += 1
    if waiting:
        yield _chunk_key(key, i, len(shape)), _compress(bytes(waiting).ljust(size, b"\0"), dtype, compressor)


def _compress(data: bytes, dtype: np.dtype[Any], compressor: dict[str, Any]) -> bytes:
    """A chunk, compressed by Blosc. Deterministic."""
    import imagecodecs

    compressed: bytes = imagecodecs.blosc_encode(
        data,
        level=compressor["clevel"],
        compressor=compressor["cname"],
        shuffle=compressor["shuffle"],
        typesize=dtype.itemsize,
        numthreads=1,
    )
    return compressed


def _describe_array(
    key: str, shape: tuple[int, ...], rows: int, dtype: np.dtype[Any], compressor: dict[str, Any]
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
