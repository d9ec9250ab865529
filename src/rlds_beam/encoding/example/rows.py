"""Encodes rows as tf.Examples, column by column (see `templates`)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from rlds_beam.encoding.example.reader import Feature, Kind, parse_example
from rlds_beam.encoding.example.templates import (
    BYTES_LIST,
    FLOAT_LIST,
    INT64_LIST,
    Bytes,
    Room,
    bytes_entry,
    entry,
    is_fixed,
    join_examples,
    list_kind,
    make_template,
    row_field,
    with_shape,
)
from rlds_beam.encoding.tfrecord.rows import frame
from rlds_beam.encoding.wire import (
    MAX_VARINT_BYTES,
    are_fixed_varints,
    decode_fixed_varints,
    encode_delimited,
    fitting,
    fixed_varints,
    packed_varints,
    tag_and_length,
    varint_width,
)
from rlds_beam.episodes.columns import text_bytes
from rlds_beam.episodes.episode import Column
from rlds_beam.episodes.schema import Field
from rlds_beam.images.codecs import encode_zeros
from rlds_beam.images.encoded_images import ZERO_IMAGE, EncodedImages
from rlds_beam.images.headers import read_image_header
from rlds_beam.typing import Array

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

    def encode_framed(self, columns: Mapping[str, Column], rows: int) -> Iterator[tuple[memoryview | bytes, int]]:
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
        return join_examples([fixed, *entries])

    def _blocks(self, columns: Mapping[str, Column], rows: int, *, whole: bool) -> Iterator[tuple[Room, int]]:
        """Fills blocks with the fixed columns of all rows; yields the same room each time, with the rows filled."""
        sources = [_source(field, columns[field.path], rows) for field in self._fixed]
        holes = tuple(
            (field.path, _LISTS[list_kind(field)], source.shape[1])
            for field, source in zip(self._fixed, sources, strict=True)
        )
        template = make_template(holes, whole)
        if self._room is None or self._room.template is not template:
            self._room = Room.of(template)
        return _fill(self._room, sources, rows)


def _fill(room: Room, sources: Sequence[Bytes], rows: int) -> Iterator[tuple[Room, int]]:
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
    if list_kind(field) == "int64":
        # All as wide as the widest, so that the records of an episode have equal sizes whatever the values.
        numbers = values.astype(np.int64 if field.dtype != "uint64" else np.uint64, copy=False).view(np.uint64)
        return fixed_varints(numbers, varint_width(int(numbers.max()))).reshape(rows, -1)
    return np.ascontiguousarray(values).reshape(rows, -1).view(np.uint8)


def _entries(field: Field, column: Column, rows: int) -> list[bytes]:
    """Encodes a column of values of varying size, one entry per row."""
    if len(column) != rows:
        raise ValueError(f"{field.path} has {len(column)} values, but there are {rows} rows")
    if field.holds_image_files:
        return [bytes_entry(field.path, images) for images in encode_images(field, column)]
    if field.dtype == "string":
        return [bytes_entry(field.path, texts) for texts in decode_texts(cast(Array, column), field.path)]
    return [_entry(field, np.asarray(value)) for value in cast(Array, column)]


def _entry(field: Field, value: Array) -> bytes:
    known = len(value.shape) == len(field.shape) and all(
        a in (None, b) for a, b in zip(field.shape, value.shape, strict=True)
    )
    if value.dtype != field.numpy_dtype or not known:
        raise ValueError(f"{field.path} is {value.dtype.name}{list(value.shape)}, but expected {field}")
    path = f"{field.path}/value" if with_shape(field) else field.path
    if list_kind(field) == "bytes":
        encoded = bytes_entry(path, [np.ascontiguousarray(value).tobytes()])
    elif list_kind(field) == "float":
        encoded = entry(path, FLOAT_LIST, encode_delimited(1, np.ascontiguousarray(value, "<f4").tobytes()))
    else:
        encoded = entry(path, INT64_LIST, encode_delimited(1, packed_varints(value.astype(np.int64).ravel())))
    if with_shape(field):
        shape = packed_varints(np.array(value.shape, np.int64))
        encoded += entry(f"{field.path}/shape", INT64_LIST, encode_delimited(1, shape))
    return encoded


def decode_texts(column: Array, path: str) -> Iterator[list[bytes]]:
    """The text values of each row, as bytes. Raises BadEpisode if a value is not text."""
    for row in column:
        texts: list[Any] = [row] if isinstance(row, (str, bytes)) else np.asarray(row, object).ravel().tolist()
        yield [text_bytes(text, path) for text in texts]


def encode_images(field: Field, column: Column) -> Iterator[list[bytes]]:
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


def zero_image(encoding: str, height: int, width: int, channels: int | None, dtype: str) -> bytes:
    """Encodes an image of zeros as PNG or JPEG."""
    is_jpeg = encoding == "jpeg" and channels in (None, 1, 3)
    return encode_zeros((height, width, channels or 3), dtype, "jpeg" if is_jpeg else "png")


class FeatureLayout(NamedTuple):
    """The storage of a feature.

    Attributes:
      path: the name of the feature in the record.
      kind: the kind of its list.
      dtype: the dtype of the values; in a list of bytes, the dtype stored in the bytes.
      size: the number of values.
    """

    path: str
    kind: Kind
    dtype: np.dtype[Any]
    size: int


class _Place(NamedTuple):
    """The offsets of a feature's values in a record."""

    layout: FeatureLayout
    start: int
    stop: int

    def groups(self, rows: Bytes) -> Bytes:
        """The varints of an int64 list, all of the same width: [k, size, width]."""
        return rows[:, self.start : self.stop].reshape(len(rows), self.layout.size, -1)

    def values(self, rows: Bytes) -> Array:
        """Decodes the values, [k, size]."""
        if self.layout.kind == "int64":
            return fitting(decode_fixed_varints(self.groups(rows)), self.layout.dtype)
        return np.ascontiguousarray(rows[:, self.start : self.stop]).view(self.layout.dtype)


