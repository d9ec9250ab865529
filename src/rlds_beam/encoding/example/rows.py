"""Encodes rows as tf.Examples, column by column (see `layout`)."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np

from rlds_beam.encoding.example.layout import IMAGES, is_fixed, kind_of, row_field, with_shape
from rlds_beam.encoding.example.templates import (
    BYTES_LIST,
    FLOAT_LIST,
    INT64_LIST,
    Array,
    Bytes,
    Room,
    bytes_entry,
    entry,
    examples_of,
    template_of,
)
from rlds_beam.encoding.tfrecord.writing import frame
from rlds_beam.encoding.wire import delimited, fixed_varints, packed_varints, varint_width
from rlds_beam.episodes.columns import text_bytes
from rlds_beam.episodes.episode import Column
from rlds_beam.episodes.schema import Field
from rlds_beam.images.encoded_images import ZERO_IMAGE, EncodedImages
from rlds_beam.images.encoding import encode_jpeg
from rlds_beam.images.headers import read_image_header

_LISTS = {"bytes": BYTES_LIST, "float": FLOAT_LIST, "int64": INT64_LIST}


class RowEncoder:
    """Encodes rows as tf.Examples.

    Args:
      fields: the fields of one row.

    Attributes:
      fields: the fields as stored, for features.json.
    """

    def __init__(self, fields: Sequence[Field]):
        self.fields = tuple(map(row_field, fields))
        self._fixed = [field for field in self.fields if is_fixed(field)]
        self._varying = [field for field in self.fields if not is_fixed(field)]
        self._room: Room | None = None

    def framed(self, columns: Mapping[str, Column], rows: int) -> Iterator[tuple[memoryview | bytes, int]]:
        """Encodes rows as TFRecord records: yields buffers, each with its number of records.

        Each buffer is valid until the next one is taken. All errors are raised before the first buffer.

        Raises:
          BadEpisode: a row takes 2 GiB or more.
          ValueError: a column does not match its field's dtype and shape.
        """
        if not rows:
            return iter(())
        if not self._varying:
            blocks = self._blocks(columns, rows, whole=True)
            return ((room.records.finish(count).reshape(-1).data, count) for room, count in blocks)
        return ((frame(payload), 1) for payload in self.payloads(columns, rows))

    def payloads(self, columns: Mapping[str, Column], rows: int) -> Iterator[bytes]:
        """Encodes rows as tf.Examples. Raises the same errors as `framed`."""
        if not rows:
            return iter(())
        if not self._varying:
            blocks = self._blocks(columns, rows, whole=True)
            return (row.tobytes() for room, count in blocks for row in room.records.payload[:count])
        entries = [_entries(field, columns[field.path], rows) for field in self._varying]
        fixed = [b""] * rows
        if self._fixed:
            blocks = self._blocks(columns, rows, whole=False)
            fixed = [row.tobytes() for room, count in blocks for row in room.records.payload[:count]]
        return examples_of([fixed, *entries])

    def _blocks(self, columns: Mapping[str, Column], rows: int, *, whole: bool) -> Iterator[tuple[Room, int]]:
        """Fills blocks with the fixed columns of all rows; yields the same room each time, with the rows filled."""
        sources = [_source(field, columns[field.path], rows) for field in self._fixed]
        holes = tuple(
            (field.path, _LISTS[kind_of(field)], source.shape[1])
            for field, source in zip(self._fixed, sources, strict=True)
        )
        template = template_of(holes, whole)
        if self._room is None or self._room.template is not template:
            self._room = Room.of(template)
        return _filled(self._room, sources, rows)


def _filled(room: Room, sources: Sequence[Bytes], rows: int) -> Iterator[tuple[Room, int]]:
    step = len(room.records.payload)
    values = [source.view((np.void, source.shape[1]))[:, 0] for source in sources]
    for first in range(0, rows, step):
        count = min(step, rows - first)
        for hole, source in zip(room.holes, values, strict=True):
            hole[:count] = source[first : first + count]
        yield room, count


def _source(field: Field, column: Column, rows: int) -> Bytes:
    """The bytes of a fixed column as stored in records, [rows, bytes]."""
    values = cast(Array, column)
    if isinstance(column, EncodedImages) or (values.dtype, values.shape) != (field.numpy_dtype, (rows, *field.shape)):
        got = "encoded images" if isinstance(column, EncodedImages) else f"{values.dtype.name}{list(values.shape)}"
        raise ValueError(f"{field.path} is {got}, but expected {rows} rows of {field.dtype}{list(field.shape)}")
    if kind_of(field) == "int64":
        # All as wide as the widest, so that the records of an episode have equal sizes whatever the values.
        numbers = values.astype(np.int64 if field.dtype != "uint64" else np.uint64, copy=False).view(np.uint64)
        return fixed_varints(numbers, varint_width(int(numbers.max()))).reshape(rows, -1)
    return np.ascontiguousarray(values).reshape(rows, -1).view(np.uint8)


def _entries(field: Field, column: Column, rows: int) -> list[bytes]:
    """Encodes a column of values of varying size, one entry per row."""
    if len(column) != rows:
        raise ValueError(f"{field.path} has {len(column)} values, but there are {rows} rows")
    if field.encoding in IMAGES:
        return [bytes_entry(field.path, images) for images in images_of(field, column)]
    if field.dtype == "string":
        return [bytes_entry(field.path, texts) for texts in texts_of(cast(Array, column), field.path)]
    return [_entry(field, np.asarray(value)) for value in cast(Array, column)]


def _entry(field: Field, value: Array) -> bytes:
    known = len(value.shape) == len(field.shape) and all(
        a in (None, b) for a, b in zip(field.shape, value.shape, strict=True)
    )
    if value.dtype != field.numpy_dtype or not known:
        raise ValueError(f"{field.path} is {value.dtype.name}{list(value.shape)}, but expected {field}")
    path = f"{field.path}/value" if with_shape(field) else field.path
    if kind_of(field) == "bytes":
        encoded = bytes_entry(path, [np.ascontiguousarray(value).tobytes()])
    elif kind_of(field) == "float":
        encoded = entry(path, FLOAT_LIST, delimited(1, np.ascontiguousarray(value, "<f4").tobytes()))
    else:
        encoded = entry(path, INT64_LIST, delimited(1, packed_varints(value.astype(np.int64).ravel())))
    if with_shape(field):
        shape = packed_varints(np.array(value.shape, np.int64))
        encoded += entry(f"{field.path}/shape", INT64_LIST, delimited(1, shape))
    return encoded


def texts_of(column: Array, path: str) -> Iterator[list[bytes]]:
    """The text values of each row, as bytes. Raises BadEpisode if a value is not text."""
    for row in column:
        texts: list[Any] = [row] if isinstance(row, (str, bytes)) else np.asarray(row, object).ravel().tolist()
        yield [text_bytes(text, path) for text in texts]


def images_of(field: Field, column: Column) -> Iterator[list[bytes]]:
    """The encoded images of each row; `ZERO_IMAGE` is replaced by an encoded image of zeros."""
    if not isinstance(column, EncodedImages):
        raise ValueError(f"{field.path} holds pixels, but expected {field.encoding} images")
    real = next((image for image in column.data.reshape(-1) if image != ZERO_IMAGE), None)
    size = (None, None) if real is None else read_image_header(real)
    height, width = (known or actual or 1 for known, actual in zip(field.shape[-3:-1], size, strict=True))
    for row in column.data:
        images = list(row) if isinstance(row, (np.ndarray, list, tuple)) else [row]
        yield [
            image if image != ZERO_IMAGE else zero_image(field.encoding, height, width, field.shape[-1], field.dtype)
            for image in images
        ]


@functools.cache
def zero_image(encoding: str, height: int, width: int, channels: int | None, dtype: str) -> bytes:
    """Encodes an image of zeros as PNG or JPEG."""
    zeros: Any = np.zeros((height, width, channels or 3), dtype)
    if encoding == "jpeg" and zeros.shape[-1] in (1, 3):
        return encode_jpeg(zeros[None])[0]
    import imagecodecs

    return bytes(imagecodecs.png_encode(zeros if zeros.shape[-1] > 1 else zeros[..., 0]))
