"""The episodes and tasks in `meta/`, with the location, tasks, statistics, and fields of each episode.

v3.0, tables:

    meta/episodes/chunk-000/file-000.parquet
    meta/tasks.parquet

v2.1, JSON lines:

    episodes.jsonl        {"episode_index": 0, "tasks": ["push"], "length": 41, "episode_key": ..., fields of episodes}
    episodes_stats.jsonl  {"episode_index": 0, "stats": {"action": {"min": [...], "max": ..., "mean", "std", "count"}}}
    tasks.jsonl           {"task_index": 0, "task": "push"}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlds_beam import storage
from rlds_beam.formats.lerobot import layout, statistics
from rlds_beam.formats.lerobot.features import INDEX_FEATURES, LerobotFeature
from rlds_beam.formats.lerobot.frames import FrameFormat, lists
from rlds_beam.formats.lerobot.ranges import RangeFacts, RangeNumbers
from rlds_beam.formats.lerobot.statistics import StatisticsGatherer
from rlds_beam.output.shards import ShardWriter
from rlds_beam.typing import Array

if TYPE_CHECKING:
    import pyarrow as pa

    from rlds_beam.formats.lerobot.totals import EarlierDataset


class FeatureStatistics(NamedTuple):
    """The statistics of a feature in each of E episodes, (E, statistics, D), of this shape in one, from (E,) counts."""

    name: str
    values: Array
    shape: tuple[int, ...]
    counts: Array


def features_statistics(
    features: Sequence[LerobotFeature], facts: RangeFacts, numbers: RangeNumbers
) -> Iterator[FeatureStatistics]:
    """The statistics of a range's episodes, by feature."""
    named = {feature.name: feature for feature in features}
    every = {**facts.statistics, **_of_indices(facts, numbers)}
    for name in (n for n in (*named, *INDEX_FEATURES) if n in every):
        feature = named.get(name)
        if feature is not None and feature.kind == "image":
            # An episode without a decoded frame has the statistics of an earlier one.
            samples = np.maximum(facts.samples[name], 1)
            yield FeatureStatistics(name, every[name], (feature.shape[-1], 1, 1), samples)
        else:
            shape = (feature.shape if feature is not None else ()) or (1,)
            yield FeatureStatistics(name, every[name], shape, facts.lengths)


def _of_indices(facts: RangeFacts, numbers: RangeNumbers) -> dict[str, Array]:
    """The statistics of the index features, (E, statistics, 1)."""
    ends = np.cumsum(facts.lengths)
    of_index = statistics.range_statistics(facts.lengths)
    of_episode = np.zeros_like(of_index)
    others = np.arange(of_index.shape[1]) != statistics.STATISTICS.index("std")
    of_index[:, others] += (numbers.first_frame + ends - facts.lengths)[:, None]
    of_episode[:, others] += numbers.first_episode + np.arange(len(ends))[:, None]
    tasks = StatisticsGatherer()
    for own in np.split(facts.frame_numbers(numbers)["task_index"], ends[:-1]) if len(ends) else ():
        tasks.add({"task_index": own}, {})
    return {"index": of_index[..., None], "episode_index": of_episode[..., None], **tasks.finish()}


class EpisodesTables:
    """Writes the tables of v3.0; those of an append are new files."""

    def __init__(self, directory: str, frame_format: FrameFormat, earlier: EarlierDataset | None = None):
        self._directory, self._format = directory, frame_format
        self._place = earlier.files if earlier is not None else 0
        self._tables: list[pa.Table] = []

    def add(self, place: int, number: int, facts: RangeFacts, numbers: RangeNumbers) -> None:
        """Adds the episodes of a range, the `place`th of the plan, whose files have this number."""
        if place // layout.RANGES_IN_EPISODES > self._place:
            self._write()
            self._place = place // layout.RANGES_IN_EPISODES
        if facts.frames:
            self._tables.append(episodes_table(self._format, number, facts, numbers))

    def finish(self, tasks: Sequence[str]) -> None:
        self._write()
        self._write_table(layout.TASKS, tasks_table(tasks))

    def _write(self) -> None:
        """Writes the file of the tables in memory."""
        import pyarrow as pa

        if self._tables:
            place, table = layout.place(self._place), pa.concat_tables(self._tables)
            for name, value in place.items():
                column = pa.array(np.full(table.num_rows, value), pa.int64())
                table = table.append_column(f"meta/episodes/{name}", column)
            self._write_table(layout.EPISODES_PATH.format(**place), table)
        self._tables = []

    def _write_table(self, name: str, table: pa.Table) -> None:
        import pyarrow.parquet

        with storage.writing(storage.below(self._directory, name)) as file:
            pyarrow.parquet.write_table(table, file, write_page_checksum=True)


