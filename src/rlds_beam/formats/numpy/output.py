"""NumPy arrays: one `.npy` file for each field, with all steps of all episodes.

    OUTPUT/train/observation.state.npy    (steps, ...)      np.load(..., mmap_mode="r") reads it from disk
    OUTPUT/train/episode_offsets.npy      (episodes + 1,)   episode i is the steps offsets[i]:offsets[i + 1]

Images are pixels. Text is concatenated bytes, `observation.text.npy`, with `observation.text.offsets.npy`: value i is
the bytes offsets[i]:offsets[i + 1]; so are images of an episode. Episode fields are arrays with a value for each
episode. Only fields without a fixed shape are left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import IO, Any

import numpy as np

from rlds_beam.connectors.pipeline import ConnectorRunner
from rlds_beam.formats.arrays.array_episodes import fields_of_numbers, is_text, stored_dtype
from rlds_beam.formats.arrays.parts import INT64, ArraysOutput, Parts, StoredColumn, lengths_of
from rlds_beam.options import Options
from rlds_beam.output.base import HoldsLastActions
from rlds_beam.output.shards import MergedFile
from rlds_beam.reading.base import Source
from rlds_beam.reading.meaning import LastAction

OFFSETS = "episode_offsets"


@dataclasses.dataclass(frozen=True)
class NumpyOutput(HoldsLastActions, ArraysOutput):
    """A directory for each split, with a file for each key: `KEY.npy`. Attributes: see `ArraysOutput`."""

    @classmethod
    def create(cls, source: Source, connectors: ConnectorRunner, directory: str, options: Options) -> NumpyOutput:
        left_out: dict[str, str] = {}
        columns = []
        for fields, of_episode in ((connectors.schema.steps, False), (connectors.schema.metadata, True)):
            for path, field in fields.items():
                as_bytes = is_text(field) or (of_episode and field.holds_image_files)
                if as_bytes or fields_of_numbers([field], left_out):
                    columns.append(StoredColumn(field, path.replace("/", "."), of_episode, as_bytes))
        return cls(directory, source.name, tuple(columns), left_out, source.meaning)

    @property
    def last_action(self) -> LastAction:
        return self.meaning.last_action

    def stored_names(self) -> Iterator[tuple[str, str]]:
        yield "the offsets of the episodes", OFFSETS
        for column in self.columns:
            yield column.field.path, column.key
            if column.as_bytes:
                yield column.field.path, f"{column.key}.offsets"

    def plan(self) -> dict[str, Any]:
        return {"numpy": {**self.about(), "as_bytes": [column.key for column in self.columns if column.as_bytes]}}

    def merge(self, split: str, parts: Parts) -> Iterator[MergedFile]:
        def write(key: str, dtype: np.dtype[Any], shape: tuple[int, ...], pieces: Iterable[bytes]) -> MergedFile:
            formats: Any = np.lib.format  # has no types

            def write_npy(file: IO[bytes]) -> None:
                header = {"descr": formats.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
                formats.write_array_header_1_0(file, header)
                for piece in pieces:
                    file.write(piece)

            return self.write_merged(f"{split}/{key}.npy", split, shape[0], write_npy)

        yield write(OFFSETS, INT64, (parts.episodes + 1,), _offsets([parts.steps]))
        for column in self.columns:
            shape = self.shape(column, parts)
            if not column.as_bytes:
                yield write(column.key, stored_dtype(column.field), shape, parts.read(column.key))
                continue
            lengths = lengths_of(column.key)
            size = sum(int(block.sum()) for block in parts.integers(lengths))
            yield write(column.key, np.dtype(np.uint8), (size,), parts.read(column.key))
            yield write(f"{column.key}.offsets", INT64, (shape[0] + 1,), _offsets(parts.integers(lengths)))


def _offsets(lengths: Iterable[Any]) -> Iterator[bytes]:
    """Converts blocks of int64 lengths to offsets, from 0."""
    last = 0
    yield bytes(8)
    for block in lengths:
        offsets = last + np.cumsum(block, dtype=INT64)
        last = int(offsets[-1]) if len(offsets) else last
        yield offsets.tobytes()
