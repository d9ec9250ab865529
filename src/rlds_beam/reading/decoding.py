"""Decodes a record's bytes into an Episode, by the dataset's schema."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np

from rlds_beam.encoding.example.reader import ExampleParser, Feature, not_an_example
from rlds_beam.encoding.example.rows import list_kind
from rlds_beam.encoding.tfds.decoder import NotDecodableError, TfdsDecoder
from rlds_beam.encoding.tfds.features import Json
from rlds_beam.encoding.wire import MalformedError, OutOfRangeError, decode_varints
from rlds_beam.episodes.columns import exact_cast
from rlds_beam.episodes.episode import Column, Episode, EpisodeKey
from rlds_beam.episodes.schema import Field, Schema, find_length
from rlds_beam.errors import BadEpisode, Violation
from rlds_beam.images.encoded_images import EncodedImages, StoredImages
from rlds_beam.typing import Array

_COLUMNS = frozenset((np.ndarray, StoredImages))
_MAX_EXPANDED = 1 << 28  # limit in bytes for decompressing one field of unknown shape, all steps together
_NOTHING = Feature(None)


class _WrongValueError(ValueError):
    """A field's values do not match the schema."""


_MISSING = _WrongValueError("no such field")

_Read: TypeAlias = "Column | _WrongValueError | MalformedError | None"
"""A column of a record; None if its length is not known yet (a dimension of 0, or TFDS decodes it); or what is wrong
with it: `_MISSING` if there is none."""


