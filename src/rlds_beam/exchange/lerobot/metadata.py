"""`meta/` of a LeRobot dataset (v3.0), written when all ranges are finished."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from rlds_beam import storage
from rlds_beam.connectors.statistics import LeafBuilder
from rlds_beam.exchange.lerobot import layout, statistics
from rlds_beam.exchange.lerobot.card import card
from rlds_beam.exchange.lerobot.episodes_table import EpisodeNumbers, episodes_table
from rlds_beam.exchange.lerobot.features import INDEX_FEATURES, Feature
from rlds_beam.exchange.lerobot.range_facts import RangeFacts
from rlds_beam.output.files import to_json

if TYPE_CHECKING:
    import pyarrow as pa

    from rlds_beam.exchange.lerobot.output import LerobotOutput
    from rlds_beam.output.commits import RangeCommit

Array = np.ndarray[Any, Any]


@dataclasses.dataclass
class _Totals:
    """What is known of the dataset so far."""

    tasks: dict[str, int] = dataclasses.field(default_factory=dict)
    task_frames: list[int] = dataclasses.field(default_factory=list)
    lengths: list[Array] = dataclasses.field(default_factory=list)
    splits: dict[str, list[int]] = dataclasses.field(default_factory=dict)
    histograms: dict[str, Array] = dataclasses.field(default_factory=dict)
    samples: dict[str, int] = dataclasses.field(default_factory=dict)
    builders: dict[str, LeafBuilder] = dataclasses.field(default_factory=dict)
    frames: int = 0
    episodes: int = 0


def write_metadata(output: LerobotOutput, commits: Sequence[RangeCommit]) -> dict[str, Any]:
    """Writes all of `meta/`, info.json last; returns the manifest's entry.

    The files of ranges without a frame are removed: LeRobot has no empty ones.
    """
    totals = _Totals()
    tables: list[pa.Table] = []
    for place, commit in enumerate(commits):
        facts, number = output.facts([commit])[0], dict(output.first)[commit.split] + commit.index
        if facts.frames:
            tables.append(_add_range(output, commit, facts, number, totals))
        else:
            for one in (one for one in commit.files if one.role != "temporary"):
                _remove(output.directory, one.file)
        at_end = place + 1 == len(commits)
        if tables and (at_end or (place + 1) % layout.RANGES_IN_EPISODES == 0):
            _write_episodes(output, tables, place // layout.RANGES_IN_EPISODES)
            tables = []
        totals.splits.setdefault(commit.split, [totals.episodes - len(facts.lengths), 0])[1] = totals.episodes
    info = _info(output, totals)
    _write_parquet(storage.join(output.directory, layout.TASKS), tasks_table(list(totals.tasks)))
    stats = dataset_statistics(output, totals) if totals.frames else {}
    storage.write_text(storage.join(output.directory, layout.STATS), json.dumps(stats, indent=4) + "\n")
    storage.write_text(storage.join(output.directory, layout.FIELDS), to_json(output.features.to_json()))
    storage.write_text(storage.join(output.directory, layout.CARD), card(output.name, info))
    storage.write_text(
        storage.join(output.directory, layout.INFO), json.dumps(info, indent=4, ensure_ascii=False) + "\n"
    )
    return {"lerobot": {"version": layout.CODEBASE_VERSION, "episodes": totals.episodes, "tasks": len(totals.tasks)}}


def _add_range(output: LerobotOutput, commit: RangeCommit, facts: RangeFacts, number: int, totals: _Totals) -> pa.Table:
    """Adds a range to the totals; the rows of its episodes in meta/episodes."""
    own = np.array([totals.tasks.setdefault(text, len(totals.tasks)) for text in facts.tasks])
    totals.task_frames += [0] * (len(totals.tasks) - len(totals.task_frames))
    for task, frames in zip(own.tolist(), np.bincount(facts.frame_tasks, minlength=len(own)).tolist(), strict=True):
        totals.task_frames[task] += frames
    table = episodes_table(output, facts, EpisodeNumbers(totals.episodes, totals.frames, number, own))
    totals.lengths.append(facts.lengths)
    totals.episodes += len(facts.lengths)
    totals.frames += facts.frames
    for name, histogram in facts.histograms.items():
        totals.histograms[name] = totals.histograms.get(name, 0) + histogram
        totals.samples[name] = totals.samples.get(name, 0) + int(facts.samples[name].sum())
    _add_numbers(output, commit, totals.builders)
    return table


def _add_numbers(output: LerobotOutput, commit: RangeCommit, builders: dict[str, LeafBuilder]) -> None:
    """The numbers of a range's file, for their statistics."""
    import pyarrow.parquet

    shapes = {feature.name: feature.shape for feature in output.features.numbers}
    shapes |= {"timestamp": (), "frame_index": ()}
    with storage.open_read(storage.join(output.directory, commit.file)) as file:
        table = pyarrow.parquet.read_table(file, columns=list(shapes))
    for name, shape in shapes.items():
        values = flat_values(table[name]).reshape(table.num_rows, *shape)
        builders.setdefault(name, LeafBuilder()).add(values)


