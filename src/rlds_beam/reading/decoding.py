"""One record's bytes as an Episode, by the dataset's schema."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.episodes.images import EncodedImages
from rlds_beam.episodes.keys import EpisodeKey
from rlds_beam.episodes.schema import Field, Schema
from rlds_beam.episodes.stored_images import StoredImages
from rlds_beam.episodes.violations import BadEpisode, Violation
from rlds_beam.formats.example import Array, Feature, not_an_example, parse_example
from rlds_beam.formats.features import Json
from rlds_beam.formats.tfds_decoder import NotDecodableError, TfdsDecoder
from rlds_beam.formats.wire import MalformedError

MAX_EXPANDED = 1 << 28
"""Bytes that the compressed values of one field of unknown shape may expand to, all steps together."""

_IMAGES = ("png", "jpeg")


class EpisodeDecoder:
    """Serialised tf.Example -> `Episode`, for all records of one dataset. Can be pickled.

    A column is [T, *shape] of the declared dtype. Text and strings are object arrays of `bytes`,
    images are `EncodedImages`. Where the schema leaves a dimension open, the column is an object
    array [T] of arrays (ragged inner sequences: of object arrays again). Fields that are not
    `Field.fast` are decoded by TFDS, which imports TensorFlow; all others by numpy alone.
    A dataset without `discount` gets 1.0 at every step.
    """

    def __init__(self, schema: Schema, features: str | bytes | Json | None = None):
        """
        Args:
          schema: what `parse_features` made of the dataset's features.json.
          features: that features.json; needed unless `schema.fast`.
        """
        self.schema = schema
        self._slow: TfdsDecoder | None = None
        self._decoded = {f"steps/{field.path}" for field in schema.steps.values() if field.fast}
        self._decoded |= {field.path for field in schema.metadata.values() if field.fast}
        if not schema.fast:
            if features is None:
                raise ValueError(f"{schema.slow_reason}: decoding it needs the features.json")
            self._slow = TfdsDecoder(schema, features)

    def decode(self, payload: bytes, key: EpisodeKey) -> Episode:
        """The episode in one record.

        Raises:
          BadEpisode: with every violation found: not_an_example, missing_field, unequal_lengths,
            wrong_dtype_or_shape. Nothing else, whatever the bytes are.
        """
        found = _Found()
        try:
            record = parse_example(payload)
            if not any(name.startswith("steps/") for name in record):
                raise MalformedError(f"it has no steps, only {sorted(record)[:5]}")
            for field in self.schema.steps.values():
                found.add_step_field(field, record)
            length = found.length()
            metadata = {f.path: found.value(f, record) for f in self.schema.metadata.values() if f.fast}
            if not self._decoded.issuperset(record):
                for name in record.keys() - self._decoded:
                    record[name].check()
        except MalformedError as error:
            raise not_an_example(error) from None
        for field in (f for f in self.schema.metadata.values() if not f.fast):
            found.stored(field, field.path, record)
        if found.violations:
            raise BadEpisode(*found.violations)
        columns = dict(found.columns)
        if self._slow is not None:
            try:
                slow, slow_metadata = self._slow.decode(payload)
            except NotDecodableError as error:
                raise BadEpisode(Violation("wrong_dtype_or_shape", f"TFDS cannot decode it: {error}")) from None
            columns |= slow
            metadata |= slow_metadata
        steps = {path: _filled(columns.get(path), field, length) for path, field in self.schema.steps.items()}
        return Episode(key=key, steps=steps, metadata=metadata, payload=payload)


class _Found:
    """What a record holds, and what is wrong with it."""

    def __init__(self) -> None:
        self.columns: dict[str, Column] = {}
        self.lengths: dict[str, int] = {}
        self.violations: list[Violation] = []

    def add_step_field(self, field: Field, record: Mapping[str, Feature]) -> None:
        name = f"steps/{field.path}"
        if not self.stored(field, name, record):
            return
        try:
            if not field.fast:
                self.lengths[field.path] = _slow_length(name, field, record)
                return
            column = _column(field, record[name])
        except _WrongValueError as error:
            self.violations.append(Violation("wrong_dtype_or_shape", str(error), field.path))
            return
        if column is not None:
            self.columns[field.path] = column
            self.lengths[field.path] = len(column)

    def stored(self, field: Field, name: str, record: Mapping[str, Feature]) -> bool:
        """True if the record has the field; a violation if it should have."""
        if field.fast:
            feature = record.get(name)
            if feature is not None and feature.kind is not None:
                return True
        elif name in record or any(key.startswith(name + "/") for key in record):
            return True
        if not field.optional:
            self.violations.append(Violation("missing_field", f"the record has no {name}", field.path))
        return False

    def length(self) -> int:
        """T: what the step fields agree on."""
        if not self.lengths:
            return 0
        if len({*self.lengths.values()}) == 1:
            return next(iter(self.lengths.values()))
        common, votes = Counter(self.lengths.values()).most_common(1)[0]
        for path, length in self.lengths.items():
            if length != common:
                detail = f"{length} steps, where {votes} of {len(self.lengths)} fields have {common}"
                self.violations.append(Violation("unequal_lengths", detail, path))
        return common

    def value(self, field: Field, record: Mapping[str, Feature]) -> Any:
        """The value of an episode-level field: a numpy scalar or array, or `bytes`."""
        if not self.stored(field, field.path, record):
            return _default(field)
        try:
            column = _column(field, record[field.path], episode_level=True)
        except _WrongValueError as error:
            self.violations.append(Violation("wrong_dtype_or_shape", str(error), field.path))
            return None
        if column is None:
            return np.empty(field.closed_shape, field.numpy_dtype)
        if len(column) != 1:
            detail = f"{len(column)} values of shape {field.shape}, where an episode has one"
            self.violations.append(Violation("wrong_dtype_or_shape", detail, field.path))
            return None
        return column.data[0] if isinstance(column, EncodedImages) else column[0]


class _WrongValueError(ValueError):
    """A field's values are not what the schema says."""


