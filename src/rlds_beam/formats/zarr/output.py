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
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlds_beam.connectors.base import Batch
from rlds_beam.connectors.pipeline import ConnectorRunner
from rlds_beam.episodes.columns import text_bytes
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.schema import Field
from rlds_beam.formats.arrays.array_episodes import split_bytes
from rlds_beam.formats.arrays.leaves import (
    LeafColumn,
    field_json,
    is_text,
    make_columns,
    not_representable,
    text_values,
)
from rlds_beam.formats.arrays.parts import (
    MergedOutput,
    Part,
    sized_columns,
    sized_rows,
    write_merged,
)
from rlds_beam.formats.format_options import ZarrOptions
from rlds_beam.formats.zarr.writer import (
    BLOSC,
    ENDS,
    JPEGXL,
    OWN,
    Member,
    array_members,
    chunk_key,
    compress,
    group,
    metadata,
    zip_pieces,
)
from rlds_beam.output.base import Description, FileRangeWriter, MergedFile
from rlds_beam.output.last_steps import RowsOutput, RowsWriter, select_rows
from rlds_beam.reading.base import Source, WorkRange
from rlds_beam.reading.meaning import Meaning, RowRule
from rlds_beam.typing import Array

_LARGE = 1 << 16
"""Rows of this size are chunks, compressed when the range is written."""

_INT64 = np.dtype("<i8")


