"""Decodes a record's bytes into an Episode, by the dataset's schema."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from rlds_beam.encoding.example.reader import ExampleParser, Feature, not_an_example
from rlds_beam.encoding.tfds.decoder import NotDecodableError, TfdsDecoder
from rlds_beam.encoding.tfds.features import Json
from rlds_beam.encoding.wire import MalformedError
from rlds_beam.episodes.episode import Column, Episode, EpisodeKey
from rlds_beam.episodes.schema import Field, Schema
from rlds_beam.errors import BadEpisode, Violation
from rlds_beam.images.encoded_images import EncodedImages, StoredImages
from rlds_beam.reading.column_decoder import MISSING, ColumnReader, Read, WrongValueError

_COLUMNS = frozenset((np.ndarray, StoredImages))


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
        self._steps = [ColumnReader(f, f"steps/{f.path}") for f in schema.steps.values()]
        metadata = [ColumnReader(f, f.path, episode_level=True) for f in schema.metadata.values()]
        self._metadata = [reader for reader in metadata if reader.field.fast]
        self._slow_metadata = [reader for reader in metadata if not reader.field.fast]
        self._unread = [ColumnReader(f, f"steps/{f.path}") for f in unread]
        self._paths = [*schema.steps]
        every = (*self._steps, *self._metadata, *self._unread)
        self._known = {reader.name for reader in every if reader.field.fast}
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
        features = [record.features for record in parsed]
        columns = [reader.read_all(features) for reader in self._steps]
        values = [reader.read_all(features) for reader in self._metadata]
        for i, record in enumerate(parsed):
            record.add_columns(self._paths, self._steps, [column[i] for column in columns])
            for reader, value in zip(self._metadata, values, strict=True):
                record.add_value(reader, value[i])
            for reader in self._unread:
                if (error := reader.check(record.features)) is not None:
                    record.add_error(reader, error)
        return [self._finish(record) for record in records]

    def _parse(self, payload: bytes, key: EpisodeKey) -> _Record:
        record = _Record(payload, key)
        try:
            features = record.features = self._parser.parse(payload)
            first = self._steps[0].name if self._steps else ""
            if first not in features and not any(name.startswith("steps/") for name in features):
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
        for reader in self._slow_metadata:
            if not reader.is_stored(features):
                record.add_error(reader, MISSING)
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

    def add_columns(self, paths: Sequence[str], readers: Sequence[ColumnReader], columns: Sequence[Read]) -> None:
        """Adds the step fields, and sets T, the length that most of them agree on."""
        if _COLUMNS.issuperset(map(type, columns)):
            same = {*map(len, cast("Sequence[Column]", columns))}
            if len(same) == 1:
                self.columns = dict(zip(paths, cast("Sequence[Column]", columns), strict=True))
                (self.length,) = same
                return
        lengths: dict[str, int] = {}
        for reader, column in zip(readers, columns, strict=True):
            path = reader.field.path
            if isinstance(column, (np.ndarray, EncodedImages)):
                self.columns[path] = column
                lengths[path] = len(column)
            elif isinstance(column, int):
                lengths[path] = column
            elif column is not None:
                self.add_error(reader, column)
        if not lengths:
            return
        self.length, votes = Counter(lengths.values()).most_common(1)[0]
        for path, length in lengths.items():
            if length != self.length:
                detail = f"{length} steps, but {votes} of {len(lengths)} fields have {self.length}"
                self.violations.append(Violation("unequal_lengths", detail, path))

    def add_error(self, reader: ColumnReader, error: WrongValueError | MalformedError) -> None:
        """Adds what is wrong with a field; an optional one may be missing."""
        if isinstance(error, MalformedError):
            self.malformed = self.malformed or error
        elif error is not MISSING:
            self.violations.append(Violation("wrong_dtype_or_shape", str(error), reader.field.path))
        elif not reader.field.optional:
            self.violations.append(Violation("missing_field", f"the record has no {reader.name}", reader.field.path))

    def add_value(self, reader: ColumnReader, column: Read) -> None:
        """Adds an episode-level field: a numpy scalar or array, or `bytes`."""
        field = reader.field
        if isinstance(column, (np.ndarray, EncodedImages)):
            if len(column) == 1:
                self.metadata[field.path] = column.data[0] if isinstance(column, EncodedImages) else column[0]
                return
            detail = f"{len(column)} values of shape {field.shape}, but an episode has one"
            self.violations.append(Violation("wrong_dtype_or_shape", detail, field.path))
        elif isinstance(column, (WrongValueError, MalformedError)):
            self.add_error(reader, column)
            if column is MISSING:
                self.metadata[field.path] = _default(field)
        else:
            self.metadata[field.path] = np.empty(field.closed_shape, field.numpy_dtype)


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
