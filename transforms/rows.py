"""Makes rows of steps, for Beam SQL and DataFrames."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
from apache_beam.typehints.row_type import RowTypeConstraint

from rlds_beam.checking.verdicts import Rejection
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.episodes.schema import Field, Schema
from rlds_beam.errors import UsageError
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.reading.base import Source
from rlds_beam.text import did_you_mean

_KINDS = {"b": bool, "i": int, "u": int, "f": float, "V": float, "O": str}
"""The kind of a numpy dtype (V: bfloat16) -> the type of a value in a row."""


@beam.typehints.with_input_types(Episode)
class EpisodesToRows(beam.PTransform[Episode, beam.Row]):
    """Makes a `beam.Row` of each step, with a schema: for Beam SQL and Beam's DataFrames.

        rows = checked.accepted | EpisodesToRows(read.source, fields=["reward"])
        rows | beam.GroupBy("episode").aggregate_field("reward", sum, "total_reward")

    A row has `episode` (the episode's key as text), `step` (its number, from 0), and a column for each field of the
    steps, with `_` for other characters in its path: `observation/state` becomes `observation_state`. Integers become
    int64, floats float64, text str (bytes that are no UTF-8 are escaped), arrays nested lists, and PNG or JPEG images
    their bytes. A row for each step costs far more than an episode as columns: use it to query data, not to write it.

    Args:
      read: the dataset of the episodes (`ReadFromRlds(...).source`), or their schema.
      fields: the paths of the step fields; None takes all but images and arrays of more than one dimension.

    Raises:
      UsageError: on construction, if there is no such field, or a row cannot have it (uint64, two fields of one name);
        while running, if an episode has a column that is not in the schema.
    """

    def __init__(self, read: Source | Schema, fields: Sequence[str] | None = None):
        super().__init__()
        self._schema = read if isinstance(read, Schema) else read.schema
        self._fields = _columns(_select(self._schema, fields))

    def expand(self, episodes: beam.PCollection[Episode]) -> beam.PCollection[beam.Row]:
        types = [("episode", str), ("step", int), *((name, _find_type(field)) for name, field in self._fields.items())]
        rows = beam.ParDo(_ToRowsFn(self._schema, self._fields))
        return episodes | "Rows" >> rows.with_output_types(RowTypeConstraint.from_fields(types))


class RejectedRow(NamedTuple):
    """A rejected record, for CSV and BigQuery.

    Attributes:
      episode: its key as text.
      split: its split.
      rule: the first rule that rejects it.
      field: the field that breaks the rule; empty if it concerns the whole record.
      detail: what is wrong.
      violations: the number of broken rules.
      bytes: the size of the record.
    """

    episode: str
    split: str
    rule: str
    field: str
    detail: str
    violations: int
    bytes: int


@beam.typehints.with_input_types(Rejection)
class RejectionsToRows(beam.PTransform[Rejection, RejectedRow]):
    """Makes a `RejectedRow`, which has a schema, of each rejected record. `WriteRejected` keeps the records.

    checked.rejected | RejectionsToRows() | beam.io.WriteToCsv("rejected.csv")
    """

    def expand(self, rejected: beam.PCollection[Rejection]) -> beam.PCollection[RejectedRow]:
        return rejected | "Rows" >> beam.Map(_reject_row).with_output_types(RejectedRow)


def _reject_row(rejection: Rejection) -> RejectedRow:
    violation = next(violation for violation in rejection.violations if violation.rule == rejection.rule)
    return RejectedRow(
        str(rejection.key),
        rejection.key.split,
        rejection.rule,
        violation.field or "",
        violation.detail,
        len(rejection.violations),
        len(rejection.payload),
    )


class _ToRowsFn(beam.DoFn):
    def __init__(self, schema: Schema, fields: Mapping[str, Field]):
        self._schema, self._fields = schema, fields

    def process(self, episode: Episode) -> Iterator[beam.Row]:
        self._schema.check(episode)
        key, columns = str(episode.key), [_values(episode.steps[field.path]) for field in self._fields.values()]
        for step, values in enumerate(zip(*columns, strict=True) if columns else [()] * len(episode)):
            yield beam.Row(episode=key, step=step, **dict(zip(self._fields, values, strict=True)))


def _select(schema: Schema, paths: Sequence[str] | None) -> list[Field]:
    if paths is None:
        return [field for field in schema.steps.values() if not field.holds_image_files and len(field.shape) < 2]
    for path in paths:
        if path not in schema.steps:
            raise UsageError(f"EpisodesToRows: there is no step field {path}{did_you_mean(path, list(schema.steps))}")
    return [schema.steps[path] for path in paths]


def _columns(fields: Sequence[Field]) -> dict[str, Field]:
    """The fields by the names of their columns."""
    columns: dict[str, Field] = {}
    for field in fields:
        name = re.sub(r"\W", "_", field.path)
        why = None
        if name in ("episode", "step") or name in columns:
            why = f"another column is named {name}"
        elif not name.isidentifier() or name.startswith("_") or keyword.iskeyword(name):
            why = f"{name} cannot name a column"
        elif not field.holds_image_files and (field.dtype == "uint64" or field.numpy_dtype.kind not in _KINDS):
            why = f"Beam's rows have no {field.dtype}"
        if why is not None:
            raise UsageError(
                f"EpisodesToRows: {field.path} cannot be a column, since {why}: choose others with `fields`"
            )
        columns[name] = field
    return columns


def _find_type(field: Field) -> Any:
    if field.holds_image_files:
        return bytes
    kind: Any = _KINDS[field.numpy_dtype.kind]
    for _ in field.shape:
        kind = Sequence[kind]
    return kind


def _values(column: Column) -> list[Any]:
    """A value for each step."""
    if isinstance(column, EncodedImages):
        return [bytes(data) for data in column.data]
    kind = _KINDS[column.dtype.kind]
    values: list[Any] = (np.vectorize(_text, otypes=[object])(column) if kind is str else column.astype(kind)).tolist()
    return values


def _text(value: Any) -> str:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
