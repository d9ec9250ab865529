"""Columns for a learner, computed by connectors: a dataset for each module, in its own directory."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from rlds_beam import naming, storage
from rlds_beam.connectors.base import Batch, Columns, by_module
from rlds_beam.connectors.fields import StepFields
from rlds_beam.connectors.learner.columns import (
    AddColumnsFromEpisodesToTrainBatch,
    AddFieldsToBatch,
    AddObservationsFromEpisodesToBatch,
    AddWeightsToBatch,
)
from rlds_beam.connectors.pipeline import ConnectorRunner, difference
from rlds_beam.encoding.arrayrecord import check_writable
from rlds_beam.encoding.example.rows import row_field
from rlds_beam.encoding.tfds.features import features_json
from rlds_beam.episodes.columns import below
from rlds_beam.episodes.episode import Column
from rlds_beam.episodes.schema import FLAGS, Field
from rlds_beam.errors import RldsBeamError, UsageError
from rlds_beam.formats.columns.row_files import RowFile, open_row_file
from rlds_beam.formats.format_options import ColumnsFormat, ColumnsOptions
from rlds_beam.output.base import Description, Output
from rlds_beam.output.commits import EarlierOutput, RangeCommit, split_infos, write_tfds_metadata
from rlds_beam.output.plans import RESERVED
from rlds_beam.output.shards import ShardInfo, WrittenFile
from rlds_beam.reading.base import Source, WorkRange
from rlds_beam.reading.meaning import Meaning

DEFAULT_CONNECTORS = (AddObservationsFromEpisodesToBatch(), AddColumnsFromEpisodesToTrainBatch())
"""RLlib's default learner pipeline, without a time axis: obs, actions, rewards, terminateds, truncateds."""

_NOT_HELD = "no column holds it, unless AddFieldsToBatch adds one"

Modules = Mapping[str, tuple[Field, ...]]


@dataclasses.dataclass(frozen=True)
class ColumnsOutput(Output):
    """A dataset in `MODULE/` for each module: a record is a row of its columns, a transition or a sequence.

    Attributes:
      directory: where the files go.
      name: the name of the dataset.
      format: the file format.
      modules: the columns of each module.
      description: the dataset's description, for TFDS.
      left_out: the fields that no column holds, with the reasons.
      meaning: what is known of the dataset; the names are those of its columns' fields.
      unnamed: the fields with names that no column holds as they are.
    """

    directory: str
    name: str
    format: ColumnsFormat
    modules: Modules
    description: str = "Columns, made by rlds-beam."
    left_out: Mapping[str, str] = dataclasses.field(default_factory=dict)
    meaning: Meaning = dataclasses.field(default_factory=Meaning)
    unnamed: tuple[str, ...] = ()

    writes_columns = True
    default_connectors = DEFAULT_CONNECTORS
    options_class = ColumnsOptions

    @classmethod
    def create(
        cls, source: Source, connectors: ConnectorRunner, directory: str, options: ColumnsOptions
    ) -> ColumnsOutput:
        probed = connectors.probed.modules
        if not probed:
            raise UsageError(
                "--to=columns: the connectors add no columns. For the usual ones, add these lines to --connectors:",
                "- AddObservationsFromEpisodesToBatch",
                "- AddColumnsFromEpisodesToTrainBatch",
            )
        for module in probed:
            _check_name(module)
        kind = options.format
        if kind == "array_record":
            check_writable(directory)
        modules = {module: tuple(fields.values()) for module, fields in probed.items()}
        for fields in modules.values():
            features_json({field.path: row_field(field) for field in fields})  # raises if TFDS cannot nest them
        about = f"Columns of {source.dataset}, made by rlds-beam."
        left_out = _find_left_out(connectors)
        meaning = dataclasses.replace(source.meaning, last_action="unknown")
        held = {field.names for fields in modules.values() for field in fields}
        named = {path: names for schema in connectors.probed.schemas for path, names in schema.names.items()}
        unnamed = tuple(path for path, names in named.items() if names not in held and path not in left_out)
        return cls(directory, source.name, kind, modules, about, left_out, meaning, unnamed)

    def append_to(self, earlier: EarlierOutput, ranges: Sequence[WorkRange], directory: str) -> Self:
        del earlier, ranges
        return dataclasses.replace(self, directory=directory)

    def plan(self) -> dict[str, Any]:
        return {"columns": {"format": self.format, "modules": self._modules(), **self.meaning.entry()}}

    def _modules(self) -> dict[str, Any]:
        return {module: _columns_json(fields) for module, fields in self.modules.items()}

    def notes(self, manifest: Mapping[str, Any]) -> list[str]:
        del manifest
        return [
            f"note      no column holds the values of {path} as they are, so their names are left out"
            for path in self.unnamed
        ]

    def describe(self) -> Description:
        lines = [f"{module}: {field}" for module, fields in self.modules.items() for field in fields]
        return Description(lines, self.left_out, "row")

    def predict(self, batches: Iterable[Batch]) -> int:
        return sum(rows for batch in batches for _, rows in self._check_rows(batch).values())

    def _check_rows(self, batch: Batch) -> dict[str, tuple[Columns, int]]:
        """The columns and row count of each module that has rows."""
        tables = {}
        for module, columns in by_module(batch).items():
            if columns:
                where = f"{batch.episodes[0].key}, module {module}"
                wrong = difference(columns, {field.path: field for field in self.modules.get(module, ())}, where)
                if wrong is not None:
                    raise RldsBeamError(f"--connectors: the connectors {wrong}")
                tables[module] = columns, _length(columns, where)
        return tables

    def file(self, work: WorkRange) -> str:
        return self.files(work)[0]

    def files(self, work: WorkRange) -> tuple[str, ...]:
        if self.format == "parquet":
            name = f"{self.name}-{work}.parquet"
        else:
            name = naming.shard_name(self.name, work.split, self.format, work.number)
        return tuple(f"{module}/{name}" for module in self.modules)

    def open_range(self, work: WorkRange) -> ColumnsWriter:
        return ColumnsWriter(self, work)

    def complete(self, commits: Sequence[RangeCommit]) -> dict[str, Any]:
        for i, (module, fields) in enumerate(self.modules.items()):
            self._complete_module(module, fields, [(commit.split, commit.files[i]) for commit in commits])
        return {"format": self.format, "modules": self._modules(), **self.meaning.entry()}

    def _complete_module(self, module: str, fields: Sequence[Field], files: Sequence[tuple[str, WrittenFile]]) -> None:
        """Writes a module's metadata. Splits without rows are left out, and their empty files removed."""
        splits = split_infos(self.directory, files)
        if self.format != "parquet":
            write_tfds_metadata(
                storage.below(self.directory, module),
                self.name,
                splits,
                {field.path: row_field(field) for field in fields},
                file_format=self.format,
                description=self.description,
            )


