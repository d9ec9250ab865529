"""The images of an episode as stored bytes, without decoding the episode if its format allows."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, BinaryIO, Protocol, cast

import numpy as np

from rlds_beam import storage
from rlds_beam.encoding.example.reader import parse_example
from rlds_beam.encoding.tfrecord.file import MAX_RECORD_BYTES, TFRecordFormat
from rlds_beam.encoding.tfrecord.framing import HEADER, record_header
from rlds_beam.encoding.wire import MalformedError
from rlds_beam.episodes.episode import Column, EpisodeKey
from rlds_beam.episodes.schema import Field, Schema
from rlds_beam.formats.merged.source import MergedDecoder
from rlds_beam.images.codecs import encode_png, encode_zeros
from rlds_beam.images.encoded_images import ZERO_IMAGE, EncodedImages
from rlds_beam.reading.base import Source
from rlds_beam.reading.decoding import EpisodeDecoder
from rlds_beam.reading.reader import find_shard

_MIN_SIDE_PIXELS = 8
"""The least height and width of raw pixels; smaller arrays are numbers."""
_BLOCK = 4096


class CameraFrames(Protocol):
    """The images of a camera."""

    def __len__(self) -> int: ...

    def image(self, step: int) -> bytes:
        """The image of a step: stored bytes, or a PNG of raw pixels."""

    def size(self, step: int) -> int:
        """The bytes of a stored image, or of raw pixels."""


@dataclasses.dataclass(frozen=True)
class StoredFrames:
    """Images at known places of a file."""

    path: str
    starts: np.ndarray[Any, np.dtype[np.int64]]
    stops: np.ndarray[Any, np.dtype[np.int64]]

    def __len__(self) -> int:
        return len(self.starts)

    def image(self, step: int) -> bytes:
        with storage.open_read(self.path) as file:
            file.seek(int(self.starts[step]))
            return file.read(self.size(step))

    def size(self, step: int) -> int:
        return int(self.stops[step] - self.starts[step])


@dataclasses.dataclass(frozen=True)
class LoadedFrames:
    """Images, or raw pixels [T, H, W, C], in memory."""

    column: Column
    field: Field

    def __len__(self) -> int:
        return len(self.column)

    def image(self, step: int) -> bytes:
        if isinstance(self.column, EncodedImages):
            data = self.column.image(step)
            if data != ZERO_IMAGE:
                return data
            sides, channels = self.field.shape[:-1], self.field.shape[-1] or 3
            shape = (*(side or _MIN_SIDE_PIXELS for side in sides), channels)
            return encode_zeros(shape, self.field.dtype, "png")
        pixels = np.asarray(self.column[step])
        return encode_png(pixels.reshape(1, *pixels.shape[:2], -1))[0]

    def size(self, step: int) -> int:
        column = self.column
        return len(column.image(step)) if isinstance(column, EncodedImages) else int(np.asarray(column[step]).nbytes)


def is_camera(field: Field) -> bool:
    """Whether each value of a field is an image: encoded, or raw pixels."""
    if field.holds_image_files:
        return True
    sides, channels = field.shape[:2], field.shape[2:] or (1,)
    return (
        field.dtype in ("uint8", "uint16")
        and len(sides) == 2
        and channels in ((1,), (3,), (4,))
        and all(size is None or size >= _MIN_SIDE_PIXELS for size in sides)
    )


def find_cameras(schema: Schema) -> list[Field]:
    """The step fields that are images."""
    return [field for field in schema.steps.values() if is_camera(field)]


def has_stored_frames(source: Source) -> bool:
    """Whether encoded images can be found in the dataset's files by `stored_frames`."""
    decoder = source.decoder
    as_stored = isinstance(decoder, EpisodeDecoder) or (isinstance(decoder, MergedDecoder) and decoder.keeps_images)
    return isinstance(source.files, TFRecordFormat) and as_stored


def stored_frames(source: Source, key: EpisodeKey) -> Mapping[str, StoredFrames] | None:
    """The places of an episode's encoded images, from the structure of its record; reads no image.

    Returns:
      Frames by field; None if there is no intact record, or the format does not store images this way.
    """
    path = find_shard(source, key).path
    if not has_stored_frames(source) or storage.scheme(path) is not None or not storage.exists(path):
        return None
    if not source.files.is_splittable(path):
        return None
    with storage.open_read(path) as file:
        file.seek(key.position)
        header = file.read(HEADER.size)
        length = int.from_bytes(header[:8], "little")
        if header != record_header(length) or length > MAX_RECORD_BYTES:
            return None
        start = key.position + HEADER.size
        if start + length > storage.size(path):
            return None
        try:
            features = parse_example(cast(bytes, _Window(file, start, length)))
            frames = {}
            for field in find_cameras(source.schema):
                feature = features.get(f"steps/{field.path}")
                if field.holds_image_files and feature is not None and feature.kind == "bytes":
                    starts, stops = (np.array(places, np.int64) + start for places in feature.spans()[:2])
                    frames[field.path] = StoredFrames(path, starts, stops)
        except MalformedError:
            return None
    return frames


class _Window:
    """Part of a file as if it were `bytes`, read block by block; walking over a record skips its images."""

    def __init__(self, file: BinaryIO, start: int, length: int):
        self._file, self._start, self._length = file, start, length
        self._block = functools.lru_cache(maxsize=4)(self._read)

    def __len__(self) -> int:
        return self._length

    def _read(self, number: int) -> bytes:
        self._file.seek(self._start + number * _BLOCK)
        return self._file.read(_BLOCK)

    def __getitem__(self, index: int | slice) -> int | bytes:
        if isinstance(index, slice):
            start, stop, _ = index.indices(self._length)
            self._file.seek(self._start + start)
            return self._file.read(max(0, stop - start))
        number, offset = divmod(index, _BLOCK)
        return self._block(number)[offset]


def media_type(image: bytes) -> str | None:
    """The media type of an encoded image; None if browsers cannot show it."""
    for start, name in ((b"\xff\xd8\xff", "image/jpeg"), (b"\x89PNG\r\n\x1a\n", "image/png"), (b"BM", "image/bmp")):
        if image.startswith(start):
            return name
    return None
