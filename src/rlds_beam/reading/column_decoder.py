"""Converts a field's list of values in a record to a column, [T, *shape], by the schema."""

from __future__ import annotations

import contextlib
import functools
import itertools
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from rlds_beam.encoding.example.reader import Feature
from rlds_beam.encoding.wire import MalformedError, OutOfRangeError, decode_varints
from rlds_beam.episodes.columns import exact_cast
from rlds_beam.episodes.episode import Column
from rlds_beam.episodes.schema import Field
from rlds_beam.errors import BadEpisode
from rlds_beam.images.encoded_images import StoredImages
from rlds_beam.typing import Array

MAX_EXPANDED = 1 << 28
"""The limit in bytes for decompressing one field of unknown shape, all steps together."""

_FLOATS = ("float16", "bfloat16", "float32", "float64")


class WrongValueError(ValueError):
    """A field's values do not match the schema."""


class ColumnReader:
    """Reads a field's values from records. Picklable."""

    def __init__(self, field: Field, episode_level: bool = False):
        self._field = field
        self._read = _reader(field, episode_level)
        numbers = field.encoding == "none" and field.dtype not in ("string", "float16", "bfloat16", "float64")
        self._together = numbers and 0 not in field.shape and not (episode_level and None in field.shape)

    def read(self, feature: Feature) -> Column | None:
        """The values in one record, [T, *shape]; None if a dimension of 0 leaves T open.

        Raises:
          WrongValueError: the values do not match the schema.
          MalformedError: they are not a list.
        """
        return self._read(feature)

    def read_all(self, features: Sequence[Feature]) -> list[Column | WrongValueError | MalformedError | None]:
        """The values in several records, or the error of each; numbers of all records are decoded at once."""
        if self._together and len(features) > 1:
            with contextlib.suppress(WrongValueError, MalformedError):  # then one by one
                return [*_numbers(self._field, features)]
        return [self._attempt(feature) for feature in features]

    def _attempt(self, feature: Feature) -> Column | WrongValueError | MalformedError | None:
        try:
            return self._read(feature)
        except (WrongValueError, MalformedError) as error:
            return error


def _reader(field: Field, episode_level: bool) -> Callable[[Feature], Column | None]:
    if field.holds_image_files:
        return functools.partial(_images, field)
    if field.encoding in ("bytes", "zlib"):
        return functools.partial(_encode, field)
    values = _strings if field.dtype == "string" else _floats if field.dtype in _FLOATS else _integers
    if episode_level and None in field.shape:
        return functools.partial(_open_value, values, field)
    if 0 in field.shape:
        return functools.partial(_no_values, values, field)
    return functools.partial(_rows, values, field) if field.shape else functools.partial(values, field)


_Values: TypeAlias = "Callable[[Field, Feature], Array]"
"""Reads the flat list of an unencoded field in its dtype."""