class ColumnsWriter:
    """Writes the rows of batches to a file for each module (`processing.ranges.RangeWriter`).

    Attributes:
      predicted: the rows of the batches so far, from the lengths of their columns.
    """

    def __init__(self, output: ColumnsOutput, work: WorkRange):
        self._output = output
        self._names = dict(zip(output.modules, output.files(work), strict=True))
        self._predicted = dict.fromkeys(output.modules, 0)
        self._files: dict[str, RowFile] = {}
        try:
            for module, name in self._names.items():
                path = storage.below(output.directory, name)
                self._files[module] = open_row_file(output.format, path, output.modules[module], output.meaning)
        except BaseException:
            self.abort()
            raise

    @property
    def predicted(self) -> int:
        return sum(self._predicted.values())

    def write(self, batch: Batch) -> None:
        tables = self._output._check_rows(batch)
        prepared = [(m, rows, self._files[m].prepare(columns, rows)) for m, (columns, rows) in tables.items() if rows]
        for module, rows, content in prepared:  # nothing can fail after preparing
            self._files[module].add(content, batch.episodes[0].key)
            self._predicted[module] += rows

    def finish(self) -> tuple[WrittenFile, ...]:
        infos: dict[str, ShardInfo] = {module: file.commit() for module, file in self._files.items()}
        return tuple(WrittenFile(name, infos[m], self._predicted[m]) for m, name in self._names.items())

    def abort(self) -> None:
        for file in self._files.values():
            file.abort()


def _find_left_out(connectors: ConnectorRunner) -> dict[str, str]:
    """The fields that no column holds, with the reasons; none if a user's connector may hold them."""
    if connectors.user_code:
        return {}
    columns = {name for module in connectors.probed.modules.values() for name in module}
    named = {path for connector in connectors.connectors for path in _named_fields(connector)}
    roles = {
        column: field
        for column, field in _roles(connectors.configuration.fields)
        if any(below(name, column) for name in columns)
    }

    def is_held(field: Field) -> bool:
        if field.path in (*FLAGS, *columns) or any(below(field.path, name) for name in named):
            return True
        of_role = {column + field.path[len(role) :] for column, role in roles.items() if below(field.path, role)}
        return not columns.isdisjoint(of_role) if field.dtype == "string" else bool(of_role)

    left_out: dict[str, str] = {}
    for schema in connectors.probed.schemas:
        for field in schema.steps.values():
            if not is_held(field):
                left_out[field.path] = f"text; {_NOT_HELD}" if field.dtype == "string" else _NOT_HELD
        for path in schema.metadata:
            if path not in columns and not any(below(path, name) for name in named):
                left_out[path] = f"an episode field; {_NOT_HELD}"
    return left_out


def _roles(fields: StepFields) -> list[tuple[str, str]]:
    """The columns of RLlib, each with the field that it holds."""
    obs = [("obs", fields.obs), ("new_obs", fields.obs), ("actions", fields.actions), ("rewards", fields.rewards)]
    return [*obs, ("infos", fields.infos), ("state_in", fields.state_in), ("state_out", fields.state_out)]


def _named_fields(connector: object) -> Iterable[str]:
    """The fields that a connector adds to the columns because its arguments name them."""
    if isinstance(connector, AddFieldsToBatch):
        return connector.fields.values() if isinstance(connector.fields, Mapping) else connector.fields
    return [connector.field] if isinstance(connector, AddWeightsToBatch) and connector.field else ()


def _length(columns: Mapping[str, Column], where: str) -> int:
    """The number of rows. Raises RldsBeamError if columns differ."""
    lengths = {path: len(column) for path, column in columns.items()}
    first, rows = next(iter(lengths.items()))
    for path, length in lengths.items():
        if length != rows:
            raise RldsBeamError(f"{where}: the column {path} has {length} rows, but {first} has {rows}")
    return rows


def _check_name(module: str) -> None:
    """Raises UsageError if a module's name cannot be a directory of the output."""
    if not naming.is_file_name(module) or module[0] in "._" or module in RESERVED:
        raise UsageError(
            f"--to=columns: {module!r} cannot be the name of a directory in the output: rename the module "
            "(AgentToModuleMapping) with letters, digits, `_` and `-`"
        )


def _columns_json(fields: Iterable[Field]) -> list[dict[str, Any]]:
    """The columns of a row as in the manifest, with the names and the representation of values."""
    return [
        {"path": f.path, "dtype": f.dtype, "shape": list(f.shape), "encoding": f.encoding, **f.meaning_json()}
        for f in fields
    ]