@dataclasses.dataclass(frozen=True)
class ZarrColumn:
    """A field, and how it is stored.

    Attributes:
      field: a field of the steps, or of the episode.
      key: the key of its array.
      of_episode: whether it is a field of the episode.
      compressor: the compressor of its chunks.
    """

    field: Field
    key: str
    of_episode: bool
    compressor: dict[str, Any]

    @property
    def is_text(self) -> bool:
        return is_text(self.field)

    @property
    def leaf(self) -> LeafColumn:
        return LeafColumn(self.field)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of its array; not for text."""
        return self.leaf.dtype.newbyteorder("<")

    @property
    def in_frames(self) -> bool:
        """Whether each row is a chunk."""
        large = math.prod(self.leaf.shape) * self.leaf.dtype.itemsize >= _LARGE
        return not self.is_text and not self.of_episode and (self.leaf.is_image or large)

    def part_columns(self) -> tuple[str, ...]:
        """The part columns that hold its values."""
        return sized_columns(self.key) if self.is_text or self.in_frames else (self.key,)

    def rows(self, episode: Episode) -> Sequence[Array]:
        """The rows of each of `part_columns`. Raises BadEpisode if zarr cannot hold them."""
        if self.is_text:
            return sized_rows(self._texts(episode))
        if self.of_episode:
            value = np.asarray(episode.metadata[self.field.path], self.dtype)
            return [np.ascontiguousarray(value.reshape(1, *self.leaf.shape))]
        values = self.leaf.values(episode).astype(self.dtype, copy=False)
        return sized_rows([compress(row[None], self.compressor) for row in values]) if self.in_frames else [values]

    def _texts(self, episode: Episode) -> list[bytes]:
        path = self.field.path
        if self.of_episode:
            texts = [text_bytes(episode.metadata[path], path)]
        else:
            texts = text_values(episode.steps[path], path)
        if any(text.endswith(b"\0") for text in texts):
            raise not_representable("a text ends with a zero byte, which arrays of bytes do not keep", path)
        return texts

    def members(self, parts: Sequence[Part], at: int) -> Iterator[Member]:
        """The array, from the part columns `at` and, if it has two, `at + 1`."""
        rows = sum(part.total(at + self.is_text + self.in_frames) for part in parts)
        shape = (rows, *self.leaf.shape)
        if self.is_text:
            width = max([1, *(int(lengths.max(initial=0)) for lengths in _lengths(parts, at))])
            dtype = np.dtype(f"S{width}")
            pieces = (text.ljust(width, b"\0") for texts in _texts(parts, at) for text in texts)
            yield from array_members(self.key, (rows,), dtype, pieces, BLOSC["zstd"])
        elif self.in_frames:
            yield metadata(self.key, shape, 1, self.dtype, self.compressor)
            i = 0
            for chunks in _texts(parts, at):
                for chunk in chunks:
                    yield chunk_key(self.key, i, len(shape)), chunk
                    i += 1
        else:
            pieces = (piece for part in parts for piece in part.blocks(at))
            yield from array_members(self.key, shape, self.dtype, pieces, self.compressor)


def _lengths(parts: Sequence[Part], at: int) -> Iterator[Array]:
    """The lengths of the values of `sized_columns`, block by block."""
    for part in parts:
        for data in part.blocks(at + 1):
            yield np.frombuffer(data, "<i8")


def _texts(parts: Sequence[Part], at: int) -> Iterator[Array]:
    """The values of `sized_columns`, an object array of bytes for each block."""
    for part in parts:
        for data, lengths in zip(part.blocks(at), part.blocks(at + 1), strict=True):
            yield split_bytes(data, np.frombuffer(lengths, "<i8"))


@dataclasses.dataclass(frozen=True)
class ZarrOutput(MergedOutput, RowsOutput):
    """A zarr store, packed as a zip file, for each split.

    Attributes:
      directory, name, splits: see `MergedOutput`.
      columns: the stored fields.
      left_out: the fields not written, with the reasons.
      rule: see `RowsOutput`.
      meaning: what is known of the dataset.
    """

    directory: str
    name: str
    splits: tuple[str, ...]
    columns: tuple[ZarrColumn, ...]
    left_out: dict[str, str]
    rule: RowRule
    meaning: Meaning = dataclasses.field(default_factory=Meaning)

    options_class = ZarrOptions
    input_facts = ("zarr.last_step.assumed",)

    @classmethod
    def create(cls, source: Source, connectors: ConnectorRunner, directory: str, options: ZarrOptions) -> ZarrOutput:
        left_out: dict[str, str] = {}
        steps = _storable_fields(connectors.schema.steps.values(), left_out)
        of_episode = _storable_fields(connectors.schema.metadata.values(), left_out, of_episode=True)
        columns = [ZarrColumn(field, key, False, _compressor(field, options)) for field, key in steps]
        columns += [ZarrColumn(field, key, True, BLOSC["zstd"]) for field, key in of_episode]
        splits, rule = (
            tuple(split.name for split in source.splits),
            RowRule.of(source, connectors.schema, options.last_step),
        )
        meaning = Meaning.of_dataset(source)
        if rule.left_out:  # each row that is left has an action
            meaning = dataclasses.replace(meaning, last_action="real")
        return cls(directory, source.name, splits, tuple(columns), left_out, rule, meaning)

    @property
    def fields(self) -> list[Field]:
        return [column.field for column in self.columns if not column.of_episode]

    @property
    def metadata(self) -> tuple[str, ...]:
        return tuple(f"{split}.zarr.zip" for split in self.splits)

    def stored_names(self) -> Iterator[tuple[str, str]]:
        yield "the ends of the episodes", ENDS
        yield from ((column.field.path, column.key) for column in self.columns)

    def plan(self) -> dict[str, Any]:
        compressors = [column.compressor for column in self.columns]
        return {
            "zarr": {
                "fields": self._fields(),
                "compressors": compressors,
                **self.rule.to_json(),
                **self.meaning.entry(),
            }
        }

    def predict(self, batches: Iterable[Batch]) -> int:
        return sum(len(select_rows(batch, self.rule).episodes) for batch in batches)

    def open_range(self, work: WorkRange) -> FileRangeWriter:
        writer = super().open_range(work)
        return RowsWriter(writer, self.rule) if self.rule.left_out else writer

    def _fields(self) -> list[dict[str, Any]]:
        return [{"key": c.key, "of_episode": c.of_episode, **field_json(c.field)} for c in self.columns]

    def describe(self) -> Description:
        return Description([str(column.field) for column in self.columns], self.left_out)

    @property
    def part_columns(self) -> tuple[str, ...]:
        return ("steps", *(part for column in self.columns for part in column.part_columns()))

    def encode(self, episode: Episode) -> Sequence[Array]:
        return [np.array([len(episode)], "<i8"), *(rows for column in self.columns for rows in column.rows(episode))]

    def merge(self, split: str, parts: Sequence[Part]) -> Iterator[MergedFile]:
        members = self._members(split, parts)
        yield write_merged(self.directory, f"{split}.zarr.zip", split, sum(map(len, parts)), zip_pieces(members))

    def _members(self, split: str, parts: Sequence[Part]) -> Iterator[Member]:
        yield from group(
            "", {OWN: {"dataset": self.name, "split": split, "fields": self._fields(), **self.meaning.entry()}}
        )
        yield from group("data")
        yield from group("meta")
        lengths = np.frombuffer(b"".join(piece for part in parts for piece in part.blocks(0)), "<i8")
        ends = np.cumsum(lengths).astype("<i8")
        yield from array_members(ENDS, ends.shape, _INT64, [ends.tobytes()], None, max(1, len(ends)))
        at = 1
        for column in self.columns:
            yield from column.members(parts, at)
            at += len(column.part_columns())

    def describe_merged(self, parts: Mapping[str, Sequence[Part]]) -> dict[str, Any]:
        return {"zarr": {"fields": self._fields()}}


def _compressor(field: Field, options: ZarrOptions) -> dict[str, Any]:
    is_image = field.holds_image_files and field.dtype in ("uint8", "uint16")
    return JPEGXL if is_image and options.images == "jpegxl" else BLOSC[options.compressor]


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