def _numbers(field: Field, features: Sequence[Feature]) -> Iterable[Array]:
    """The numbers of several records: views of one array.

    Raises:
      WrongValueError, MalformedError: something is wrong in one of the records, or an integer takes several bytes.
    """
    kind = "float" if field.dtype == "float32" else "int64"
    for feature in features:
        if feature.kind != kind:
            raise WrongValueError(f"a {feature.kind} list")
    parts = [feature.data[feature.first : feature.end] if feature.first else feature.numbers() for feature in features]
    joined = b"".join(parts)
    width, size = (4 if kind == "float" else 1), field.known_size
    sizes = [*map(len, parts)]
    if (kind == "int64" and not joined.isascii()) or any(count % (width * size) for count in {*sizes}):
        raise WrongValueError("integers of several bytes, or not whole steps")
    values: Array = np.frombuffer(joined, "<f4") if kind == "float" else decode_varints(joined, field.numpy_dtype)
    values = values.reshape(-1, *field.closed_shape)
    if len({*sizes}) == 1:
        return values.reshape(len(parts), sizes[0] // width // size, *field.closed_shape)
    ends = [*itertools.accumulate(sizes)]
    return [
        values[(end - count) // width // size : end // width // size] for count, end in zip(sizes, ends, strict=True)
    ]


def _images(field: Field, feature: Feature) -> Column:
    check_kind(field, feature, "bytes")
    return StoredImages.in_record(feature.data, feature.spans, field.shape, field.dtype, field.encoding)


def _rows(values: _Values, field: Field, feature: Feature) -> Column:
    array = values(field, feature)
    _check_count(field, len(array))
    return array.reshape(-1, *field.shape)


def _open_value(values: _Values, field: Field, feature: Feature) -> Column:
    """The single value of an episode; its length determines its shape."""
    array = values(field, feature)
    _check_count(field, len(array))
    return _objects([array.reshape(tuple(-1 if d is None else d for d in field.shape))])


def _no_values(values: _Values, field: Field, feature: Feature) -> None:
    array = values(field, feature)
    if len(array):
        raise WrongValueError(f"{len(array)} values for shape {field.shape}")


def _check_count(field: Field, count: int) -> None:
    size = field.known_size
    if count % size if size else count:
        raise WrongValueError(f"{count} values are not a multiple of {size}, the size of shape {field.shape}")


def _floats(field: Field, feature: Feature) -> Array:
    check_kind(field, feature, "float")
    values = feature.floats()
    return values if field.dtype == "float32" else _exactly(values, field)


def _integers(field: Field, feature: Feature) -> Array:
    check_kind(field, feature, "int64")
    try:
        return feature.ints(field.numpy_dtype)
    except OutOfRangeError as error:
        step = error.place // max(1, field.known_size)
        raise WrongValueError(f"{error.value} at step {step}, but the schema says {field.dtype}") from None


def _strings(field: Field, feature: Feature) -> Array:
    check_kind(field, feature, "bytes")
    return _objects(feature.strings())


def _exactly(values: Array, field: Field) -> Array:
    try:
        return exact_cast(values, field.numpy_dtype, field.path)
    except BadEpisode as bad:
        raise WrongValueError(bad.violations[0].detail) from None


def check_kind(field: Field, feature: Feature, kind: str) -> None:
    """Raises WrongValueError if the field's values are in another kind of list."""
    if feature.kind != kind:
        feature.check()
        raise WrongValueError(f"a {feature.kind} list, but {field.dtype} ({field.encoding}) is stored in a {kind} list")


def _encode(field: Field, feature: Feature) -> Column:
    """Tensors stored as one byte string per step, plain or zlib."""
    values = _strings(field, feature)
    known = field.known_size * field.numpy_dtype.itemsize
    if field.encoding == "zlib":
        expanded, left = [], MAX_EXPANDED
        for step, value in enumerate(values):
            expanded.append(_expand(value, left if None in field.shape else known, step))
            left -= len(expanded[-1])
        values = _objects(expanded)
    for step, value in enumerate(values):
        size = len(value)
        if size != known and (None not in field.shape or known == 0 or size % known):
            raise WrongValueError(f"{size} bytes at step {step}, but shape {field.shape} of {field.dtype} has {known}")
    if None in field.shape:
        shape = tuple(-1 if d is None else d for d in field.shape)
        return _objects([_from_bytes(field, value).reshape(shape) for value in values])
    return _from_bytes(field, b"".join(values)).reshape(len(values), *field.shape)


def _from_bytes(field: Field, data: bytes) -> Array:
    if field.dtype == "bool":
        return _exactly(np.frombuffer(data, np.uint8), field)
    return np.frombuffer(data, field.numpy_dtype)


def _expand(value: bytes, limit: int, step: int) -> bytes:
    """Decompresses zlib into at most `limit` bytes of memory (plus one, to detect more)."""
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(value, limit + 1)
    except zlib.error as error:
        raise WrongValueError(f"the zlib stream at step {step} is broken: {error}") from None
    if len(data) > limit or not stream.eof:
        raise WrongValueError(f"the zlib stream at step {step} is longer than the {limit} bytes of its shape")
    return data


def _objects(values: list[Any]) -> Array:
    """An object array [T], one object per step."""
    return np.fromiter(values, object, len(values))