def episodes_table(frame_format: FrameFormat, number: int, facts: RangeFacts, numbers: RangeNumbers) -> pa.Table:
    """The episodes of the range with this file number, without the location of these rows themselves."""
    import pyarrow as pa

    count = len(facts.lengths)
    stops = numbers.first_frame + np.cumsum(facts.lengths)
    columns: dict[str, Any] = {
        "episode_index": pa.array(numbers.first_episode + np.arange(count)),
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
    by_feature = features_statistics(frame_format.features.features, facts, numbers)
    return pa.table({**columns, **_table_statistics(by_feature)})


def _table_statistics(by_feature: Iterable[FeatureStatistics]) -> dict[str, pa.Array]:
    """`stats/<feature>/<statistic>`, as lists in the shape of the feature."""
    import pyarrow as pa

    columns: dict[str, pa.Array] = {}
    for name, values, shape, counts in by_feature:
        for i, statistic in enumerate(statistics.STATISTICS):
            flat = pa.array(np.ascontiguousarray(values[:, i]).reshape(-1))
            columns[f"stats/{name}/{statistic}"] = lists(flat, (len(values), *shape))
        columns[f"stats/{name}/count"] = lists(pa.array(counts), (len(counts), 1))
    return columns


def tasks_table(tasks: Sequence[str]) -> pa.Table:
    """`tasks.parquet`: a pandas table with the index `task`."""
    import pyarrow as pa

    def column(name: str | None, kind: str, numpy: str, metadata: Any = None) -> Mapping[str, Any]:
        return {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": numpy, "metadata": metadata}

    pandas = {
        "index_columns": ["task"],
        "column_indexes": [column(None, "unicode", "object", {"encoding": "UTF-8"})],
        "columns": [column("task_index", "int64", "int64"), column("task", "unicode", "object")],
        "attributes": {},
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "pandas_version": "2.2.0",
    }
    table = pa.table({"task_index": pa.array(range(len(tasks)), pa.int64()), "task": pa.array(tasks, pa.string())})
    return table.replace_schema_metadata({b"pandas": json.dumps(pandas).encode()})


class EpisodesLines:
    """Writes the JSON lines of v2.1, after those of the dataset that is appended to."""

    def __init__(self, directory: str, frame_format: FrameFormat, earlier: EarlierDataset | None = None):
        self._directory, self._features = directory, frame_format.features
        self._episodes, self._stats = (
            ShardWriter(storage.below(directory, name)) for name in (layout.EPISODES_JSONL, layout.EPISODES_STATS_JSONL)
        )
        if earlier is not None:
            self._episodes.write([earlier.read(layout.EPISODES_JSONL)], 0)
            self._stats.write([earlier.read(layout.EPISODES_STATS_JSONL)], 0)

    def add(self, place: int, number: int, facts: RangeFacts, numbers: RangeNumbers) -> None:
        del place, number
        if not facts.frames:
            return
        known = facts.columns.select(list(self._features.columns)).to_pylist()
        features = [
            feature
            for feature in features_statistics(self._features.features, facts, numbers)
            if "image" not in feature.name or feature.shape == (3, 1, 1)  # LeRobot 0.3 refuses others
        ]
        episodes, stats = [], []
        for i, (key, length, own) in enumerate(
            zip(facts.keys, facts.lengths.tolist(), facts.episode_tasks(), strict=True)
        ):
            index = {"episode_index": numbers.first_episode + i}
            tasks = [facts.tasks[task] for task in own]
            columns = known[i] if known else {}
            episodes.append({**index, "tasks": tasks, "length": length, "episode_key": key, **columns})
            own_stats: dict[str, Any] = {}
            for feature in features:
                content = statistics.to_json(feature.values[i], int(feature.counts[i]), feature.shape)
                own_stats[feature.name] = {name: content[name] for name in ("min", "max", "mean", "std", "count")}
            stats.append({**index, "stats": own_stats})
        self._episodes.write(_lines(episodes), 0)
        self._stats.write(_lines(stats), 0)

    def finish(self, tasks: Sequence[str]) -> None:
        self._episodes.commit()
        self._stats.commit()
        lines = _lines({"task_index": i, "task": task} for i, task in enumerate(tasks))
        storage.write_bytes(storage.below(self._directory, layout.TASKS_JSONL), b"".join(lines))


def _lines(content: Iterable[Any]) -> list[bytes]:
    return [json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in content]
