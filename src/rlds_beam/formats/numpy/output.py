"""NumPy arrays: one `.npy` file for each field, with all steps of all episodes.

    OUTPUT/train/observation.state.npy    (steps, ...)      np.load(..., mmap_mode="r") reads it from disk
    OUTPUT/train/episode_offsets.npy      (episodes + 1,)   episode i is the steps offsets[i]:offsets[i + 1]

Text and JPEGs (`--images=jpeg`) are concatenated bytes, `observation.image.npy`, with `observation.image.offsets.npy`:
value i is the bytes offsets[i]:offsets[i + 1]. Episode fields are arrays with a value for each episode. Only fields
without a fixed shape are left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlds_beam.connectors.pipeline import ConnectorRunner
from rlds_beam.episodes.columns import text_bytes
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.schema import Field
from rlds_beam.formats.arrays.leaves import LeafColumn, field_json, is_text, make_columns, text_values
from rlds_beam.formats.arrays.parts import (
    MergedOutput,
    Part,
    npy_header,
    sized_columns,
    sized_rows,
    write_merged,
)
from rlds_beam.formats.format_options import ImageOptions
from rlds_beam.output.base import Description, MergedFile
from rlds_beam.output.last_steps import HoldsLastActions
from rlds_beam.reading.base import LastAction, Source
from rlds_beam.reading.meaning import Meaning
from rlds_beam.typing import Array

OFFSETS = "episode_offsets"


@dataclasses.dataclass(frozen=True)
class NumpyColumn:
    """A field, and how it is stored.

    Attributes:
      field: a field of the steps, or of the episode.
      of_episode: whether it is a field of the episode.
      as_bytes: whether its values are bytes of varying length.
    """

    field: Field
    of_episode: bool = False
    as_bytes: bool = False

    @property
    def file(self) -> str:
        """The file name, without `.npy`."""
        return self.field.path.replace("/", ".")

    @property
    def _leaf(self) -> LeafColumn:
        return LeafColumn(self.field)

    def part_columns(self) -> tuple[str, ...]:
        """The part columns that hold its values."""
        return sized_columns(self.field.path) if self.as_bytes else (self.field.path,)

    def rows(self, episode: Episode) -> Sequence[Array]:
        """The rows of each of `part_columns`."""
        if self.as_bytes:
            return sized_rows(self._bytes(episode))
        if not self.of_episode:
            return [self._leaf.values(episode)]
        value = episode.metadata[self.field.path]
        return [np.ascontiguousarray(np.asarray(value, self._leaf.dtype).reshape(1, *self._leaf.shape))]

    def _bytes(self, episode: Episode) -> list[bytes]:
        if self.of_episode:
            return [text_bytes(episode.metadata[self.field.path], self.field.path)]
        if self._leaf.is_image:
            return self._leaf.jpegs(episode)
        return text_values(episode.steps[self.field.path], self.field.path)


@dataclasses.dataclass(frozen=True)
class NumpyOutput(HoldsLastActions, MergedOutput):
    """A directory of arrays for each split.

    Attributes:
      directory, name, splits: see `MergedOutput`.
      columns: the stored fields.
      left_out: the fields not written, with the reasons.
      meaning: what is known of the dataset.
    """

    directory: str
    name: str
    splits: tuple[str, ...]
    columns: tuple[NumpyColumn, ...]
    left_out: dict[str, str]
    meaning: Meaning = dataclasses.field(default_factory=Meaning)

    options_class = ImageOptions

    @classmethod
    def create(cls, source: Source, connectors: ConnectorRunner, directory: str, options: ImageOptions) -> NumpyOutput:
        left_out: dict[str, str] = {}
        jpeg = options.images == "jpeg"
        columns = [*_columns(connectors.schema.steps.values(), left_out, jpeg=jpeg)]
        of_episode = connectors.schema.metadata.values()
        columns += [dataclasses.replace(c, of_episode=True) for c in _columns(of_episode, left_out, jpeg=True)]
        splits = tuple(split.name for split in source.splits)
        return cls(directory, source.name, splits, tuple(columns), left_out, Meaning.of_dataset(source))

    @property
    def last_action(self) -> LastAction:
        return self.meaning.last_action

    @property
    def metadata(self) -> tuple[str, ...]:
        names = [OFFSETS, *(name for column in self.columns for name in _files(column))]
        return tuple(f"{split}/{name}.npy" for split in self.splits for name in names)

    def stored_names(self) -> Iterator[tuple[str, str]]:
        yield "the offsets of the episodes", OFFSETS
        yield from ((column.field.path, name) for column in self.columns for name in _files(column))

    def plan(self) -> dict[str, Any]:
        return {"numpy": {"fields": self._fields(), **self.meaning.entry()}}

    def _fields(self) -> list[dict[str, Any]]:
        return [
            {"file": c.file, "of_episode": c.of_episode, "as_bytes": c.as_bytes, **field_json(c.field)}
            for c in self.columns
        ]

    def describe(self) -> Description:
        return Description([str(column.field) for column in self.columns], self.left_out)

    @property
    def part_columns(self) -> tuple[str, ...]:
        return ("steps", *(part for column in self.columns for part in column.part_columns()))

    def encode(self, episode: Episode) -> Sequence[Array]:
        steps = np.array([len(episode)], "<i8")
        return [steps, *(rows for column in self.columns for rows in column.rows(episode))]

    def merge(self, split: str, parts: Sequence[Part]) -> Iterator[MergedFile]:
        episodes = sum(map(len, parts))
        yield self._write(split, OFFSETS, episodes, np.dtype("<i8"), (episodes + 1,), _offsets(_bytes(parts, 0)))
        at = 1
        for column in self.columns:
            rows = sum(part.total(at) for part in parts)
            leaf = LeafColumn(column.field)
            dtype, shape = (np.dtype(np.uint8), ()) if column.as_bytes else (leaf.dtype, leaf.shape)
            yield self._write(split, column.file, rows, dtype, (rows, *shape), _bytes(parts, at))
            at += 1
            if column.as_bytes:
                count = sum(part.total(at) for part in parts)
                name = f"{column.file}.offsets"
                yield self._write(split, name, count, np.dtype("<i8"), (count + 1,), _offsets(_bytes(parts, at)))
                at += 1

    def _write(
        self, split: str, name: str, records: int, dtype: np.dtype[Any], shape: tuple[int, ...], data: Iterable[bytes]
    ) -> MergedFile:
        def pieces() -> Iterator[bytes]:
            yield npy_header(dtype, shape)
            yield from data

        return write_merged(self.directory, f"{split}/{name}.npy", split, records, pieces())

    def describe_merged(self, parts: Mapping[str, Sequence[Part]]) -> dict[str, Any]:
        return {"numpy": {"fields": self._fields(), **self.meaning.entry()}}


def _columns(fields: Iterable[Field], left_out: dict[str, str], *, jpeg: bool) -> Iterator[NumpyColumn]:
    for field in fields:
        if is_text(field) or (jpeg and field.holds_image_files):
            yield NumpyColumn(field, as_bytes=True)
        else:
            yield from (NumpyColumn(leaf.field) for leaf in make_columns([field], left_out))


def _files(column: NumpyColumn) -> list[str]:
    return [column.file, f"{column.file}.offsets"] if column.as_bytes else [column.file]


def _bytes(parts: Sequence[Part], column: int) -> Iterator[bytes]:
    for part in parts:
        yield from part.blocks(column)


def _offsets(lengths: Iterable[bytes]) -> Iterator[bytes]:
    """Converts int64 lengths to offsets, from 0."""
    yield bytes(8)
    last = 0
    for piece in lengths:
        offsets = last + np.cumsum(np.frombuffer(piece, "<i8"))
        last = int(offsets[-1]) if len(offsets) else last
        yield offsets.astype("<i8").tobytes()
