"""NumPy arrays: one `.npy` file for each field, with all steps of all episodes.

    OUTPUT/train/observation.state.npy    (steps, ...)      np.load(..., mmap_mode="r") reads it from disk
    OUTPUT/train/episode_offsets.npy      (episodes + 1,)   episode i is the steps offsets[i]:offsets[i + 1]

Text and JPEGs (`--images=jpeg`) are concatenated bytes, `observation.image.npy`, with `observation.image.offsets.npy`:
value i is the bytes offsets[i]:offsets[i + 1]. Episode fields are arrays with a value for each episode. Only fields
without a fixed shape are left out.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlds_beam.connectors.pipeline import ConnectorRunner
from rlds_beam.episodes.episode import Episode
from rlds_beam.formats.arrays.leaves import is_text, make_columns
from rlds_beam.formats.arrays.parts import ArraysOutput, Part, StoredColumn, read_blocks, write_merged
from rlds_beam.formats.format_options import ImageOptions
from rlds_beam.images.codecs import encode_jpeg
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.output.base import HoldsLastActions
from rlds_beam.output.shards import MergedFile
from rlds_beam.reading.base import Source
from rlds_beam.reading.meaning import LastAction

OFFSETS = "episode_offsets"
_JPEG_QUALITY = 95
_INT64 = np.dtype("<i8")


class NumpyColumn(StoredColumn):
    """A field; its key is the name of its file, without `.npy`."""

    def encode(self, episode: Episode) -> list[bytes]:
        """Also images, as JPEGs; JPEGs are passed on unchanged."""
        if self.of_episode or not self.is_image:
            return super().encode(episode)
        column = episode.steps[self.path]
        if not isinstance(column, EncodedImages):
            return encode_jpeg(self.values(episode), _JPEG_QUALITY)
        images = list(column)
        others = [i for i, data in enumerate(images) if not data.startswith(b"\xff\xd8\xff")]
        if others:
            pixels = self.pixels(column[np.array(others)])
            for i, jpeg in zip(others, encode_jpeg(pixels, _JPEG_QUALITY), strict=True):
                images[i] = jpeg
        return images

    @property
    def files(self) -> list[str]:
        return [self.key, f"{self.key}.offsets"] if self.as_bytes else [self.key]


@dataclasses.dataclass(frozen=True)
class NumpyOutput(HoldsLastActions, ArraysOutput):
    """A directory of arrays for each split. Attributes: see `ArraysOutput`."""

    columns: tuple[NumpyColumn, ...]

    options_class = ImageOptions

    @classmethod
    def create(cls, source: Source, connectors: ConnectorRunner, directory: str, options: ImageOptions) -> NumpyOutput:
        left_out: dict[str, str] = {}
        columns = []
        for fields, of_episode in ((connectors.schema.steps, False), (connectors.schema.metadata, True)):
            for path, field in fields.items():
                as_bytes = is_text(field) or (field.holds_image_files and (of_episode or options.images == "jpeg"))
                if as_bytes or make_columns([field], left_out):
                    columns.append(NumpyColumn(field, path.replace("/", "."), of_episode, as_bytes))
        splits = tuple(split.name for split in source.splits)
        return cls(directory, source.name, splits, tuple(columns), left_out, source.meaning)

    @property
    def last_action(self) -> LastAction:
        return self.meaning.last_action

    def stored_names(self) -> Iterator[tuple[str, str]]:
        yield "the offsets of the episodes", OFFSETS
        yield from ((column.path, name) for column in self.columns for name in column.files)

    def plan(self) -> dict[str, Any]:
        return {"numpy": {**self.about(), "as_bytes": [column.key for column in self.columns if column.as_bytes]}}

    def merge(self, split: str, parts: Sequence[Part]) -> Iterator[MergedFile]:
        def write(name: str, rows: int, shape: tuple[int, ...], dtype: np.dtype[Any], data: Any) -> MergedFile:
            pieces = (piece for content in ([_npy_header(dtype, shape)], data) for piece in content)
            return write_merged(self.directory, f"{split}/{name}.npy", split, rows, pieces)

        episodes = sum(map(len, parts))
        yield write(OFFSETS, episodes, (episodes + 1,), _INT64, _offsets(read_blocks(parts, 0)))
        for column, at in zip(self.columns, self.starts, strict=True):
            rows = sum(part.total(at) for part in parts)
            dtype, shape = (np.dtype(np.uint8), ()) if column.as_bytes else (column.dtype, column.shape)
            yield write(column.key, rows, (rows, *shape), dtype, read_blocks(parts, at))
            if column.as_bytes:
                count = sum(part.total(at + 1) for part in parts)
                offsets = _offsets(read_blocks(parts, at + 1))
                yield write(f"{column.key}.offsets", count, (count + 1,), _INT64, offsets)

    def describe_merged(self, parts: Mapping[str, Sequence[Part]]) -> dict[str, Any]:
        return self.plan()


def _npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """The header of a `.npy` file with an array in C order."""
    file = io.BytesIO()
    formats: Any = np.lib.format
    content = {"descr": formats.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    formats.write_array_header_1_0(file, content)
    return file.getvalue()


def _offsets(lengths: Iterable[bytes]) -> Iterator[bytes]:
    """Converts int64 lengths to offsets, from 0."""
    yield bytes(8)
    last = 0
    for piece in lengths:
        offsets = last + np.cumsum(np.frombuffer(piece, "<i8"))
        last = int(offsets[-1]) if len(offsets) else last
        yield offsets.astype("<i8").tobytes()
