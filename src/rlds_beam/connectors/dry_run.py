"""The dry run: runs connectors on episodes of zeros (or ones) to learn their output schema before any data is read."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlds_beam.connectors.base import (
    Batch,
    Columns,
    Connector,
    FittedConnector,
    by_module,
    find_agent,
    find_module,
    full_name,
    refuse_result,
    run,
    with_attributes,
)
from rlds_beam.connectors.configuration import Configuration, Names, parse_names
from rlds_beam.episodes.columns import is_numeric
from rlds_beam.episodes.episode import PROBE, Column, Episode
from rlds_beam.episodes.representations import Dimension, Representation
from rlds_beam.episodes.schema import Field, Schema, episode_flags, text_field
from rlds_beam.errors import BadEpisode, RldsBeamError, UsageError
from rlds_beam.images.encoded_images import ZERO_IMAGE, EncodedImages
from rlds_beam.reading.base import Source
from rlds_beam.text import printable
from rlds_beam.user_functions import user_code

_LENGTHS = (3, 300)
"""Numbers of steps of the two test episodes; the longer one is shortened if its steps are large."""

_MAX_BYTES = 1 << 30
"""The most bytes of a test episode."""

_UNKNOWN = (1, 2)
"""The size of an unknown dimension in each test episode. An output dimension that differs between them is unknown."""


@dataclasses.dataclass(frozen=True)
class Probed:
    """The result of the dry run.

    Attributes:
      schemas: the schemas of the episodes of one record; several if agents have different ones.
      modules: the fields of a row of columns, by name, for each module that learns from them.
      connectors: the connectors; those that need fitting are fitted to zeros.
      given: the schema of the episodes before the connectors.
    """

    schemas: tuple[Schema, ...]
    modules: Mapping[str, Mapping[str, Field]]
    connectors: tuple[Connector, ...]
    given: Schema = dataclasses.field(default_factory=lambda: Schema({}))

    @property
    def unnamed(self) -> list[str]:
        """The fields that still exist, but whose values lost their names because connectors change them."""
        after = {path: field for schema in self.schemas for path, field in schema.steps.items()}
        return [
            path for path, field in self.given.steps.items() if field.names and path in after and not after[path].names
        ]

    @functools.cached_property
    def schema(self) -> Schema:
        """The common schema of all episodes; raises UsageError if they differ."""
        return Schema(_merge([s.steps for s in self.schemas]), _merge([s.metadata for s in self.schemas]))


def probe(configuration: Configuration, schema: Schema) -> Probed:
    """Runs connectors on test episodes of a schema.

    A connector that drops the episode of zeros is taken to be a filter and skipped. Bool values are True.

    Raises:
      UsageError: a connector cannot process such episodes.
    """
    if not configuration.connectors:
        schema = name_fields(schema, configuration.names)
        return Probed((schema,), {}, (), schema)
    of_input = _fitting(schema, configuration.names)
    of_result = {path: given for path, given in configuration.names.items() if path not in of_input}
    schema = name_fields(schema, of_input)
    numeric = [field for field in schema.steps.values() if not field.holds_image_files and field.encoding != "text"]
    step_bytes = sum(field.known_size * field.numpy_dtype.itemsize for field in numeric)
    most = max(_LENGTHS[0] + 1, _MAX_BYTES // max(1, step_bytes))
    batches = [
        Batch((_zeros(schema, min(length, most), unknown),), fields=configuration.fields)
        for length, unknown in zip(_LENGTHS, _UNKNOWN, strict=True)
    ]
    connectors = []
    for connector in configuration.connectors:
        if isinstance(connector, FittedConnector) and not connector.fitted:
            with _dry_run(connector):
                accumulator = connector.accumulator()
                accumulator.add(batches[0])
                fitted = connector.fit(accumulator.finish())
            if not callable(fitted):
                refuse_result(connector, "fit", fitted, "the fitted connector", PROBE)
            connector = fitted
        connectors.append(connector)
        batches = [_after(connector, batch) for batch in batches]
    labels = _labels(connectors, configuration, schema)
    of_agent: dict[tuple[str, str], list[Episode]] = {}
    for episode in (episode for batch in batches for episode in batch.episodes):
        of_agent.setdefault((find_agent(episode), find_module(episode)), []).append(episode)
    schemas = tuple(
        Schema(
            _with_labels(_merge([_match_fields(episode.steps, schema.steps) for episode in episodes]), labels),
            _merge([_metadata(episode, schema.metadata) for episode in episodes]),
        )
        for episodes in of_agent.values()
    )
    schemas = tuple(name_fields(schema, of_result) for schema in schemas)
    modules: dict[str, list[dict[str, Field]]] = {}
    for batch in batches:
        for name, columns in by_module(batch).items():
            modules.setdefault(name, []).append(_match_fields(columns, {}))
    fields = {name: _with_labels(_merge(parts), labels, name) for name, parts in sorted(modules.items())}
    return Probed(schemas, {name: columns for name, columns in fields.items() if columns}, tuple(connectors), schema)


def with_given_meaning(source: Source, options: Any) -> Source:
    """The source with the names of values (`--names`) and the robot (`--robot_type`) that a job's options give.

    Raises:
      UsageError: names of a field that neither the source has, nor connectors may add; or the data has other ones.
    """
    names, robot = parse_names(getattr(options, "names", ())), getattr(options, "robot_type", None)
    if None not in (robot, source.robot) and robot != source.robot and not source.meaning.assumes_robot:
        raise UsageError(
            f"--robot_type={robot}: {source.dataset} says {printable(source.robot, 40)}: leave it out, or correct what "
            "the data says"
        )
    if getattr(options, "connectors", None) is not None:  # the dry run checks the others
        names = _fitting(source.schema, names)
    changes: dict[str, Any] = {"schema": name_fields(source.schema, names)} if names else {}
    if robot is not None:
        changes["meaning"] = dataclasses.replace(source.meaning, robot=robot)
    return with_attributes(source, **changes)


def _fitting(schema: Schema, names: Names) -> Names:
    """The names of fields of the schema that are vectors of as many values."""
    known = {path: given for path, given in names.items() if path in schema.steps}
    return {path: given for path, given in known.items() if schema.steps[path].with_names(given).names}


def name_fields(schema: Schema, names: Names) -> Schema:
    """The schema with these names, by path, for the dimensions of its fields.

    Raises:
      UsageError: there is no such field, it has another number of values, or its values have other names.
    """
    steps = dict(schema.steps)
    for path, given in names.items():
        if (field := schema.steps.get(path)) is None:
            vectors = [path for path, field in schema.steps.items() if field.shape and field.dtype != "string"]
            raise UsageError(f"--names={path}: there is no field {path}, only {', '.join(vectors)}")
        if not field.shape or field.shape[-1] is None or field.dtype == "string" or field.holds_image_files:
            raise UsageError(f"--names={path}: {field} is no vector of numbers, so it has no dimensions to name")
        steps[path] = field.with_names(given)
        if not steps[path].names:
            raise UsageError(f"--names={path}: {len(given):,} names, but {field} has {field.shape[-1]:,} values")
        if field.names and field.names != given:
            i = next(i for i, (old, new) in enumerate(zip(field.names, given, strict=True)) if old != new)
            raise UsageError(
                f"--names={path}: value {i} is {printable(field.names[i], 40)} in the data, not {given[i]}: leave the "
                "names out, or rename values with RenameDimensions"
            )
    return dataclasses.replace(schema, steps=steps)


def _labels(
    connectors: Sequence[Connector], configuration: Configuration, schema: Schema
) -> dict[tuple[str, str], tuple[Dimension, ...]]:
    """What is known of the values of the columns that connectors return, by module and path; the module of steps is "".

    A connector with a method `represent` says what it makes of them; see `ConvertRotation`.
    """
    start = 0
    for i, connector in enumerate(connectors):
        if hasattr(connector, "represent"):
            before = _labels_after(connectors[start:i], configuration, schema)
            batch = _run(connectors[start:i], configuration, _zeros(schema, _LENGTHS[0], _UNKNOWN[0]))
            given = _with_labels(_match_fields(batch.episodes[0].steps, schema.steps), before)
            vectors = {path: field.dimensions for path, field in given.items() if field.is_vector or field.names}
            known = connector.represent(vectors, configuration.fields)
            episode, start = _after(connector, batch).episodes[0], i + 1
            fields = _match_fields(episode.steps, schema.steps)
            schema = Schema(
                _with_labels(fields, {("", path): values for path, values in known.items()}),
                _metadata(episode, schema.metadata),
            )
    return _labels_after(connectors[start:], configuration, schema)


_SEEDS = (1, 2)
"""A coincidence, for example of clipped or rounded numbers, is not the same with other numbers."""


def _labels_after(
    connectors: Sequence[Connector], configuration: Configuration, schema: Schema
) -> dict[tuple[str, str], tuple[Dimension, ...]]:
    """What is known of the values of columns whose values come back as they were; nothing of those that changed."""
    found: list[set[tuple[tuple[str, str], tuple[Dimension, ...]]]] = []
    for seed in _SEEDS:
        episode, labels = _mark(schema, np.random.default_rng(seed))
        if not labels:
            return {}
        try:
            batch = _run(connectors, configuration, episode)
        except RldsBeamError:  # they refuse such numbers
            return {}
        by_name = {(module, name): c for module, columns in by_module(batch).items() for name, c in columns.items()}
        for one in batch.episodes:
            columns = {**{("", path): column for path, column in one.steps.items()}, **by_name}
            read = set()
            for key, column in columns.items():
                values = np.asarray(column) if is_numeric(column) else np.empty(0)
                rows = values.reshape(-1, values.shape[-1]) if values.ndim in (2, 3) else values  # 3: windows
                if rows.ndim == 2 and len(rows) and (rows == rows[:1]).all():
                    marks = rows[0].tolist()  # all different, and known
                    if marks and len(set(marks)) == len(marks) and labels.keys() >= set(marks):
                        read.add((key, tuple(labels[mark] for mark in marks)))
            found.append(read)
    return dict(set.intersection(*found))


def _mark(schema: Schema, random: np.random.Generator) -> tuple[Episode, dict[float, Dimension]]:
    """Zeros with a number for each dimension of which something is known, and what is known by number.

    The values of other vectors of floats are also marked if there are representations: a field that is joined to one
    with a representation need not have one.
    """
    episode = _zeros(schema, _LENGTHS[0], _UNKNOWN[0])
    columns: dict[str, Any] = {}
    labels: dict[float, Dimension] = {}
    for path, field in schema.steps.items():
        column = episode.steps[path]
        if not (len(field.shape) == 1 or (len(field.shape) == 2 and field.names)) or not is_numeric(column):
            continue
        column = np.asarray(column)
        if not field.names and not (schema.representations and column.dtype.kind == "f"):
            continue
        small, size = column.dtype.kind in "iu", column.shape[-1]
        row = random.integers(1, 127, size) if small else random.uniform(0.1, 0.9, size)
        row = row.astype(np.float32).astype(column.dtype)  # the same number after a cast to float32
        columns[path] = np.broadcast_to(row, column.shape)
        labels |= dict(zip(row.tolist(), field.dimensions, strict=True))
    return episode.with_columns(columns), labels


def _run(connectors: Sequence[Connector], configuration: Configuration, episode: Episode) -> Batch:
    batch = Batch((episode,), fields=configuration.fields)
    for connector in connectors:
        batch = _after(connector, batch)
    return batch


def _with_labels(
    fields: Mapping[str, Field], labels: Mapping[tuple[str, str], tuple[Dimension, ...]], module: str = ""
) -> dict[str, Field]:
    """The fields with the names and the representations of their values, if they fit; without any others."""
    labeled = {}
    for path, field in fields.items():
        values = labels.get((module, path), ())
        names = [value.name for value in values if value.name is not None]
        named = field.with_names(names if len(names) == len(values) else ())
        labeled[path] = named.with_representation(Representation.join(values))
    return labeled


def _after(connector: Connector, batch: Batch) -> Batch:
    """The batch after one connector, or the batch itself if the connector drops it."""
    with _dry_run(connector):
        try:
            after = run([connector], batch)
        except BadEpisode:  # zeros are invalid, for example as propensities
            ones = (
                e.with_columns({p: np.ones_like(np.asarray(c)) for p, c in e.steps.items() if is_numeric(c)})
                for e in batch.episodes
            )
            after = run([connector], batch.replace(episodes=tuple(ones)))
    return after if after.episodes else batch


def _dry_run(connector: Connector) -> contextlib.AbstractContextManager[None]:
    return user_code(f"--connectors: {full_name(connector)}", " in the dry run on zeros")


def _zeros(schema: Schema, length: int, unknown: int) -> Episode:
    steps = {path: _column(field, length, unknown) for path, field in schema.steps.items()}
    steps |= {path: flag for path, flag in episode_flags(length).items() if path in steps}
    metadata = {path: _column(field, 1, unknown)[0] for path, field in schema.metadata.items()}
    return Episode(PROBE, steps, metadata)


def _column(field: Field, length: int, unknown: int) -> Any:
    shape = tuple(unknown if d is None else d for d in field.shape)
    if field.holds_image_files:
        return EncodedImages(np.full(length, ZERO_IMAGE, object), field.shape, field.dtype, field.encoding)
    if field.dtype == "string":
        return np.full((length, *shape), b"", object)
    return (np.ones if field.dtype == "bool" else np.zeros)((length, *shape), field.numpy_dtype)


def _match_fields(columns: Columns, known: Mapping[str, Field]) -> dict[str, Field]:
    """The field of each column: the known one of its path, if it has the same dtype and shape."""
    return {path: _field(path, column, known.get(path)) for path, column in columns.items()}


def _field(path: str, column: Column, known: Field | None) -> Field:
    if isinstance(column, EncodedImages):
        shape = (*column.data.shape[1:], *column.shape)  # sequences have one more axis
        return Field(path, column.dtype, shape, column.encoding, "Image")
    if column.dtype == object and column.ndim == 1 and any(isinstance(value, (np.ndarray, list)) for value in column):
        steps = [_field(path, np.asarray(value)[None], None) for value in column]  # one array per step
        field = functools.reduce(_same, steps)
        return dataclasses.replace(field, shape=(None, *field.shape[1:])) if len(steps) == 1 else field
    dtype = "string" if column.dtype.kind in "OSU" else column.dtype.name
    shape = column.shape[1:]
    if known is not None and known.dtype == dtype and not known.holds_image_files:
        # Keep the input's encoding.
        same = len(known.shape) == len(shape) and all(a in (None, b) for a, b in zip(known.shape, shape, strict=True))
        if same:
            return dataclasses.replace(known, path=path, shape=shape)
    if dtype == "string":
        return text_field(path, shape)
    # RLDS float lists are float32, so other floats would be rounded; TFDS cannot read lists of bfloat16.
    return Field(path, dtype, shape, "bytes" if dtype in ("float64", "bfloat16") else "none")


def _metadata(episode: Episode, known: Mapping[str, Field]) -> dict[str, Field]:
    fields = {}
    for path, value in episode.metadata.items():
        value = value.encode() if isinstance(value, str) else value
        array = np.asarray(value, object if isinstance(value, bytes) else None)
        fields[path] = _field(path, array[None], known.get(path))
    return fields


def _merge(parts: Sequence[Mapping[str, Field]]) -> dict[str, Field]:
    """Merges the fields of several episodes; a dimension that differs is unknown.

    Raises:
      UsageError: the episodes have different fields or dtypes.
    """
    first = parts[0]
    for other in parts[1:]:
        if other.keys() != first.keys():
            name = min(other.keys() ^ first.keys())
            raise UsageError(f"--connectors: only some of the episodes that they return have {name}")
    return {path: functools.reduce(_same, (part[path] for part in parts)) for path in first}


def _same(one: Field, other: Field) -> Field:
    if (one.dtype, len(one.shape)) != (other.dtype, len(other.shape)):
        raise UsageError(f"--connectors: they return {one} for some episodes and {other} for others")
    shape = tuple(a if a == b else None for a, b in zip(one.shape, other.shape, strict=True))
    return dataclasses.replace(one, shape=shape)
