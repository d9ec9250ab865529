"""`meta/` of a LeRobot dataset, written when all ranges are finished."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from rlds_beam import storage
from rlds_beam.connectors.statistics.episode_statistics import LeafBuilder
from rlds_beam.formats.lerobot import layout, statistics
from rlds_beam.formats.lerobot.card import card
from rlds_beam.formats.lerobot.episode_numbers import EpisodeNumbers
from rlds_beam.formats.lerobot.features import INDEX_FEATURES, Feature
from rlds_beam.formats.lerobot.range_facts import RangeFacts
from rlds_beam.output.files import to_json

if TYPE_CHECKING:
    import pyarrow as pa

    from rlds_beam.formats.lerobot.output import LerobotOutput
    from rlds_beam.output.commits import RangeCommit

Array = np.ndarray[Any, Any]

_AT_ONCE = 64
"""Files of single episodes that are read at a time."""


class EpisodesFiles(Protocol):
    """Writes what `meta/` says of the episodes, and the tasks."""

    def add(self, place: int, number: int, facts: RangeFacts, numbers: EpisodeNumbers) -> None:
        """Takes the episodes of a range: the `place`th of the plan, whose files have this number."""

    def finish(self, tasks: Sequence[str]) -> None:
        """Completes the files."""


@dataclasses.dataclass
class Totals:
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

    def add(self, split: str, facts: RangeFacts) -> EpisodeNumbers:
        """Adds a range; the numbers of its episodes."""
        own = np.array([self.tasks.setdefault(text, len(self.tasks)) for text in facts.tasks], np.int64)
        self.task_frames += [0] * (len(self.tasks) - len(self.task_frames))
        for task, frames in zip(own.tolist(), np.bincount(facts.frame_tasks, minlength=len(own)).tolist(), strict=True):
            self.task_frames[task] += frames
        numbers = EpisodeNumbers(self.episodes, self.frames, own)
        self.lengths.append(facts.lengths)
        self.episodes += len(facts.lengths)
        self.frames += facts.frames
        self.splits.setdefault(split, [numbers.episode, 0])[1] = self.episodes
        for name, histogram in facts.histograms.items():
            self.histograms[name] = self.histograms.get(name, 0) + histogram
            self.samples[name] = self.samples.get(name, 0) + int(facts.samples[name].sum())
        return numbers


def write_metadata(output: LerobotOutput, commits: Sequence[RangeCommit]) -> dict[str, Any]:
    """Writes all of `meta/`, info.json last; returns the manifest's entry.

    The files of ranges without a frame are removed: LeRobot has no empty ones.
    """
    totals, episodes = Totals(), output.episodes_files_writer()
    for place, commit in enumerate(commits):
        facts = output.facts(commit)
        numbers = totals.add(commit.split, facts)
        episodes.add(place, dict(output.first)[commit.split] + commit.index, facts, numbers)
        if facts.frames:
            _add_numbers(output, commit, totals.builders)
        else:
            for one in commit.kept:
                storage.remove_files(output.directory, [one.file])
    episodes.finish(list(totals.tasks))
    info = _info(output, totals)
    stats = output.stats(dataset_statistics(output, totals)) if totals.frames else {}
    if output.modality is not None:
        storage.write_text(storage.below(output.directory, layout.MODALITY), output.modality)
    storage.write_text(storage.below(output.directory, layout.STATS), json.dumps(stats, indent=4) + "\n")
    storage.write_text(storage.below(output.directory, layout.FIELDS), to_json(output.features.to_json()))
    storage.write_text(storage.below(output.directory, layout.CARD), card(output.name, info))
    storage.write_text(
        storage.below(output.directory, layout.INFO), json.dumps(info, indent=4, ensure_ascii=False) + "\n"
    )
    return {"lerobot": {"version": output.version, "episodes": totals.episodes, "tasks": len(totals.tasks)}}


def _add_numbers(output: LerobotOutput, commit: RangeCommit, builders: dict[str, LeafBuilder]) -> None:
    """The numbers in a range's files, for their statistics."""
    shapes = {feature.name: feature.shape for feature in output.features.numbers}
    shapes |= {"timestamp": (), "frame_index": ()}

    files = [storage.join(output.directory, one.file) for one in commit.files if one.role == "items"]
    for table in _row_groups(files, list(shapes)):
        for name, shape in shapes.items():
            values = flat_values(table[name]).reshape(table.num_rows, *shape)
            builders.setdefault(name, LeafBuilder()).add(values)


def _row_groups(files: Sequence[str], columns: list[str]) -> Iterator[pa.Table]:
    """The row groups of Parquet files, in order: of one large file one at a time, of small ones some files at once."""

    def read(path: str) -> Iterator[pa.Table]:
        import pyarrow.parquet

        with storage.open_read(path) as file:
            opened = pyarrow.parquet.ParquetFile(file)
            for group in range(opened.num_row_groups):
                yield opened.read_row_group(group, columns=columns, use_threads=False)

    if len(files) == 1:
        yield from read(files[0])
        return
    for first in range(0, len(files), _AT_ONCE):
        for tables in storage.at_once(lambda path: list(read(path)), files[first : first + _AT_ONCE], files[0]):
            yield from tables


def flat_values(column: Any) -> Array:
    """All numbers of a column, however nested."""
    import pyarrow as pa

    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    while isinstance(array, (pa.ListArray, pa.LargeListArray, pa.FixedSizeListArray)):
        array = array.flatten()
    return cast(Array, array.to_numpy(zero_copy_only=False))


def dataset_statistics(output: LerobotOutput, totals: Totals) -> dict[str, Any]:
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
        "index": statistics.range_statistics(np.array(frames)),
        "task_index": statistics.counted_statistics(np.arange(len(totals.task_frames)), np.array(totals.task_frames)),
    }.items():
        found[name] = statistics.to_json(of_index[:, None], frames, (1,))
    return {name: found[name] for name in _order(output.features.features) if name in found}


def _order(features: Sequence[Feature]) -> list[str]:
    return [*(feature.name for feature in features), *INDEX_FEATURES]


def _info(output: LerobotOutput, totals: Totals) -> dict[str, Any]:
    features: dict[str, Any] = {feature.name: feature.info() for feature in output.features.features}
    for feature in output.videos:
        assert output.encoding is not None
        height, width, _ = feature.shape
        info = output.encoding.info(height, width, output.fps)
        features[feature.name] |= {"dtype": "video", "info": info}
    for name in INDEX_FEATURES:
        features[name] = {"dtype": "float32" if name == "timestamp" else "int64", "shape": [1], "names": None}
    return {
        "codebase_version": output.version,
        "robot_type": output.robot_type,
        "total_episodes": totals.episodes,
        "total_frames": totals.frames,
        "total_tasks": len(totals.tasks),
        **output.info(totals.episodes),
        "fps": output.fps,
        "splits": {split: f"{first}:{stop}" for split, (first, stop) in totals.splits.items()},
        "features": features,
    }
