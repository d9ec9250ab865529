"""Columns as Arrow arrays, for Parquet. Known dimensions become fixed-size lists, so every reader knows the shapes.

    (N, 3) float32       fixed_size_list<float>[3]
    (N, 4, 3) float32    fixed_size_list<fixed_size_list<float>[3]>[4]
    (N, ?, 3)            list<fixed_size_list<float>[3]>
    text                 string
    PNG, JPEG            binary

float16 and bfloat16 are stored as float32, which represents all their values and which every reader supports. The
metadata of each field holds the column's dtype, shape, encoding, and the names of its values under `rlds_beam`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from rlds_beam.encoding.example.row_decoder import objects
from rlds_beam.encoding.example.rows import decode_texts, encode_images
from rlds_beam.episodes.episode import Column
from rlds_beam.episodes.schema import Field
from rlds_beam.errors import BadEpisode, Violation
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.typing import Array

if TYPE_CHECKING:
    import pyarrow as pa

METADATA = b"rlds_beam"  # the key in the metadata of an Arrow field

_WIDER = {"float16": "float32", "bfloat16": "float32"}


def arrow_schema(fields: Sequence[Field]) -> pa.Schema:
    """The Arrow schema of a table with these columns, named by their paths."""
    import pyarrow as pa

    columns = []
    for field in fields:
        stored = {"dtype": field.dtype, "shape": list(field.shape), "encoding": field.encoding, **field.meaning_json()}
        metadata = {METADATA: json.dumps(stored).encode()}
        columns.append(pa.field(field.path, _arrow_type(field), nullable=False, metadata=metadata))
    return pa.schema(columns)


def _arrow_type(field: Field) -> pa.DataType:
    import pyarrow as pa

    if field.holds_image_files:
        kind, shape = pa.binary(), field.shape[:-3]
    elif field.dtype == "string":
        kind, shape = pa.string(), field.shape
    else:
        kind, shape = pa.from_numpy_dtype(np.dtype(_WIDER.get(field.dtype, field.dtype))), field.shape
    for size in reversed(shape):
        kind = pa.list_(pa.field("element", kind, nullable=False), size or -1)
    return kind


def to_arrow(field: Field, column: Column, rows: int) -> pa.Array:
    """Converts a column to an Arrow array.

    Raises:
      BadEpisode: a text value is not UTF-8.
      ValueError: the column does not match its field's dtype and shape.
    """
    import pyarrow as pa

    if len(column) != rows:
        raise ValueError(f"{field.path} has {len(column)} values, but there are {rows} rows")
    dims: tuple[int | None, ...] = field.shape
    if field.holds_image_files:
        dims = field.shape[:-3]
        flat = [image for images in encode_images(field, column) for image in images]
        return _nest(pa.array(flat, pa.binary()), _sizes(cast(EncodedImages, column).data, dims), field)
    if isinstance(column, EncodedImages):
        raise ValueError(f"{field.path} holds encoded images, but expected {field}")
    if field.dtype == "string":
        try:
            texts = [text.decode() for row in decode_texts(column, field.path) for text in row]
        except UnicodeDecodeError as error:
            detail = f"text is not UTF-8, as Parquet requires: {error}"
            raise BadEpisode(Violation("wrong_dtype_or_shape", detail, field.path)) from None
        return _nest(pa.array(texts, pa.string()), _sizes(column, dims), field)
    if column.dtype == object and None in dims:
        parts = [np.asarray(value) for value in column]
        for part in parts:
            _check_field(field, part.dtype, part.shape)
        flat_values = np.concatenate([part.ravel() for part in parts] or [np.empty(0, field.numpy_dtype)])
    else:
        _check_field(field, column.dtype, column.shape[1:])
        flat_values = np.ascontiguousarray(column).ravel()
    stored = flat_values.astype(_WIDER.get(field.dtype, field.dtype), copy=False)
    return _nest(pa.array(stored), _sizes(column, dims), field)


def _check_field(field: Field, dtype: Any, shape: tuple[int, ...]) -> None:
    same = len(shape) == len(field.shape) and all(a in (None, b) for a, b in zip(field.shape, shape, strict=True))
    if dtype != field.numpy_dtype or not same:
        raise ValueError(f"{field.path} is {dtype}{list(shape)}, but expected {field}")


def _sizes(column: Array, dims: Sequence[int | None]) -> list[Array]:
    """The length of each list, one array per level of nesting; empty arrays if all dimensions are known."""
    if all(dims):
        return [np.empty(0, np.int64)] * len(dims)
    if column.dtype == object and None in dims and column.ndim == 1:  # each row has its own shape
        shapes = np.array([np.shape(value) for value in column], np.int64).reshape(len(column), len(dims))
    else:
        shapes = np.tile(np.array(np.shape(column)[1 : 1 + len(dims)], np.int64), (len(column), 1))
    sizes, repeats = [], np.ones(len(column), np.int64)
    for level in range(len(dims)):
        sizes.append(np.repeat(shapes[:, level], repeats))
        repeats = repeats * shapes[:, level]
    return sizes


def _nest(values: pa.Array, sizes: list[Array], field: Field) -> pa.Array:
    """Wraps flat values into lists, innermost dimension first."""
    import pyarrow as pa

    kind, kinds = _arrow_type(field), []
    for _ in sizes:
        kinds.append(kind)
        kind = kind.value_type
    for kind, lengths in zip(reversed(kinds), reversed(sizes), strict=True):
        if pa.types.is_fixed_size_list(kind):
            values = pa.FixedSizeListArray.from_arrays(values, type=kind)
        else:
            offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
            values = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, type=kind)
    return values


def from_arrow(field: Field, array: pa.Array) -> Column:
    """The inverse of `to_arrow`; text is bytes."""
    if None in (field.shape[:-3] if field.holds_image_files else field.shape):
        column = objects([_read_rows(field, array.slice(row, 1))[0] for row in range(len(array))])
    else:
        column = _read_rows(field, array)
    return EncodedImages(column, field.shape[-3:], field.dtype) if field.holds_image_files else column


def _read_rows(field: Field, array: pa.Array) -> Array:
    """The values of rows of one shape."""
    flat, shape = flatten_lists(array)
    if field.holds_image_files or field.dtype == "string":
        return objects([v if isinstance(v, bytes) else v.encode() for v in flat.to_pylist()]).reshape(shape)
    values: Array = flat.to_numpy(zero_copy_only=False).astype(field.numpy_dtype, copy=False)
    return values.reshape(shape)


def ipc_bytes(table: pa.Table) -> bytes:
    """A table as an Arrow stream, with a batch for all of its rows."""
    import pyarrow as pa

    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return sink.getvalue()


def flatten_lists(column: Any) -> tuple[Any, tuple[int, ...]]:
    """Flattens nested lists into one Arrow array; also returns their shape, (rows, ...).

    Raises:
      ValueError: a value or list is missing, or lists of a level differ in length.
    """
    import pyarrow as pa

    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    shape = [len(array)]
    while isinstance(array, (pa.ListArray, pa.LargeListArray, pa.FixedSizeListArray)):
        _check_complete(array)
        if isinstance(array, pa.FixedSizeListArray):
            shape.append(array.type.list_size)
        else:
            lengths = np.unique(array.value_lengths().to_numpy())
            if len(lengths) > 1:
                raise ValueError(f"lists have {lengths[0]} and {lengths[1]} values, but must be of equal length")
            shape.append(int(lengths[0]) if len(lengths) else 0)
        array = array.flatten()
    _check_complete(array)
    return array, tuple(shape)


def numbers(column: Any) -> Array:
    """Converts numbers to [rows, ...]. Raises ValueError as `flatten_lists`, and for values that are not numbers."""
    import pyarrow as pa

    array, shape = flatten_lists(column)
    kind = array.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise ValueError(f"{kind} values, but expected numbers")
    values: Array = array.to_numpy(zero_copy_only=False)
    return values.reshape(shape)


def texts(column: Any) -> list[bytes]:
    """Converts text to a flat list. Raises ValueError as `flatten_lists`, and for values that are not text."""
    import pyarrow as pa

    array, _ = flatten_lists(column)
    if not (pa.types.is_string(array.type) or pa.types.is_large_string(array.type)):
        raise ValueError(f"{array.type} values, but expected text")
    return [text.encode() for text in array.to_pylist()]


def _check_complete(array: Any) -> None:
    if array.null_count:
        raise ValueError(f"{array.null_count} values are missing")
