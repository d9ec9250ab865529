"""Read Minari's datasets in Arrow and Parquet: a directory for each episode.

    data/metadata.json
    data/0/part-0.arrow  metadata.json        rows 0 .. T: the last one holds the last observation, and nulls or zeros
    data/1/...

Episodes are read into the array names of Minari's HDF5 files, so both share the rest of the code.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from rlds_beam import storage
from rlds_beam.encoding import arrow_columns
from rlds_beam.encoding.base import Damage
from rlds_beam.encoding.checked_json import read_json
from rlds_beam.encoding.parquet_files import open_parquet, read_all
from rlds_beam.errors import UsageError
from rlds_beam.formats.arrays.array_episodes import ArrayFormat, Arrays
from rlds_beam.reading.base import Shard
from rlds_beam.text import shorten
from rlds_beam.typing import Array

ARROW = ("arrow", "parquet")
"""The `data_format`s of Minari that are read here."""

_OF_TRANSITIONS = ("actions", "rewards", "terminations", "truncations")
_IGNORED = "episode_id"
_MAX_ROWS = 8
"""Maximum rows per byte of a file: each row has at least two flags."""
_MAX_MISSING = 10_000
"""Maximum number of missing episode directories: each is a rejected episode."""


@dataclasses.dataclass(frozen=True)
class MinariArrowFormat(ArrayFormat):
    """A Minari dataset of directories; its path is `metadata.json`.

    Attributes:
      kind: `arrow` or `parquet`.
      spaces: the space of each array, by its place (see `minari.source`).
    """

    kind: str
    spaces: Mapping[str, Mapping[str, Any]]
    name = "minari"

    def count(self, path: str) -> int:
        content = read_json(path)
        total = content.get("total_episodes") if isinstance(content, dict) else None
        if type(total) is not int or total < 0:
            raise UsageError(f"{path} is not valid Minari metadata: total_episodes is {shorten(total)}")
        there = len(storage.listdir(storage.split(path)[0]))
        if total - there > _MAX_MISSING:
            raise UsageError(f"{path}: total_episodes is {total:,}, but there are {there:,} files and directories")
        return total

    def episodes(self, path: str, start: int, stop: int) -> Iterator[Arrays | Damage]:
        folder = storage.split(path)[0]
        for i in range(start, stop):
            try:
                yield self.read_episode(storage.join(folder, str(i)))
            except (AttributeError, LookupError, OSError, TypeError, ValueError) as error:  # also from pyarrow
                yield Damage(i, i + 1, f"episode {i} cannot be read: {' '.join(str(error).split())}", b"")

    def shard(self, path: str) -> Shard:
        """The dataset as one shard, with the size of all files. Raises UsageError if its episode count is unknown."""
        folder, count = storage.split(path)[0], self.count(path)
        there = [place for i in range(count) if storage.isdir(place := storage.join(folder, str(i)))]
        return Shard(0, path, sum(sum(storage.sizes(place).values()) for place in there), count)

    def read_episode(self, folder: str) -> dict[str, Array]:
        """The arrays of an episode by place. Raises OSError, ValueError, KeyError or TypeError for damaged data."""
        files = [storage.join(folder, name) for name in storage.listdir(folder) if name.endswith(f".{self.kind}")]
        if not files:
            raise OSError(f"{folder} has no .{self.kind} file")
        table = _read(files, self.kind)
        arrays: dict[str, Array] = {}
        for field, column in zip(table.schema, table.columns, strict=True):
            if field.name != _IGNORED:
                stop = len(table) - 1 if field.name in _OF_TRANSITIONS else len(table)
                self._add(arrays, field.name, field, _one(column)[:stop])
        return arrays

    def _add(self, arrays: dict[str, Array], place: str, field: Any, values: Any) -> None:
        import pyarrow as pa

        if values.null_count:
            raise ValueError(f"{place} has no value at {values.null_count} steps")
        if pa.types.is_struct(field.type):
            of_tuple = isinstance(self.spaces.get(place, {}).get("subspaces"), list)
            for i, below in enumerate(field.type):
                name = f"_index_{below.name}" if of_tuple else below.name
                self._add(arrays, f"{place}/{name}", below, values.field(i))
        elif pa.types.is_fixed_size_list(field.type) or pa.types.is_list(field.type):
            flat, listed = arrow_columns.flatten_lists(values)
            shape = self.spaces.get(place, {}).get("shape")
            if shape is None and field.metadata and b"shape" in field.metadata:
                shape = [int(size) for size in field.metadata[b"shape"].split(b",") if size]
            arrays[place] = _plain(flat).reshape(len(values), *(listed[1:] if shape is None else shape))
        else:
            arrays[place] = _plain(values)


def _plain(values: Any) -> Array:
    """Values without nulls, as an array; text and bytes as an object array of bytes."""
    import pyarrow as pa

    if not (pa.types.is_binary(values.type) or pa.types.is_string(values.type)):
        plain: Array = values.to_numpy(zero_copy_only=False)
        return plain
    texts = [v.encode() if isinstance(v, str) else v for v in values.to_pylist()]
    return np.fromiter(texts, object, len(texts))


def _read(files: list[str], kind: str) -> Any:
    import pyarrow as pa

    for file in files:
        storage.check_regular(file)
    if kind == "parquet":
        tables = [read_all(open_parquet(file, storage.size(file))) for file in files]
    else:
        tables = [pa.ipc.open_file(pa.memory_map(file)).read_all() for file in files]
    table, size = pa.concat_tables(tables), sum(map(storage.size, files))
    if len(table) > _MAX_ROWS * size:  # rows of nulls take no space
        raise OSError(f"it claims {len(table):,} rows in {size:,} bytes")
    table.validate(full=True)  # offsets in a damaged file may point anywhere in memory
    return table


def _one(column: Any) -> Any:
    """A column as one array."""
    import pyarrow as pa

    chunks = column.chunks
    return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)