class EpisodeDecoder:
    """Decodes the serialized tf.Examples of one dataset into `Episode`s. Picklable.

    A column is [T, *shape] with the declared dtype. Text and strings are object arrays of `bytes`, images are
    `EncodedImages`. If the schema leaves a dimension open, the column is an object array [T] of arrays (for ragged
    inner sequences, of object arrays). TFDS, which imports TensorFlow, decodes fields that are not `Field.fast`; numpy
    decodes all others. A dataset without `discount` gets 1.0 at every step.
    """

    def __init__(self, schema: Schema, features: str | bytes | Json | None = None, unread: Collection[str] = ()):
        """
        Args:
          schema: the result of `parse_features` on the dataset's features.json, perhaps without some fields.
          features: the features.json; needed unless `schema.fast`.
          unread: the paths of step fields that records hold but episodes do not have; they are neither parsed nor
            checked.
        """
        self.schema = schema
        self._slow: TfdsDecoder | None = None
        self._parser = ExampleParser()
        self._steps = [_ColumnReader(f, f"steps/{f.path}") for f in schema.steps.values()]
        metadata = [_ColumnReader(f, f.path, episode_level=True) for f in schema.metadata.values()]
        self._metadata = [reader for reader in metadata if reader.field.fast]
        self._slow_metadata = [reader for reader in metadata if not reader.field.fast]
        self._paths = [*schema.steps]
        self._known = {reader.name for reader in (*self._steps, *self._metadata) if reader.field.fast}
        self._known |= {f"steps/{path}" for path in unread}
        if not schema.fast:
            if features is None:
                raise ValueError(f"{schema.slow_reason}: decoding it needs the features.json")
            self._slow = TfdsDecoder(schema, features)

    def decode(self, payload: bytes, key: EpisodeKey) -> Episode:
        """Decodes the episode in one record.

        Raises:
          BadEpisode: with all violations: not_an_example, missing_field, unequal_lengths, wrong_dtype_or_shape. Never
            anything else, whatever the bytes are.
        """
        (decoded,) = self.decode_all([payload], [key])
        if isinstance(decoded, BadEpisode):
            raise decoded
        return decoded

    def decode_all(self, payloads: Sequence[bytes], keys: Sequence[EpisodeKey]) -> list[Episode | BadEpisode]:
        """Decodes records as `decode` does, field by field: short ones are much cheaper together."""
        parsed = [*map(self._parse, payloads)]
        records = [record for record in parsed if not isinstance(record, MalformedError)]
        steps = [reader.read_all(records) for reader in self._steps]
        values = [reader.read_all(records) for reader in self._metadata]
        decoded: list[Episode | BadEpisode] = []
        i = 0
        for payload, key, record in zip(payloads, keys, parsed, strict=True):
            if isinstance(record, MalformedError):
                decoded.append(not_an_example(record))
                continue
            try:
                columns, own = [column[i] for column in steps], [value[i] for value in values]
                decoded.append(self._assemble(payload, key, record, columns, own))
            except MalformedError as error:
                decoded.append(not_an_example(error))
            except BadEpisode as bad:
                decoded.append(bad)
            i += 1
        return decoded

    def _parse(self, payload: bytes) -> Mapping[str, Feature] | MalformedError:
        try:
            record = self._parser.parse(payload)
        except MalformedError as error:
            return error
        first = self._steps[0].name if self._steps else ""
        if first not in record and not any(name.startswith("steps/") for name in record):
            return MalformedError(f"it has no steps, only {sorted(record)[:5]}")
        return record

    def _assemble(
        self,
        payload: bytes,
        key: EpisodeKey,
        record: Mapping[str, Feature],
        columns: Sequence[_Read],
        values: Sequence[_Read],
    ) -> Episode:
        """The episode of these columns and values. Raises MalformedError or BadEpisode if one is wrong."""
        steps, length, wrong = self._align(columns)
        metadata: dict[str, Any] = {}
        for reader, value in zip(self._metadata, values, strict=True):
            field = reader.field
            if isinstance(value, (np.ndarray, EncodedImages)):
                if len(value) != 1:
                    detail = f"{len(value)} values of shape {field.shape}, but an episode has one"
                    wrong.append(Violation("wrong_dtype_or_shape", detail, field.path))
                    continue
                metadata[field.path] = value.data[0] if isinstance(value, EncodedImages) else value[0]
            elif value is None:
                metadata[field.path] = np.empty(field.closed_shape, field.numpy_dtype)
            else:
                wrong += reader.describe(value)
                if value is _MISSING:
                    metadata[field.path] = _default(field)
        for reader in self._slow_metadata:
            wrong += reader.describe(None if reader.is_stored(record) else _MISSING)
        if not self._known.issuperset(record):
            for name in record.keys() - self._known:
                record[name].check()
        if wrong:
            raise BadEpisode(*wrong)
        if self._slow is not None:
            try:
                slow, slow_metadata = self._slow.decode(payload)
            except NotDecodableError as error:
                raise BadEpisode(Violation("wrong_dtype_or_shape", f"TFDS cannot decode it: {error}")) from None
            steps, metadata = {**steps, **slow}, metadata | slow_metadata
            length, wrong = find_length(steps)
            if wrong:
                raise BadEpisode(*wrong)
        if len(steps) < len(self._steps) or self._slow is not None:
            steps = {path: _fill(steps.get(path), field, length) for path, field in self.schema.steps.items()}
        return Episode(key=key, steps=steps, metadata=metadata, payload=payload)

    def _align(self, columns: Sequence[_Read]) -> tuple[dict[str, Column], int, list[Violation]]:
        """The step fields by path, their length, and what is wrong with them."""
        if _COLUMNS.issuperset(map(type, columns)):
            known = cast("Sequence[Column]", columns)
            if len({*map(len, known)}) == 1:
                return dict(zip(self._paths, known, strict=True)), len(known[0]), []
        steps: dict[str, Column] = {}
        wrong: list[Violation] = []
        for reader, column in zip(self._steps, columns, strict=True):
            if isinstance(column, (np.ndarray, EncodedImages)):
                steps[reader.field.path] = column
            else:
                wrong += reader.describe(column)
        length, unequal = find_length(steps)
        return steps, length, wrong + unequal


def _fill(column: Column | None, field: Field, length: int) -> Column:
    """The column, or the default for a column without values.

    A column has no values if a dimension is 0, or for `DEFAULT_DISCOUNT`, the only step field that may be missing.
    """
    if column is not None:
        return column
    shape = (length, *field.closed_shape)
    return np.ones(shape, field.numpy_dtype) if field.optional else np.empty(shape, field.numpy_dtype)


def _default(field: Field) -> Any:
    """TFDS's default for an optional value that a record leaves out: the lowest of its dtype."""
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