class Match(NamedTuple):
    """A record and the places of its values, in the order of the layouts."""

    row: Bytes
    places: tuple[_Place, ...]

    def count(self, rows: Bytes) -> int:
        """The number of leading rows that equal this record outside of the places."""
        if rows.shape[1] != len(self.row):
            return 0
        places = sorted((place.start, place.stop) for place in self.places)
        bounds = [0, *itertools.chain(*places), len(self.row)]
        same = [rows[:, a:b] == self.row[a:b] for a, b in zip(bounds[::2], bounds[1::2], strict=True)]
        same += [are_fixed_varints(place.groups(rows)) for place in self.places if place.layout.kind == "int64"]
        if all(part.all() for part in same):
            return len(rows)
        fits = np.logical_and.reduce([part.reshape(len(rows), -1).all(axis=1) for part in same])
        return int(np.argmin(fits))

    def decode(self, rows: Bytes) -> dict[str, Array]:
        """Decodes matching rows to values [k, size] by path."""
        return {place.layout.path: place.values(rows) for place in self.places}


def match_record(payload: bytes, layouts: Sequence[FeatureLayout]) -> Match | None:
    """Creates a match from a record; None if rlds-beam would write it differently."""
    example = parse_example(payload)
    places = [_place(example.get(layout.path, Feature(None)), payload, layout) for layout in layouts]
    matched = tuple(place for place in places if place is not None)
    return Match(np.frombuffer(payload, np.uint8), matched) if len(matched) == len(places) else None


def _place(feature: Feature, payload: bytes, layout: FeatureLayout) -> _Place | None:
    """Finds the one packed list (or one string) of a feature."""
    numbers = layout.kind == "int64"
    for width in range(1, MAX_VARINT_BYTES + 1) if numbers else (layout.dtype.itemsize,):
        start = feature.end - layout.size * width
        head = tag_and_length(1, layout.size * width)
        if feature.kind == layout.kind and feature.data is payload and payload[feature.start : start] == head:
            return _Place(layout, start, feature.end)
    return None
