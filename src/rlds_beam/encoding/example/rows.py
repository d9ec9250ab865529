"""Encodes rows as tf.Examples, column by column: all at once, by filling the holes of a template.

Records whose values have equal sizes differ only in the bytes of the values. So a block of records is a uint8 matrix
whose rows are the template, and each feature is one strided copy into all rows.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from rlds_beam.encoding.example.reader import Kind
from rlds_beam.encoding.tfrecord.framing import FramedRows, frame
from rlds_beam.encoding.wire import (
    encode_delimited,
    fixed_varints,
    packed_varints,
    tag_and_length,
    text,
    varint_width,
)
from rlds_beam.episodes.columns import text_bytes
from rlds_beam.episodes.episode import Column
from rlds_beam.episodes.schema import Field
from rlds_beam.errors import BadEpisode, Violation
from rlds_beam.images.codecs import encode_zeros
from rlds_beam.images.encoded_images import ZERO_IMAGE, EncodedImages
from rlds_beam.images.headers import read_image_header
from rlds_beam.typing import Array

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

BLOCK_BYTES = 1 << 18
"""Bytes of records to fill and frame at a time; fits the second-level cache."""

RECORD_LIMIT = 1 << 31
"""Protobuf messages must be shorter."""

BYTES_LIST, FLOAT_LIST, INT64_LIST = 1, 2, 3
"""Field numbers of tf.train.Feature."""

_LISTS = {"bytes": BYTES_LIST, "float": FLOAT_LIST, "int64": INT64_LIST}

Holes = tuple[tuple[str, int, int], ...]
"""The path, Feature field, and size in bytes of each hole."""


class Template(NamedTuple):
    """A row with empty holes, and the offset and size of each hole."""

    row: Bytes
    places: tuple[tuple[int, int], ...]


class RecordBlock(NamedTuple):
    """A buffer for a block of records of one template, and a view of each hole: [rows] of `void`."""

    template: Template
    records: FramedRows
    holes: tuple[Array, ...]

    @classmethod
    def from_template(cls, template: Template) -> RecordBlock:
        records = FramedRows(max(1, BLOCK_BYTES // max(1, len(template.row))), len(template.row))
        records.payload[:] = template.row  # unchanged when the holes are filled
        holes = (records.payload[:, start : start + size].view((np.void, size)) for start, size in template.places)
        return cls(template, records, tuple(hole[:, 0] for hole in holes))


def make_template(holes: Holes, whole: bool) -> Template:
    """The template of Examples with these holes, or only of their entries if not `whole`.

    Raises:
      BadEpisode: a record would take 2 GiB or more.
    """
    # Episodes have many lengths: cache the templates of short items, but not of whole episodes of images.
    small = sum(size for _, _, size in holes) <= BLOCK_BYTES
    return _kept_template(holes, whole) if small else _new_template(holes, whole)


@functools.lru_cache(maxsize=256)
def _kept_template(holes: Holes, whole: bool) -> Template:
    return _new_template(holes, whole)


def entries_size(holes: Holes) -> int:
    """The bytes of the entries of an Example with these holes."""
    return sum(len(entry_head(*hole)) + hole[2] for hole in holes)


def _new_template(holes: Holes, whole: bool) -> Template:
    heads = [entry_head(*hole) for hole in holes]
    size = entries_size(holes)
    check_example(size)
    row = bytearray(tag_and_length(1, size) if whole else b"")
    places = []
    for head, (_, _, hole) in zip(heads, holes, strict=True):
        row += head
        places.append((len(row), hole))
        row += bytes(hole)
    return Template(np.frombuffer(bytes(row), np.uint8), tuple(places))


@functools.lru_cache(maxsize=1 << 14)
def entry_head(path: str, kind: int, size: int) -> bytes:
    """The bytes before the one value, of `size` bytes, of an entry of Features.feature; numbers are packed."""
    values = tag_and_length(1, size)
    feature = tag_and_length(kind, len(values) + size) + values
    value = tag_and_length(2, len(feature) + size) + feature
    key = text(1, path)
    return tag_and_length(1, len(key) + len(value) + size) + key + value


def entry(path: str, kind: int, values: bytes) -> bytes:
    """Encodes an entry of Features.feature; `values` is the content of the list `kind`."""
    return encode_delimited(1, text(1, path) + encode_delimited(2, encode_delimited(kind, values)))


def bytes_entry(path: str, values: Sequence[bytes | memoryview]) -> bytes:
    """Encodes an entry with a list of bytes."""
    if len(values) == 1:
        return b"".join((entry_head(path, BYTES_LIST, len(values[0])), values[0]))
    return entry(path, BYTES_LIST, b"".join(piece for v in values for piece in (tag_and_length(1, len(v)), v)))


def join_examples(columns: Sequence[Sequence[bytes | memoryview]]) -> Iterator[bytes]:
    """Joins entries to Examples; each column holds a piece of every Example.

    Examples are created lazily, since all of them would not fit in the cache.

    Raises:
      BadEpisode: an Example would take 2 GiB or more. Raised before the first one is created.
    """
    sizes = np.sum([np.fromiter(map(len, column), np.int64, len(column)) for column in columns], axis=0)
    check_example(int(sizes.max()))
    heads = [tag_and_length(1, size) for size in sizes.tolist()]
    return map(b"".join, zip(heads, *columns, strict=True))


def check_example(size: int) -> None:
    """Raises BadEpisode if an Example with entries of `size` bytes would take 2 GiB or more."""
    size += len(tag_and_length(1, size))
    if size >= RECORD_LIMIT:
        detail = f"an item takes {size} bytes, but a tf.Example must be smaller than 2 GiB: use shorter items"
        raise BadEpisode(Violation("too_long", detail))


_AS_INTEGERS = ("int64", "uint32", "uint64")
"""Stored as integer lists: TensorFlow cannot read bytes as unsigned 32- or 64-bit numbers."""


def row_field(field: Field) -> Field:
    """The field as stored: `encoding` is `none` (a list of values), `bytes`, `text`, `png`, or `jpeg`.

    Numbers of known shape become a float list (float32), an integer list (int64, uint32, uint64), or bytes. With one
    unknown dimension, uint32 becomes an integer list, and all others bytes. With two or more, TFDS also needs the
    shape: `path/shape`, `path/value`.
    """
    if field.holds_image_files:
        return Field(field.path, field.dtype, field.shape, field.encoding, "Image")
    if field.dtype == "string":
        return Field(field.path, "string", field.shape, "none" if field.shape else "text", "Tensor")
    unknown = field.shape.count(None)
    integers = field.dtype in _AS_INTEGERS and (not unknown or (field.dtype == "uint32" and unknown == 1))
    floats = field.dtype == "float32" and not unknown
    encoding = "none" if integers or floats else "bytes"
    stored = Field(field.path, field.dtype, field.shape, encoding)
    return stored.with_names(field.names).with_representation(field.representation)


def list_kind(field: Field) -> Kind:
    """The kind of list of a stored column."""
    if field.encoding == "none" and field.dtype != "string":
        return "float" if field.dtype.startswith(("float", "bfloat")) else "int64"
    return "bytes"


def is_fixed(field: Field) -> bool:
    """Whether all values of an episode take the same number of bytes."""
    return field.encoding in ("none", "bytes") and field.dtype != "string" and all(field.shape)


def with_shape(field: Field) -> bool:
    """Whether the shape of each value is stored next to it."""
    return field.encoding == "bytes" and field.shape.count(None) > 1


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
        self._room: RecordBlock | None = None

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

    def _blocks(self, columns: Mapping[str, Column], rows: int, *, whole: bool) -> Iterator[tuple[RecordBlock, int]]:
        """Fills blocks with the fixed columns of all rows; yields the same room each time, with the rows filled."""
        sources = [_source(field, columns[field.path], rows) for field in self._fixed]
        holes = tuple(
            (field.path, _LISTS[list_kind(field)], source.shape[1])
            for field, source in zip(self._fixed, sources, strict=True)
        )
        template = make_template(holes, whole)
        if self._room is None or self._room.template is not template:
            self._room = RecordBlock.from_template(template)
        return _fill(self._room, sources, rows)


def _fill(room: RecordBlock, sources: Sequence[Bytes], rows: int) -> Iterator[tuple[RecordBlock, int]]:
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
