"""Decodes a record's bytes into an Episode, by the dataset's schema."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np

from rlds_beam.encoding.example.parser import ExampleParser
from rlds_beam.encoding.example.reader import Feature, not_an_example
from rlds_beam.encoding.example.templates import list_kind
from rlds_beam.encoding.tfds.decoder import NotDecodableError, TfdsDecoder
from rlds_beam.encoding.tfds.features import Json
from rlds_beam.encoding.wire import MalformedError
from rlds_beam.episodes.episode import Column, Episode, EpisodeKey
from rlds_beam.episodes.schema import Field, Schema
from rlds_beam.errors import BadEpisode, Violation
from rlds_beam.images.encoded_images import EncodedImages, StoredImages
from rlds_beam.reading.column_decoder import ColumnReader, WrongValueError, check_kind


class _Stored(NamedTuple):
    """A field and its place in a record.

    Attributes:
      field: the field.
      name: the key in the tf.Example.
      reader: converts its list of values to a column, if the field is `fast`.
    """

    field: Field
    name: str
    reader: ColumnReader


class EpisodeDecoder:
    """Decodes the serialized tf.Examples of one dataset into `Episode`s. Picklable.

    A column is [T, *shape] with the declared dtype. Text and strings are object arrays of `bytes`, images are
    `EncodedImages`. If the schema leaves a dimension open, the column is an object array [T] of arrays (for ragged
    inner sequences, of object arrays). TFDS, which imports TensorFlow, decodes fields that are not `Field.fast`; numpy
    decodes all others. A dataset without `discount` gets 1.0 at every step.
    """

    def __init__(self, schema: Schema, features: str | bytes | Json | None = None, unread: Sequence[Field] = ()):
        """
        Args:
          schema: the result of `parse_features` on the dataset's features.json, perhaps without some fields.
          features: the features.json; needed unless `schema.fast`.
          unread: the step fields that records hold but episodes do not have. A record must have them, as the right kind
            of list, but the list is not parsed. They are `fast`.
        """
        self.schema = schema
        self._slow: TfdsDecoder | None = None
        self._parser = ExampleParser()
        self._steps = [_Stored(f, f"steps/{f.path}", ColumnReader(f)) for f in schema.steps.values()]
        self._metadata = [_Stored(f, f.path, ColumnReader(f, episode_level=True)) for f in schema.metadata.values()]
        self._paths = [stored.field.path for stored in self._steps]
        self._first = self._steps[0].name if self._steps else ""
        self._unread = [_Stored(f, f"steps/{f.path}", ColumnReader(f)) for f in unread]
        every = (*self._steps, *self._metadata, *self._unread)
        self._known = {stored.name for stored in every if stored.field.fast}
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
        records = [self._parse(payload, key) for payload, key in zip(payloads, keys, strict=True)]
        parsed = [record for record in records if record.malformed is None]
        fast = [stored for stored in self._metadata if stored.field.fast]
        columns = [_read(stored, parsed) for stored in self._steps]
        values = [_read(stored, parsed) for stored in fast]
        for i, record in enumerate(parsed):
            record.add_columns(self._paths, self._steps, [column[i] for column in columns])
            for stored, value in zip(fast, values, strict=True):
                record.add_value(stored, value[i])
            for stored in self._unread:
                record.check_unread(stored)
        return [self._finish(record) for record in records]

    def _parse(self, payload: bytes, key: EpisodeKey) -> _Record:
        record = _Record(payload, key)
        try:
            features = record.features = self._parser.parse(payload)
            if self._first not in features and not any(name.startswith("steps/") for name in features):
                raise MalformedError(f"it has no steps, only {sorted(features)[:5]}")
        except MalformedError as error:
            record.malformed = error
        return record

    def _finish(self, record: _Record) -> Episode | BadEpisode:
        features, payload = record.features, record.payload
        if record.malformed is None and not self._known.issuperset(features):
            try:
                for name in features.keys() - self._known:
                    features[name].check()
            except MalformedError as error:
                record.malformed = error
        if record.malformed is not None:
            return not_an_example(record.malformed)
        for stored in self._metadata:
            if not stored.field.fast and not _is_stored(stored.name, features):
                record.add_missing(stored.field, stored.name)
        if record.violations:
            return BadEpisode(*record.violations)
        steps, metadata = record.columns, record.metadata
        if self._slow is not None:
            try:
                slow, slow_metadata = self._slow.decode(payload)
            except NotDecodableError as error:
                return BadEpisode(Violation("wrong_dtype_or_shape", f"TFDS cannot decode it: {error}"))
            steps |= slow
            metadata |= slow_metadata
        if len(steps) < len(self._steps) or self._slow is not None:
            steps = {path: _fill(steps.get(path), field, record.length) for path, field in self.schema.steps.items()}
        return Episode(key=record.key, steps=steps, metadata=metadata, payload=payload)


class _Record:
    """A record that is being decoded, and its violations."""

    def __init__(self, payload: bytes, key: EpisodeKey) -> None:
        self.payload, self.key = payload, key
        self.features: Mapping[str, Feature] = {}
        self.malformed: MalformedError | None = None
        self.columns: dict[str, Column] = {}
        self.length = 0
        self.metadata: dict[str, Any] = {}
        self.violations: list[Violation] = []

    def add_columns(self, paths: Sequence[str], fields: Sequence[_Stored], columns: Sequence[_Read]) -> None:
        """Adds the step fields, and sets T."""
        if _COLUMNS.issuperset(map(type, columns)):
            lengths = {*map(len, cast("Sequence[Column]", columns))}
            if len(lengths) == 1:
                self.columns = dict(zip(paths, cast("Sequence[Column]", columns), strict=True))
                (self.length,) = lengths
                return
        by_path: dict[str, int] = {}
        for stored, column in zip(fields, columns, strict=True):
            path = stored.field.path
            if isinstance(column, (np.ndarray, EncodedImages)):
                self.columns[path] = column
                by_path[path] = len(column)
            elif isinstance(column, int):
                by_path[path] = column
            elif column is not None:
                self._add_error(stored, column)
        self._find_length(by_path)

    def _add_error(self, stored: _Stored, error: ValueError) -> None:
        if error is _MISSING:
            self.add_missing(stored.field, stored.name)
        elif isinstance(error, WrongValueError):
            self.violations.append(Violation("wrong_dtype_or_shape", str(error), stored.field.path))
        elif self.malformed is None and isinstance(error, MalformedError):
            self.malformed = error

    def check_unread(self, stored: _Stored) -> None:
        """Checks that the record has the field, as the right kind of list."""
        feature = self.features.get(stored.name, _NOTHING)
        try:
            if feature.kind is None:
                self.add_missing(stored.field, stored.name)
            else:
                check_kind(stored.field, feature, list_kind(stored.field))
        except (WrongValueError, MalformedError) as error:
            self._add_error(stored, error)

    def add_missing(self, field: Field, name: str) -> None:
        """Adds the violation for a field that the record does not have, if it is required."""
        if not field.optional:
            self.violations.append(Violation("missing_field", f"the record has no {name}", field.path))

    def _find_length(self, lengths: Mapping[str, int]) -> None:
        """Sets T, the length that most step fields agree on."""
        if not lengths:
            return
        self.length, votes = Counter(lengths.values()).most_common(1)[0]
        for path, length in lengths.items():
            if length != self.length:
                detail = f"{length} steps, but {votes} of {len(lengths)} fields have {self.length}"
                self.violations.append(Violation("unequal_lengths", detail, path))

    def add_value(self, stored: _Stored, column: _Read) -> None:
        """Adds an episode-level field: a numpy scalar or array, or `bytes`."""
        field = stored.field
        if isinstance(column, (np.ndarray, EncodedImages)):
            if len(column) == 1:
                self.metadata[field.path] = column.data[0] if isinstance(column, EncodedImages) else column[0]
                return
            detail = f"{len(column)} values of shape {field.shape}, but an episode has one"
            self.violations.append(Violation("wrong_dtype_or_shape", detail, field.path))
        elif isinstance(column, ValueError):
            self._add_error(stored, column)
            if column is _MISSING:
                self.metadata[field.path] = _default(field)
        else:
            self.metadata[field.path] = np.empty(field.closed_shape, field.numpy_dtype)


_Read: TypeAlias = "Column | int | ValueError | None"
"""A column of a record; its length, if TFDS decodes it; None if it has no values; or what is wrong with it."""


_COLUMNS = frozenset((np.ndarray, StoredImages))
_MISSING = ValueError("no such field")
_NOTHING = Feature(None)


def _read(stored: _Stored, records: Sequence[_Record]) -> Sequence[_Read]:
    """Reads a field of each record; `_MISSING` for those that do not have it."""
    field, name, reader = stored
    if not field.fast:
        return [_slow_length(field, name, record.features) for record in records]
    features = [record.features.get(name, _NOTHING) for record in records]
    there = [feature for feature in features if feature.kind is not None]
    columns = reader.read_all(there)
    if len(there) == len(features):
        return columns
    rest = iter(columns)
    return [_MISSING if feature.kind is None else next(rest) for feature in features]


def _is_stored(name: str, features: Mapping[str, Feature]) -> bool:
    """Whether a record has a field that TFDS decodes, in one or several entries."""
    return name in features or any(key.startswith(name + "/") for key in features)


def _slow_length(field: Field, name: str, features: Mapping[str, Feature]) -> int | ValueError:
    """The number of steps of a field that TFDS decodes, from its stored form; or what is wrong with it."""
    if not _is_stored(name, features):
        return _MISSING
    try:
        rows = features.get(f"{name}/ragged_row_lengths_0")
        if rows is not None:
            _check_rows(rows)
            return len(rows.ints())
        values = features.get(f"{name}/value", features.get(name))
        if values is None or values.kind != "bytes":
            raise WrongValueError(f"{name} is not stored as TFDS stores a {field.feature}")
        return len(values.strings())
    except (WrongValueError, MalformedError) as error:
        return error


def _check_rows(rows: Feature) -> None:
    if rows.kind != "int64":
        raise WrongValueError(f"its row lengths are a {rows.kind} list, not an int64 list")


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