def _column(field: Field, feature: Feature, episode_level: bool = False) -> Column | None:
    """The values of one field, [T, *shape]; None where a dimension of 0 leaves T open."""
    if field.encoding in _IMAGES:
        _check_kind(field, feature, "bytes")
        return StoredImages(feature.data, *feature.spans(), field.shape, field.dtype, field.encoding)
    if field.encoding in ("bytes", "zlib"):
        return _encoded(field, _strings(field, feature))
    values = _plain_values(field, feature)
    if episode_level and None in field.shape:
        shape = tuple(-1 if d is None else d for d in field.shape)
        _check_count(field, len(values))
        return _objects([values.reshape(shape)])
    if 0 in field.shape:
        if len(values):
            raise _WrongValueError(f"{len(values)} values for shape {field.shape}")
        return None
    _check_count(field, len(values))
    return values.reshape(-1, *field.shape)


def _check_count(field: Field, count: int) -> None:
    size = field.known_size
    if count % size if size else count:
        raise _WrongValueError(f"{count} values are not a multiple of {size}, the size of shape {field.shape}")


def _plain_values(field: Field, feature: Feature) -> Array:
    """The flat list of an unencoded field, in its dtype."""
    if field.dtype == "string":
        return _strings(field, feature)
    dtype = field.numpy_dtype
    if field.dtype in ("float16", "bfloat16", "float32", "float64"):
        _check_kind(field, feature, "float")
        return feature.floats().astype(dtype, copy=False)
    _check_kind(field, feature, "int64")
    return feature.ints(dtype)


def _strings(field: Field, feature: Feature) -> Array:
    _check_kind(field, feature, "bytes")
    return _objects(feature.strings())


def _check_kind(field: Field, feature: Feature, kind: str) -> None:
    if feature.kind != kind:
        feature.check()
        raise _WrongValueError(f"a {feature.kind} list, where {field.dtype} ({field.encoding}) stands in a {kind} list")


def _encoded(field: Field, values: Array) -> Column:
    """Tensors stored as one byte string a step, plain or zlib."""
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
            raise _WrongValueError(
                f"{size} bytes at step {step}, where shape {field.shape} of {field.dtype} has {known}"
            )
    if None in field.shape:
        shape = tuple(-1 if d is None else d for d in field.shape)
        return _objects([_from_bytes(field, value).reshape(shape) for value in values])
    return _from_bytes(field, b"".join(values)).reshape(len(values), *field.shape)


def _from_bytes(field: Field, data: bytes) -> Array:
    if field.dtype == "bool":
        return np.frombuffer(data, np.uint8).astype(bool)
    return np.frombuffer(data, field.numpy_dtype)


def _expand(value: bytes, limit: int, step: int) -> bytes:
    """zlib, but never more than `limit` bytes in memory (plus one, to see that there were more)."""
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(value, limit + 1)
    except zlib.error as error:
        raise _WrongValueError(f"the zlib stream at step {step} is broken: {error}") from None
    if len(data) > limit or not stream.eof:
        raise _WrongValueError(f"the zlib stream at step {step} does not end within the {limit} bytes of its shape")
    return data


def _slow_length(name: str, field: Field, record: Mapping[str, Feature]) -> int:
    """The number of steps of a field that TFDS will decode, from how TFDS stores it."""
    rows = record.get(f"{name}/ragged_row_lengths_0")
    if rows is not None:
        _check_rows(rows)
        return len(rows.ints())
    values = record.get(f"{name}/value", record.get(name))
    if values is None or values.kind != "bytes":
        raise _WrongValueError(f"{name} is not stored as TFDS stores a {field.feature}")
    return len(values.strings())


def _check_rows(rows: Feature) -> None:
    if rows.kind != "int64":
        raise _WrongValueError(f"its row lengths are a {rows.kind} list, not an int64 list")


def _filled(column: Column | None, field: Field, length: int) -> Column:
    """The column, or the default for one that has no values.

    That is a dimension of 0, or the one step field that may be missing: `DEFAULT_DISCOUNT`.
    """
    if column is not None:
        return column
    shape = (length, *field.closed_shape)
    return np.ones(shape, field.numpy_dtype) if field.optional else np.empty(shape, field.numpy_dtype)


def _default(field: Field) -> Any:
    """What TFDS gives for an optional value that a record leaves out: the lowest of its dtype."""
    if field.dtype == "string":
        return b"" if not field.shape else np.full(field.closed_shape, b"", object)
    dtype = field.numpy_dtype
    if dtype.kind in "iu":
        lowest: Any = np.iinfo(dtype).min
    elif dtype.kind == "b":
        lowest = False
    else:
        lowest = -float(np.finfo(np.float32 if field.dtype == "bfloat16" else dtype).max)
    return np.full(field.closed_shape, lowest, dtype)[()]


def _objects(values: list[Any]) -> Array:
    """[T] of anything, one object a step."""
    return np.fromiter(values, object, len(values))
