"""Read the columns of an output from its manifest."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from rlds_beam import storage
from rlds_beam.encoding.checked_json import COUNT, FILE, TEXT, Kind, Maybe, check_json
from rlds_beam.encoding.parquet_files import naming_damage, verified_parquet
from rlds_beam.encoding.tfds.features import DTYPES
from rlds_beam.episodes.schema import Field
from rlds_beam.errors import UsageError
from rlds_beam.formats.format_options import FORMATS
from rlds_beam.output.files import MANIFEST
from rlds_beam.reading.meaning import KEY, REPRESENTATION, Meaning
from rlds_beam.text import did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa

_FIELD = {
    "path": TEXT,
    "dtype": Kind("the name of a dtype", lambda dtype: dtype in DTYPES),
    "shape": [Maybe(COUNT)],
    "encoding": Kind("the name of an encoding", lambda e: e in ("none", "bytes", "zlib", "text", "png", "jpeg")),
    "names?": [TEXT],
    "representation?": REPRESENTATION,
}
_SCHEMA = {
    "format": Kind(f"one of {', '.join(FORMATS)}", lambda name: name in FORMATS),
    "modules": {"*": [_FIELD]},
}


@dataclasses.dataclass(frozen=True)
class ColumnsManifest:
    """The columns of an output.

    Attributes:
      format: the file format.
      modules: the columns of each module.
      meaning: what is known of the dataset.
    """

    format: str
    modules: Mapping[str, tuple[Field, ...]]
    meaning: Meaning = dataclasses.field(default_factory=Meaning)

    @classmethod
    def of(cls, manifest: Mapping[str, Any], path: str) -> ColumnsManifest:
        """Reads the columns of the output at `path`.

        Raises:
          UsageError: the manifest is not one that rlds-beam writes.
        """
        check_json(dict(manifest), _SCHEMA, storage.join(path, MANIFEST))
        check_json([*manifest["modules"]], [FILE], storage.join(path, MANIFEST))
        modules = {
            module: tuple(
                Field(f["path"], f["dtype"], tuple(f["shape"]), f["encoding"]).with_meaning(f) for f in fields
            )
            for module, fields in manifest["modules"].items()
        }
        meaning = Meaning.from_json(manifest.get(KEY, {}), storage.join(path, MANIFEST))
        return cls(manifest["format"], modules, meaning)

    def choose(self, module: str | None, path: str) -> str:
        """The module with this name; by default the only one.

        Raises:
          UsageError: there is no such module, or none is named and there are several.
        """
        known = ", ".join(self.modules)
        if module is None and len(self.modules) != 1:
            raise UsageError(f"{path} holds the columns of {known}: choose one with module=...")
        if module is not None and module not in self.modules:
            hint = did_you_mean(module, self.modules, otherwise=f"it has {known}")
            raise UsageError(f"{path} has no module {module}{hint}")
        return next(iter(self.modules)) if module is None else module


Rows: TypeAlias = "dict[str, np.ndarray[Any, Any]]"
"""Columns by name, all with the same leading axis."""


def row_groups(files: Sequence[str]) -> Iterator[Rows]:
    """The row groups of files in order, one in memory at a time."""
    for path in files:
        with storage.open_read(path) as file, naming_damage(path):
            parquet = verified_parquet(file)
            for i in range(parquet.num_row_groups):
                yield numeric_columns(parquet.read_row_group(i, use_threads=False))


def numeric_columns(table: pa.Table) -> Rows:
    """The numeric columns, (rows, ...) in the shape of their nested lists; float64 as float32.

    Text and encoded images, which a learner cannot take, and lists of varying length are left out.
    """
    arrays = ((name, _array(column)) for name, column in zip(table.column_names, table.columns, strict=True))
    return {name: values for name, values in arrays if values is not None}


def _array(column: Any) -> np.ndarray[Any, Any] | None:
    import pyarrow as pa

    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):  # more data than fits a chunk
        array = pa.concat_arrays(array.chunks)
    shape = [len(array)]
    while pa.types.is_fixed_size_list(array.type):
        shape.append(array.type.list_size)
        array = array.flatten()
    if not (pa.types.is_floating(array.type) or pa.types.is_integer(array.type) or pa.types.is_boolean(array.type)):
        return None
    values: np.ndarray[Any, Any] = array.to_numpy(zero_copy_only=False).reshape(shape)
    return values.astype(np.float32) if values.dtype == np.float64 else values


def batches(groups: Iterable[Rows], rows: int) -> Iterator[Rows]:
    """Batches of `rows` rows, in order; the last one may be smaller."""
    held: list[Rows] = []
    missing = rows
    for group in groups:
        count, start = count_rows(group), 0
        while start < count:
            part = {name: column[start : start + missing] for name, column in group.items()}
            held.append(part)
            start += count_rows(part)
            missing -= count_rows(part)
            if not missing:
                yield _join(held)
                held, missing = [], rows
    if held:
        yield _join(held)


def shuffle_groups(groups: Iterable[Rows], rows: int, rng: np.random.Generator) -> Iterator[Rows]:
    """Groups of at least `rows` rows (the last one may be smaller), each shuffled."""
    held: list[Rows] = []
    for group in groups:
        held.append(group)
        if sum(map(count_rows, held)) >= rows:
            yield _permute(held, rng)
            held = []
    if held:
        yield _permute(held, rng)


def count_rows(group: Mapping[str, np.ndarray[Any, Any]]) -> int:
    """The number of rows."""
    return len(next(iter(group.values())))


def _permute(groups: list[Rows], rng: np.random.Generator) -> Rows:
    joined = _join(groups)
    order = rng.permutation(count_rows(joined))
    return {name: column[order] for name, column in joined.items()}


def _join(groups: list[Rows]) -> Rows:
    if len(groups) == 1:
        return groups[0]
    return {name: np.concatenate([group[name] for group in groups]) for name in groups[0]}
