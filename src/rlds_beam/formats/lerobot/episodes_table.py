"""meta/episodes and meta/tasks.parquet of v3.0: the location, tasks, statistics and fields of each episode."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_beam import storage
from rlds_beam.formats.lerobot import layout, statistics
from rlds_beam.formats.lerobot.episode_numbers import EpisodeNumbers, features_statistics
from rlds_beam.formats.lerobot.features import LerobotFeature
from rlds_beam.formats.lerobot.frame_format import FrameFormat
from rlds_beam.formats.lerobot.range_facts import RangeFacts
from rlds_beam.formats.lerobot.tables import lists

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

Array = np.ndarray[Any, Any]


ROW_GROUP_BYTES = 64 << 20
"""Bytes of range tables to hold in memory before writing them as a row group."""


class EpisodesTables:
    """Writes the tables (`metadata.EpisodesFiles`)."""

    def __init__(self, directory: str, frame_format: FrameFormat):
        self._directory, self._format, self._place = directory, frame_format, 0
        self._tables: list[pa.Table] = []
        self._file = contextlib.ExitStack()
        self._writer: pq.ParquetWriter | None = None

    def add(self, place: int, number: int, facts: RangeFacts, numbers: EpisodeNumbers) -> None:
        if place // layout.RANGES_IN_EPISODES > self._place:
            self._close()
            self._place = place // layout.RANGES_IN_EPISODES
        if facts.frames:
            self._tables.append(episodes_table(self._format, number, facts, numbers))
            if sum(table.nbytes for table in self._tables) >= ROW_GROUP_BYTES:
                self._write()

    def finish(self, tasks: Sequence[str]) -> None:
        self._close()
        _write_parquet(storage.below(self._directory, layout.TASKS), tasks_table(tasks))

    def _write(self) -> None:
        """Writes the tables in memory as a row group."""
        import pyarrow as pa
        import pyarrow.parquet

        place = layout.place(self._place)
        table = pa.concat_tables(self._tables)
        for name, value in place.items():
            table = table.append_column(f"meta/episodes/{name}", pa.array(np.full(table.num_rows, value), pa.int64()))
        if self._writer is None:
            path = storage.below(self._directory, layout.EPISODES_PATH.format(**place))
            file = self._file.enter_context(storage.writing(path))
            self._writer = self._file.enter_context(
                pyarrow.parquet.ParquetWriter(file, table.schema, write_page_checksum=True)
            )
        self._writer.write_table(table)
        self._tables = []

    def _close(self) -> None:
        with self._file:
            if self._tables:
                self._write()
        self._writer = None


def episodes_table(frame_format: FrameFormat, number: int, facts: RangeFacts, numbers: EpisodeNumbers) -> pa.Table:
    """The episodes of the range with this file number, without the location of these rows themselves."""
    import pyarrow as pa

    count = len(facts.lengths)
    stops = numbers.frame + np.cumsum(facts.lengths)
    columns: dict[str, Any] = {
        "episode_index": pa.array(numbers.episode + np.arange(count)),
        "tasks": pa.array([[facts.tasks[i] for i in own] for own in facts.episode_tasks()], pa.list_(pa.string())),
        "length": pa.array(facts.lengths),
    }
    columns |= {f"data/{name}": pa.array(np.full(count, n)) for name, n in layout.place(number).items()}
    columns |= {"dataset_from_index": pa.array(stops - facts.lengths), "dataset_to_index": pa.array(stops)}
    ends = np.cumsum(facts.lengths)  # in the range, whose videos begin with its first frame
    for feature in frame_format.videos:
        place = layout.place(number).items()
        columns |= {f"videos/{feature.name}/{name}": pa.array(np.full(count, n)) for name, n in place}
        columns[f"videos/{feature.name}/from_timestamp"] = pa.array((ends - facts.lengths) / frame_format.fps)
        columns[f"videos/{feature.name}/to_timestamp"] = pa.array(ends / frame_format.fps)
    columns["episode_key"] = pa.array(facts.keys, pa.string())
    columns |= {name: facts.columns[name] for name in frame_format.features.columns}
    return pa.table({**columns, **_statistics(frame_format.features.features, facts, numbers)})


def _statistics(features: Sequence[LerobotFeature], facts: RangeFacts, numbers: EpisodeNumbers) -> dict[str, pa.Array]:
    """`stats/<feature>/<statistic>`, as lists in the shape of the feature."""
    import pyarrow as pa

    columns: dict[str, pa.Array] = {}
    for name, values, shape, counts in features_statistics(features, facts, numbers):
        for i, statistic in enumerate(statistics.STATISTICS):
            flat = pa.array(np.ascontiguousarray(values[:, i]).reshape(-1))
            columns[f"stats/{name}/{statistic}"] = lists(flat, (len(values), *shape))
        columns[f"stats/{name}/count"] = lists(pa.array(counts), (len(counts), 1))
    return columns


def tasks_table(tasks: Sequence[str]) -> pa.Table:
    """`tasks.parquet`: a pandas table with the index `task`."""
    import pyarrow as pa

    def column(name: str, kind: str, numpy: str) -> Mapping[str, Any]:
        return {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": numpy, "metadata": None}

    of_index = {"name": None, "field_name": None, "pandas_type": "unicode", "numpy_type": "object",
                "metadata": {"encoding": "UTF-8"}}  # fmt: skip
    pandas = {
        "index_columns": ["task"], "column_indexes": [of_index],
        "columns": [column("task_index", "int64", "int64"), column("task", "unicode", "object")],
        "attributes": {}, "creator": {"library": "pyarrow", "version": pa.__version__}, "pandas_version": "2.2.0",
    }  # fmt: skip
    table = pa.table({"task_index": pa.array(range(len(tasks)), pa.int64()), "task": pa.array(tasks, pa.string())})
    return table.replace_schema_metadata({b"pandas": json.dumps(pandas).encode()})


def _write_parquet(path: str, table: pa.Table) -> None:
    import pyarrow.parquet

    buffer = io.BytesIO()
    pyarrow.parquet.write_table(table, buffer, write_page_checksum=True)
    storage.write_bytes(path, buffer.getvalue())
