"""Rows of Parquet files written by `convert --to=columns`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlds_beam import storage
from rlds_beam.datasets.base import Indices, PerThread, by_file
from rlds_beam.datasets.record_files import IndexedRecordFile
from rlds_beam.encoding.arrow_columns import from_arrow
from rlds_beam.encoding.parquet_reading import naming_damage, verified_parquet
from rlds_beam.episodes.columns import concatenate
from rlds_beam.episodes.episode import Column
from rlds_beam.episodes.schema import Field

_GROUPS = 4
"""Decoded row groups cached per thread."""


class _Group(NamedTuple):
    """A row group and the columns read from it so far."""

    file: Any
    number: int
    columns: dict[str, Column]


@dataclasses.dataclass(frozen=True)
class ParquetRowReader:
    """Rows of Parquet files (`base.Rows`). A row is read with its row group, a few of which are cached.

    Attributes:
      files: the files, in order.
      stored: the columns.
    """

    files: tuple[IndexedRecordFile, ...]
    stored: tuple[Field, ...]

    @functools.cached_property
    def fields(self) -> Mapping[str, Field]:
        return {field.path: field for field in self.stored}

    def __len__(self) -> int:
        return int(self._starts[-1])

    @functools.cached_property
    def _starts(self) -> Indices:
        return np.concatenate([[0], np.cumsum([file.records for file in self.files])]).astype(np.int64)

    @functools.cached_property
    def _open(self) -> PerThread[Any]:
        return PerThread(_open)

    @functools.cached_property
    def _groups(self) -> PerThread[_Group]:
        return PerThread(self._group, _GROUPS)

    def __getstate__(self) -> dict[str, Any]:
        return {"files": self.files, "stored": self.stored}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    def read(self, indices: Indices, wanted: Sequence[str]) -> dict[str, Column]:
        parts: list[tuple[Indices, dict[str, Column]]] = []
        for i, which, numbers in by_file(indices, self._starts):
            path = self.files[i].path
            with naming_damage(path):
                starts = self._open[path].starts
                for group, some, rows in by_file(numbers, starts):
                    columns = self._columns(self._groups[f"{group}:{path}"], wanted)
                    parts.append((which[some], {name: columns[name][rows] for name in wanted}))
        if not parts:
            return {name: from_arrow(self.fields[name], _empty(self.fields[name])) for name in wanted}
        back = np.argsort(np.concatenate([which for which, _ in parts]), kind="stable")
        return {name: concatenate([columns[name] for _, columns in parts])[back] for name in wanted}

    def _group(self, name: str) -> _Group:
        number, _, path = name.partition(":")
        return _Group(self._open[path].file, int(number), {})

    def _columns(self, group: _Group, wanted: Sequence[str]) -> dict[str, Column]:
        missing = [name for name in wanted if name not in group.columns]
        if missing:
            table = group.file.read_row_group(group.number, columns=missing, use_threads=False)
            for name in missing:
                array = table.column(name).combine_chunks()
                group.columns[name] = from_arrow(self.fields[name], array)
        return group.columns


class _File(NamedTuple):
    """An open file and the index of each row group's first row."""

    file: Any
    starts: Indices


def _open(path: str) -> _File:
    file = verified_parquet(storage.open_read(path))
    counts = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
    return _File(file, np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))


def _empty(field: Field) -> Any:
    from rlds_beam.encoding.arrow_columns import arrow_schema

    return arrow_schema([field]).empty_table().column(0).combine_chunks()
