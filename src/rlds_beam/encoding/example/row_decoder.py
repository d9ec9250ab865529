"""Decodes rows from tf.Examples: all at once if they have the same layout, otherwise one by one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlds_beam.encoding.example.reader import Feature, parse_example
from rlds_beam.encoding.example.rows import Bytes, is_fixed, list_kind, with_shape
from rlds_beam.encoding.wire import (
    MAX_VARINT_BYTES,
    MalformedError,
    are_fixed_varints,
    decode_fixed_varints,
    fitting,
    tag_and_length,
)
from rlds_beam.episodes.episode import Column
from rlds_beam.episodes.schema import Field
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.typing import Array


class RowDecoder:
    """Decodes the records of one dataset.

    Args:
      fields: the fields as stored (`rows.row_field`).
    """

    def __init__(self, fields: Iterable[Field]):
        self.fields = {field.path: field for field in fields}
        self._alike = all(
            is_fixed(f) and (list_kind(f) != "float" or f.dtype == "float32") for f in self.fields.values()
        )
        self._layout: _Layout | None = None

    def decode(self, payloads: Sequence[bytes], wanted: Iterable[str]) -> dict[str, Column]:
        """Decodes records to columns.

        Args:
          wanted: the paths of the columns.

        Returns:
          Arrays [k, ...]; images are `EncodedImages`; text, and values whose shapes vary, are object arrays.

        Raises:
          MalformedError: a record does not have these columns.
        """
        if self._alike and len({*map(len, payloads)}) == 1:
            return self.decode_rows(np.frombuffer(b"".join(payloads), np.uint8).reshape(len(payloads), -1), wanted)
        return self._decode_each(payloads, wanted)

    def decode_rows(self, rows: Bytes, wanted: Iterable[str]) -> dict[str, Column]:
        """Decodes records of equal length, uint8 [k, length], like `decode`."""
        layout = self._layout  # a local copy, since another thread may replace it
        matches = layout is not None and layout.matches(rows)
        if not matches and self._alike:
            layout = self._layout = _find_layout(rows[0].tobytes(), self.fields.values())
            matches = layout is not None and layout.matches(rows)
        if layout is None or not matches:
            return self._decode_each([row.tobytes() for row in rows], wanted)
        return {path: layout.values(rows, self.fields[path]) for path in wanted}

    def _decode_each(self, payloads: Sequence[bytes], wanted: Iterable[str]) -> dict[str, Column]:
        parsed = [parse_example(payload) for payload in payloads]
        return {
            path: _column(self.fields[path], [_value(self.fields[path], record) for record in parsed])
            for path in wanted
        }


def _value(field: Field, record: Mapping[str, Feature]) -> Any:
    """Decodes one value: an array, the bytes of a text, or a list of images."""
    path = f"{field.path}/value" if with_shape(field) else field.path
    feature = record.get(path, Feature(None))
    if feature.kind != list_kind(field):
        raise MalformedError(f"{path} is {'missing' if feature.kind is None else f'a list of {feature.kind}'}")
    if field.holds_image_files:
        return feature.strings()
    if field.dtype == "string":
        return _texts(field, feature.strings())
    if feature.kind == "bytes":
        raw = b"".join(feature.strings())
        if len(raw) % field.numpy_dtype.itemsize:
            raise MalformedError(f"{path} has {len(raw)} bytes, which are not a number of {field.dtype}")
        values = np.frombuffer(raw, field.numpy_dtype)
    else:
        values = feature.floats() if feature.kind == "float" else feature.ints(field.numpy_dtype)
    shape: Sequence[int] = [-1 if d is None else d for d in field.shape]
    if with_shape(field):
        shape = record.get(f"{field.path}/shape", Feature(None)).ints().tolist()
    elif 0 in shape:
        shape = [max(d, 0) for d in shape]
    try:
        return values.astype(field.numpy_dtype, copy=False).reshape(shape)
    except ValueError:
        raise MalformedError(f"{path} has {len(values)} values, which do not fit shape {field.shape}") from None


def _texts(field: Field, texts: list[bytes]) -> Any:
    if not field.shape:
        if len(texts) != 1:
            raise MalformedError(f"{field.path} has {len(texts)} text values, but expected one")
        return texts[0]
    array = np.empty(len(texts), object)
    array[:] = texts
    return array.reshape([-1 if d is None else d for d in field.shape])


def _column(field: Field, values: list[Any]) -> Column:
    if field.holds_image_files:
        several = len(field.shape) == 4
        return EncodedImages(objects(values if several else [v[0] for v in values]), field.shape[-3:], field.dtype)
    if field.dtype == "string" and not field.shape:
        return objects(values)
    if None in field.shape:
        return objects(values)
    return np.stack(values) if values else np.empty((0, *field.closed_shape), field.numpy_dtype)


def objects(values: Sequence[Any]) -> Array:
    """An object array of arbitrary values."""
    array = np.empty(len(values), object)
    for i, value in enumerate(values):
        array[i] = value
    return array


class _Layout(NamedTuple):
    """A record, and where it has the values of each field, (start, stop) by path.

    Our records of equal length almost always have the same layout, with different values.
    """

    row: Bytes
    places: Mapping[str, tuple[int, int]]
    integers: Mapping[str, int]

    def matches(self, rows: Bytes) -> bool:
        """Whether records, uint8 [k, length], equal this one outside of the values."""
        if rows.shape[1] != len(self.row):
            return False
        bounds = [0, *itertools.chain(*sorted(self.places.values())), len(self.row)]
        return all(
            (rows[:, a:b] == self.row[a:b]).all() for a, b in zip(bounds[::2], bounds[1::2], strict=True)
        ) and all(are_fixed_varints(self._groups(rows, path)).all() for path in self.integers)

    def values(self, rows: Bytes, field: Field) -> Array:
        """Decodes a field of matching records, [k, *shape]."""
        if field.path in self.integers:
            values = fitting(decode_fixed_varints(self._groups(rows, field.path)), field.numpy_dtype)
        else:
            start, stop = self.places[field.path]
            values = np.ascontiguousarray(rows[:, start:stop]).view(field.numpy_dtype)
        return values.reshape(len(rows), *field.closed_shape)

    def _groups(self, rows: Bytes, path: str) -> Bytes:
        """The varints of a list of integers, all of the same width: [k, size, width]."""
        start, stop = self.places[path]
        return rows[:, start:stop].reshape(len(rows), self.integers[path], -1)


def _find_layout(payload: bytes, fields: Iterable[Field]) -> _Layout | None:
    """The layout of a record; None if rlds-beam would write it differently: each field one packed list, or string."""
    example, places, integers = parse_example(payload), {}, {}
    for field in fields:
        feature, size = example.get(field.path, Feature(None)), math.prod(field.closed_shape)
        if feature.kind != list_kind(field):
            return None
        of_integers = feature.kind == "int64"
        for width in range(1, MAX_VARINT_BYTES + 1) if of_integers else (field.numpy_dtype.itemsize,):
            start = feature.end - size * width
            if payload[feature.start : start] == tag_and_length(1, size * width):
                places[field.path] = start, feature.end
                break
        else:
            return None
        if of_integers:
            integers[field.path] = size
    return _Layout(np.frombuffer(payload, np.uint8), places, integers)
