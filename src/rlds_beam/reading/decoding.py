"""Decodes a record's bytes into an Episode, by the dataset's schema."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlds_beam.encoding.example.layout import kind_of
from rlds_beam.encoding.example.parsing import ExampleParser
from rlds_beam.encoding.example.reading import Feature, not_an_example
from rlds_beam.encoding.tfds.decoder import NotDecodableError, TfdsDecoder
from rlds_beam.encoding.tfds.features import Json
from rlds_beam.encoding.wire import MalformedError
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.episodes.keys import EpisodeKey
from rlds_beam.episodes.schema import Field, Schema
from rlds_beam.errors import BadEpisode, Violation
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.reading.columns import ColumnReader, WrongValueError, check_kind, column_reader


class _Stored(NamedTuple):
    """A field and its place in a record.

    Attributes:
      field: the field.
      name: the key in the tf.Example.
      read: converts its list of values to a column, if the field is `fast`.
    """

    field: Field
    name: str
    read: ColumnReader


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
        self._steps = [_Stored(f, f"steps/{f.path}", column_reader(f)) for f in schema.steps.values()]
        self._metadata = [_Stored(f, f.path, column_reader(f, episode_level=True)) for f in schema.metadata.values()]
        self._unread = [
            _Stored(f, f"steps/{f.path}", functools.partial(check_kind, f, kind=kind_of(f))) for f in unread
        ]
        stored_here = (*self._steps, *self._metadata, *self._unread)
        self._known = {stored.name for stored in stored_here if stored.field.fast}
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
        fields = _RecordFields()
        try:
            record = self._parser.parse(payload)
            if not any(name.startswith("steps/") for name in record):
                raise MalformedError(f"it has no steps, only {sorted(record)[:5]}")
            for stored in self._steps:
                fields.add_step_field(stored, record)
            length = fields.length()
            metadata = {stored.name: fields.value(stored, record) for stored in self._metadata if stored.field.fast}
            for stored in self._unread:
                fields.add_step_field(stored, record)
            if not self._known.issuperset(record):
                for name in record.keys() - self._known:
                    record[name].check()
        except MalformedError as error:
            raise not_an_example(error) from None
        for stored in self._metadata:
            if not stored.field.fast:
                fields.stored(stored, record)
        if fields.violations:
            raise BadEpisode(*fields.violations)
        steps = fields.columns
        if self._slow is not None:
            try:
                slow, slow_metadata = self._slow.decode(payload)
            except NotDecodableError as error:
                raise BadEpisode(Violation("wrong_dtype_or_shape", f"TFDS cannot decode it: {error}")) from None
            steps |= slow
            metadata |= slow_metadata
        if len(steps) < len(self._steps) or self._slow is not None:
            steps = {path: _filled(steps.get(path), field, length) for path, field in self.schema.steps.items()}
        return Episode(key=key, steps=steps, metadata=metadata, payload=payload)


class _RecordFields:
    """The fields of a record, and its violations."""

    def __init__(self) -> None:
        self.columns: dict[str, Column] = {}
        self.lengths: dict[str, int] = {}
        self.violations: list[Violation] = []

    def add_step_field(self, stored: _Stored, record: Mapping[str, Feature]) -> None:
        field, name, read = stored
        feature = record.get(name)
        if (feature is None or feature.kind is None or not field.fast) and not self.stored(stored, record):
            return
        try:
            if not field.fast:
                self.lengths[field.path] = _slow_length(name, field, record)
                return
            column = read(record[name])
        except WrongValueError as error:
            self.violations.append(Violation("wrong_dtype_or_shape", str(error), field.path))
            return
        if column is not None:
            self.columns[field.path] = column
            self.lengths[field.path] = len(column)

    def stored(self, stored: _Stored, record: Mapping[str, Feature]) -> bool:
        """Whether the record has the field; adds a violation if a required field is missing."""
        field, name, _ = stored
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
        """T, the length that most step fields agree on."""
        if not self.lengths:
            return 0
        if len({*self.lengths.values()}) == 1:
            return next(iter(self.lengths.values()))
        common, votes = Counter(self.lengths.values()).most_common(1)[0]
        for path, length in self.lengths.items():
            if length != common:
                detail = f"{length} steps, but {votes} of {len(self.lengths)} fields have {common}"
                self.violations.append(Violation("unequal_lengths", detail, path))
        return common

    def value(self, stored: _Stored, record: Mapping[str, Feature]) -> Any:
        """The value of an episode-level field: a numpy scalar or array, or `bytes`."""
        field = stored.field
        if not self.stored(stored, record):
            return _default(field)
        try:
            column = stored.read(record[stored.name])
        except WrongValueError as error:
            self.violations.append(Violation("wrong_dtype_or_shape", str(error), field.path))
            return None
        if column is None:
            return np.empty(field.closed_shape, field.numpy_dtype)
        if len(column) != 1:
            detail = f"{len(column)} values of shape {field.shape}, but an episode has one"
            self.violations.append(Violation("wrong_dtype_or_shape", detail, field.path))
            return None
        return column.data[0] if isinstance(column, EncodedImages) else column[0]


def _slow_length(name: str, field: Field, record: Mapping[str, Feature]) -> int:
    """The number of steps of a field that TFDS decodes, from its stored form."""
    rows = record.get(f"{name}/ragged_row_lengths_0")
    if rows is not None:
        _check_rows(rows)
        return len(rows.ints())
    values = record.get(f"{name}/value", record.get(name))
    if values is None or values.kind != "bytes":
        raise WrongValueError(f"{name} is not stored as TFDS stores a {field.feature}")
    return len(values.strings())


def _check_rows(rows: Feature) -> None:
    if rows.kind != "int64":
        raise WrongValueError(f"its row lengths are a {rows.kind} list, not an int64 list")


def _filled(column: Column | None, field: Field, length: int) -> Column:
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