class _ColumnReader:
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

    def read_all(self, records: Sequence[Mapping[str, Feature]]) -> Sequence[_Read]:
        """The values in each record, or what is wrong with them; the numbers of all records are decoded at once."""
        if self._together and len(records) > 1:
            try:
                return self._numbers([record.get(self.name, _NOTHING) for record in records])
            except (_WrongValueError, MalformedError):
                pass  # one by one shows which
        columns: list[_Read] = []
        for record in records:
            try:
                if self.field.fast:
                    columns.append(self._read(record))
                else:
                    columns.append(None if self.is_stored(record) else _MISSING)
            except (_WrongValueError, MalformedError) as error:
                columns.append(error)
        return columns

    def is_stored(self, record: Mapping[str, Feature]) -> bool:
        """Whether a record has a field that TFDS decodes, in one or several entries."""
        return self.name in record or any(key.startswith(self.name + "/") for key in record)

    def describe(self, error: _Read) -> list[Violation]:
        """What is wrong, if anything; an optional field may be missing. Raises a MalformedError."""
        if isinstance(error, MalformedError):
            raise error
        path = self.field.path
        if error is _MISSING:
            missing = Violation("missing_field", f"the record has no {self.name}", path)
            return [] if self.field.optional else [missing]
        return [Violation("wrong_dtype_or_shape", str(error), path)] if isinstance(error, _WrongValueError) else []

    def _read(self, record: Mapping[str, Feature]) -> _Read:
        field, feature = self.field, record.get(self.name, _NOTHING)
        if feature.kind is None:
            return _MISSING
        if feature.kind != self._kind:
            feature.check()
            raise _WrongValueError(
                f"a {feature.kind} list, but {field.dtype} ({field.encoding}) is stored in a {self._kind} list"
            )
        if field.holds_image_files:
            return StoredImages.in_record(feature.data, feature.spans, field.shape, field.dtype, field.encoding)
        if field.encoding in ("bytes", "zlib"):
            return self._tensors(feature.strings())
        values = self._values(feature)
        size = field.known_size
        if len(values) % size if size else len(values):
            raise _WrongValueError(
                f"{len(values)} values are not a multiple of {size}, the size of shape {field.shape}"
            )
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
            raise _WrongValueError(f"{error.value} at step {step}, but the schema says {field.dtype}") from None

    def _numbers(self, features: Sequence[Feature]) -> Sequence[Array]:
        """The numbers of several records: views of one array.

        Raises:
          _WrongValueError, MalformedError: something is wrong in one of the records, or an integer takes several bytes.
        """
        field, kind = self.field, self._kind
        for feature in features:
            if feature.kind != kind:
                raise _WrongValueError(f"a {feature.kind} list")
        parts = [
            feature.data[feature.first : feature.end] if feature.first else feature.numbers() for feature in features
        ]
        joined = b"".join(parts)
        width, size = (4 if kind == "float" else 1), field.known_size
        sizes = [*map(len, parts)]
        if (kind == "int64" and not joined.isascii()) or any(count % (width * size) for count in {*sizes}):
            raise _WrongValueError("integers of several bytes, or not whole steps")
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
            left = _MAX_EXPANDED
            for step, value in enumerate(values):
                values[step] = _expand(value, left if varies else known, step)
                left -= len(values[step])
        for step, value in enumerate(values):
            if len(value) != known and (not varies or known == 0 or len(value) % known):
                raise _WrongValueError(
                    f"{len(value)} bytes at step {step}, but shape {field.shape} of {field.dtype} has {known}"
                )
        if varies:
            shape = tuple(-1 if d is None else d for d in field.shape)
            return _objects([_from_bytes(field, value).reshape(shape) for value in values])
        return _from_bytes(field, b"".join(values)).reshape(len(values), *field.shape)


def _exactly(values: Array, field: Field) -> Array:
    try:
        return exact_cast(values, field.numpy_dtype, field.path)
    except BadEpisode as bad:
        raise _WrongValueError(bad.violations[0].detail) from None


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
        raise _WrongValueError(f"the zlib stream at step {step} is broken: {error}") from None
    if len(data) > limit or not stream.eof:
        raise _WrongValueError(f"the zlib stream at step {step} is longer than the {limit} bytes of its shape")
    return data


def _objects(values: list[Any]) -> Array:
    """An object array [T], one object per step."""
    return np.fromiter(values, object, len(values))
