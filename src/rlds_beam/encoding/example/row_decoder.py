"""Decodes rows from tf.Examples: all at once if they have the same layout, otherwise one by one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlds_beam.encoding.example.reader import Feature, Kind, parse_example
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

    def __init__(self, fields: Sequence[Field]):
        self.fields = {field.path: field for field in fields}
        self._layouts = [
            FeatureLayout(f.path, list_kind(f), f.numpy_dtype, math.prod(d or 0 for d in f.shape)) for f in fields
        ]
        self._alike = all(is_fixed(f) and (list_kind(f) != "float" or f.dtype == "float32") for f in fields)
        self._match: Match | None = None

    def decode(self, payloads: Sequence[bytes], wanted: Sequence[str]) -> dict[str, Column]:
        """Decodes records to columns.

        Args:
          wanted: the paths of the columns.

        Returns:
          Arrays [k, ...]; images are `EncodedImages`; text, and values whose shapes vary, are object arrays.

        Raises:
          MalformedError: a record does not have these columns.
        """
        if self._alike and len({*map(len, payloads)}) == 1:
            rows = np.frombuffer(b"".join(payloads), np.uint8).reshape(len(payloads), -1)
            match = self._match  # a local copy, since another thread may replace it
            if match is None or match.count(rows) < len(rows):
                self._match = match = match_record(payloads[0], self._layouts)
            if match is not None and match.count(rows) == len(rows):
                values = match.decode(rows)
                return {path: values[path].reshape(len(rows), *self._shape(path)) for path in wanted}
        parsed = [parse_example(payload) for payload in payloads]
        return {
            path: _column(self.fields[path], [_value(self.fields[path], record) for record in parsed])
            for path in wanted
        }

    def _shape(self, path: str) -> tuple[int, ...]:
        return self.fields[path].closed_shape


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
        values = np.frombuffer(b"".join(feature.strings()), field.numpy_dtype)
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
