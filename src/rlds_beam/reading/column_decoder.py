"""Converts a field's list of values in a record to a column, [T, *shape], by the schema."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from rlds_beam.encoding.example.reader import Feature
from rlds_beam.encoding.example.rows import list_kind
from rlds_beam.encoding.wire import MalformedError, OutOfRangeError, decode_varints
from rlds_beam.episodes.columns import exact_cast
from rlds_beam.episodes.episode import Column
from rlds_beam.episodes.schema import Field
from rlds_beam.errors import BadEpisode
from rlds_beam.images.encoded_images import StoredImages
from rlds_beam.typing import Array

MAX_EXPANDED = 1 << 28
"""The limit in bytes for decompressing one field of unknown shape, all steps together."""

_NOTHING = Feature(None)


class WrongValueError(ValueError):
    """A field's values do not match the schema."""


MISSING = WrongValueError("no such field")

Read: TypeAlias = "Column | int | WrongValueError | MalformedError | None"
"""A column of a record; its length, if TFDS decodes it; None if a dimension of 0 leaves the length open; or what is
wrong with it: `MISSING` if there is none."""


class ColumnReader:
    """Reads a field's values from records. Picklable.

    Attributes:
      field: the field.
      name: its key in the tf.Example.
    """

    def __init__(self, field: Field, name: str, episode_level: bool = False):
        self.field, self.name, self._kind = field, name, list_kind(field)
        self._one_of_any_length = episode_level and None in field.shape
        numbers = self._kind != "bytes" and field.dtype not in ("float16", "bfloat16", "float64")
        self._together = numbers and field.fast and 0 not in field.shape and not self._one_of_any_length

    def read_all(self, records: Sequence[Mapping[str, Feature]]) -> Sequence[Read]:
        """The values in each record, or what is wrong with them; the numbers of all records are decoded at once."""
        if self._together and len(records) > 1:
            try:
                return self._numbers([record.get(self.name, _NOTHING) for record in records])
            except (WrongValueError, MalformedError):
                pass  # one by one shows which
        read = self._read if self.field.fast else self._slow_length
        columns: list[Read] = []
        for record in records:
            try:
                columns.append(read(record))
            except (WrongValueError, MalformedError) as error:
                columns.append(error)
        return columns

    def check(self, record: Mapping[str, Feature]) -> WrongValueError | MalformedError | None:
        """What is wrong if a record does not have the field as the right kind of list."""
        try:
            return MISSING if self._feature(record) is None else None
        except (WrongValueError, MalformedError) as error:
            return error

    def is_stored(self, record: Mapping[str, Feature]) -> bool:
        """Whether a record has a field that TFDS decodes, in one or several entries."""
        return self.name in record or any(key.startswith(self.name + "/") for key in record)

    def _feature(self, record: Mapping[str, Feature]) -> Feature | None:
        feature, field = record.get(self.name, _NOTHING), self.field
        if feature.kind is None:
            return None
        if feature.kind != self._kind:
            feature.check()
            raise WrongValueError(
                f"a {feature.kind} list, but {field.dtype} ({field.encoding}) is stored in a {self._kind} list"
            )
        return feature

    def _read(self, record: Mapping[str, Feature]) -> Read:
        field, feature = self.field, self._feature(record)
        if feature is None:
            return MISSING
        if field.holds_image_files:
            return StoredImages.in_record(feature.data, feature.spans, field.shape, field.dtype, field.encoding)
        if field.encoding in ("bytes", "zlib"):
            return self._tensors(feature.strings())
        values = self._values(feature)
        size = field.known_size
        if len(values) % size if size else len(values):
            raise WrongValueError(f"{len(values)} values are not a multiple of {size}, the size of shape {field.shape}")
        if self._one_of_any_length:
            return _objects([values.reshape(tuple(-1 if d is None else d for d in field.shape))])
        return values.reshape(-1, *field.shape) if 0 not in field.shape else None

    def _values(self, feature: Feature) -> Array:
        """The flat list of an unencoded field in its dtype."""
        field = self.field
        if self._kind == "bytes":
            return _objects(feature.strings())
        if self._kind == "float":
            return feature.floats() if field.dtype == "float32" else _exactly(feature.floats(), field)
        try:
            return feature.ints(field.numpy_dtype)
        except OutOfRangeError as error:
            step = error.place // max(1, field.known_size)
            raise WrongValueError(f"{error.value} at step {step}, but the schema says {field.dtype}") from None

    def _numbers(self, features: Sequence[Feature]) -> Sequence[Array]:
        """The numbers of several records: views of one array.

        Raises:
          WrongValueError, MalformedError: something is wrong in one of the records, or an integer takes several bytes.
        """
        field, kind = self.field, self._kind
        for feature in features:
            if feature.kind != kind:
                raise WrongValueError(f"a {feature.kind} list")
        parts = [
            feature.data[feature.first : feature.end] if feature.first else feature.numbers() for feature in features
        ]
        joined = b"".join(parts)
        width, size = (4 if kind == "float" else 1), field.known_size
        sizes = [*map(len, parts)]
        if (kind == "int64" and not joined.isascii()) or any(count % (width * size) for count in {*sizes}):
            raise WrongValueError("integers of several bytes, or not whole steps")
        values: Array = np.frombuffer(joined, "<f4") if kind == "float" else decode_varints(joined, field.numpy_dtype)
        if len({*sizes}) == 1:
            return [*values.reshape(len(parts), sizes[0] // width // size, *field.closed_shape)]
        values = values.reshape(-1, *field.closed_shape)
        ends = [end // width // size for end in itertools.accumulate(sizes, initial=0)]
        return [values[start:end] for start, end in itertools.pairwise(ends)]

    def _tensors(self, values: list[bytes]) -> Column:
        """Tensors stored as one byte string per step, plain or zlib."""
        field = self.field
        known, varies = field.known_size * field.numpy_dtype.itemsize, None in field.shape
        if field.encoding == "zlib":
            left = MAX_EXPANDED
            for step, value in enumerate(values):
                values[step] = _expand(value, left if varies else known, step)
                left -= len(values[step])
        for step, value in enumerate(values):
            if len(value) != known and (not varies or known == 0 or len(value) % known):
                raise WrongValueError(
                    f"{len(value)} bytes at step {step}, but shape {field.shape} of {field.dtype} has {known}"
                )
        if varies:
            shape = tuple(-1 if d is None else d for d in field.shape)
            return _objects([_from_bytes(field, value).reshape(shape) for value in values])
        return _from_bytes(field, b"".join(values)).reshape(len(values), *field.shape)

    def _slow_length(self, record: Mapping[str, Feature]) -> Read:
        """The number of steps of a field that TFDS decodes, from its stored form."""
        if not self.is_stored(record):
            return MISSING
        rows = record.get(f"{self.name}/ragged_row_lengths_0")
        if rows is not None:
            if rows.kind != "int64":
                raise WrongValueError(f"its row lengths are a {rows.kind} list, not an int64 list")
            return len(rows.ints())
        values = record.get(f"{self.name}/value", record.get(self.name))
        if values is None or values.kind != "bytes":
            raise WrongValueError(f"{self.name} is not stored as TFDS stores a {self.field.feature}")
        return len(values.strings())


def _exactly(values: Array, field: Field) -> Array:
    try:
        return exact_cast(values, field.numpy_dtype, field.path)
    except BadEpisode as bad:
        raise WrongValueError(bad.violations[0].detail) from None


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