def flat_values(column: Any) -> Array:
    """All numbers of a column, however nested."""
    import pyarrow as pa

    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    while isinstance(array, (pa.ListArray, pa.LargeListArray, pa.FixedSizeListArray)):
        array = array.flatten()
    return cast(Array, array.to_numpy(zero_copy_only=False))


def dataset_statistics(output: LerobotOutput, totals: _Totals) -> dict[str, Any]:
    """`stats.json`."""
    lengths, frames = np.concatenate(totals.lengths), totals.frames
    found: dict[str, Any] = {}
    for feature in output.features.images:
        made = statistics.image_statistics(totals.histograms[feature.name])
        found[feature.name] = statistics.to_json(made, totals.samples[feature.name], (feature.shape[-1], 1, 1))
    for name, builder in totals.builders.items():
        leaf = builder.finish()
        found[name] = statistics.to_json(statistics.leaf_statistics(leaf), leaf.count, leaf.shape or (1,))
    for name, of_index in {
        "episode_index": statistics.counted_statistics(np.arange(len(lengths)), lengths),
        "index": statistics.range_statistics(frames),
        "task_index": statistics.counted_statistics(np.arange(len(totals.task_frames)), np.array(totals.task_frames)),
    }.items():
        found[name] = statistics.to_json(of_index[:, None], frames, (1,))
    return {name: found[name] for name in _order(output.features.features) if name in found}


def _order(features: Sequence[Feature]) -> list[str]:
    return [*(feature.name for feature in features), *INDEX_FEATURES]


def _info(output: LerobotOutput, totals: _Totals) -> dict[str, Any]:
    features: dict[str, Any] = {feature.name: feature.info() for feature in output.features.features}
    for feature in output.videos:
        assert output.encoding is not None
        height, width, _ = feature.shape
        info = output.encoding.info(height, width, output.fps)
        features[feature.name] |= {"dtype": "video", "info": info}
    for name in INDEX_FEATURES:
        features[name] = {"dtype": "float32" if name == "timestamp" else "int64", "shape": [1], "names": None}
    return {
        "codebase_version": layout.CODEBASE_VERSION,
        "robot_type": output.robot_type,
        "total_episodes": totals.episodes,
        "total_frames": totals.frames,
        "total_tasks": len(totals.tasks),
        "chunks_size": layout.CHUNK,
        "data_files_size_in_mb": layout.DATA_MB,
        "video_files_size_in_mb": layout.VIDEO_MB,
        "fps": output.fps,
        "splits": {split: f"{first}:{stop}" for split, (first, stop) in totals.splits.items()},
        "data_path": layout.DATA_PATH,
        "video_path": layout.VIDEO_PATH if output.videos else None,
        "features": features,
    }


def tasks_table(tasks: Sequence[str]) -> pa.Table:
    """`tasks.parquet`: a table of pandas with the index `task`."""
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


def _write_episodes(output: LerobotOutput, tables: Sequence[pa.Table], number: int) -> None:
    import pyarrow as pa

    place = layout.place(number)
    table = pa.concat_tables(tables)
    for name, value in place.items():
        table = table.append_column(f"meta/episodes/{name}", pa.array(np.full(table.num_rows, value), pa.int64()))
    _write_parquet(storage.join(output.directory, layout.EPISODES_PATH.format(**place)), table)


def _write_parquet(path: str, table: pa.Table) -> None:
    import pyarrow.parquet

    buffer = io.BytesIO()
    pyarrow.parquet.write_table(table, buffer)
    storage.write_bytes(path, buffer.getvalue())


def _remove(directory: str, file: str) -> None:
    parent, name = storage.split(storage.join(directory, file))
    storage.remove_files(parent, [name])
