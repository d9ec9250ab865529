"""Write `meta/` of a LeRobot dataset: totals and statistics of all episodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from rlds_beam import storage
from rlds_beam.connectors.statistics.episode_statistics import LeafBuilder
from rlds_beam.encoding.parquet_reading import naming_damage, verified_parquet
from rlds_beam.formats.lerobot import statistics
from rlds_beam.formats.lerobot.copied_frames import EncodedAgain
from rlds_beam.formats.lerobot.episode_numbers import EpisodeNumbers
from rlds_beam.formats.lerobot.features import INDEX_FEATURES, FeatureMap
from rlds_beam.formats.lerobot.frame_format import FrameFormat
from rlds_beam.formats.lerobot.range_facts import RangeFacts

if TYPE_CHECKING:
    import pyarrow as pa

Array = np.ndarray[Any, Any]

_AT_ONCE = 64
"""Number of single-episode files to read at a time."""


class EpisodesFiles(Protocol):
    """Writes the episodes and tasks in `meta/`."""

    def add(self, place: int, number: int, facts: RangeFacts, numbers: EpisodeNumbers) -> None:
        """Adds the episodes of a range, the `place`th of the plan, whose files have this number."""

    def finish(self, tasks: Sequence[str]) -> None:
        """Completes the files."""


@dataclasses.dataclass
class Totals:
    """Totals of the dataset so far."""

    tasks: dict[str, int] = dataclasses.field(default_factory=dict)
    task_frames: list[int] = dataclasses.field(default_factory=list)
    lengths: list[Array] = dataclasses.field(default_factory=list)
    splits: dict[str, list[int]] = dataclasses.field(default_factory=dict)
    histograms: dict[str, Array] = dataclasses.field(default_factory=dict)
    samples: dict[str, int] = dataclasses.field(default_factory=dict)
    builders: dict[str, LeafBuilder] = dataclasses.field(default_factory=dict)
    encoded: dict[str, EncodedAgain] = dataclasses.field(default_factory=dict)
    frames: int = 0
    episodes: int = 0

    def add(self, split: str, facts: RangeFacts) -> EpisodeNumbers:
        """Adds a range. Returns the numbers of its episodes."""
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
        for name, found in facts.encoded.items():
            if found.episodes:
                self.encoded[name] = self.encoded.get(name, EncodedAgain()).add(found)
        return numbers

    def add_numbers(self, files: Sequence[str], features: FeatureMap) -> None:
        """Adds the values in a range's Parquet files to the statistics."""
        shapes = {feature.name: feature.shape for feature in features.numbers}
        shapes |= {"timestamp": (), "frame_index": ()}
        for table in _row_groups(files, list(shapes)):
            for name, shape in shapes.items():
                values = flat_values(table[name]).reshape(table.num_rows, *shape)
                self.builders.setdefault(name, LeafBuilder()).add(values)


def _row_groups(files: Sequence[str], columns: list[str]) -> Iterator[pa.Table]:
    """The row groups of Parquet files in order: single row groups of a large file, or several small files at once."""

    def read(path: str) -> Iterator[pa.Table]:
        with storage.open_read(path) as file, naming_damage(path):
            opened = verified_parquet(file)
            for group in range(opened.num_row_groups):
                yield opened.read_row_group(group, columns=columns, use_threads=False)

    if len(files) == 1:
        yield from read(files[0])
        return
    for first in range(0, len(files), _AT_ONCE):
        for tables in storage.at_once(lambda path: list(read(path)), files[first : first + _AT_ONCE], files[0]):
            yield from tables


def flat_values(column: Any) -> Array:
    """All numbers of a nested column, flattened."""
    import pyarrow as pa

    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    while isinstance(array, (pa.ListArray, pa.LargeListArray, pa.FixedSizeListArray)):
        array = array.flatten()
    return cast(Array, array.to_numpy(zero_copy_only=False))


def dataset_statistics(features: FeatureMap, totals: Totals) -> dict[str, Any]:
    """The content of `stats.json`."""
    lengths, frames = np.concatenate(totals.lengths), totals.frames
    by_feature: dict[str, Any] = {}
    for feature in features.images:
        values = statistics.image_statistics(totals.histograms[feature.name], feature.levels)
        by_feature[feature.name] = statistics.to_json(values, totals.samples[feature.name], (feature.shape[-1], 1, 1))
    for name, builder in totals.builders.items():
        leaf = builder.finish()
        by_feature[name] = statistics.to_json(statistics.leaf_statistics(leaf), leaf.count, leaf.shape or (1,))
    for name, of_index in {
        "episode_index": statistics.counted_statistics(np.arange(len(lengths)), lengths),
        "index": statistics.range_statistics(np.array(frames)),
        "task_index": statistics.counted_statistics(np.arange(len(totals.task_frames)), np.array(totals.task_frames)),
    }.items():
        by_feature[name] = statistics.to_json(of_index[:, None], frames, (1,))
    order = (*(feature.name for feature in features.features), *INDEX_FEATURES)
    return {name: by_feature[name] for name in order if name in by_feature}


def features_info(frame_format: FrameFormat) -> dict[str, Any]:
    """The `features` of `info.json`."""
    features: dict[str, Any] = {feature.name: feature.info() for feature in frame_format.features.features}
    for feature in frame_format.videos:
        height, width, _ = feature.shape
        info = frame_format.encoding_of(feature).info(height, width, frame_format.fps)
        if feature.path in frame_format.copied:
            info = {**frame_format.copied[feature.path], "video.fps": frame_format.fps}
        features[feature.name] |= {"dtype": "video", "info": info}
    for name in INDEX_FEATURES:
        features[name] = {"dtype": "float32" if name == "timestamp" else "int64", "shape": [1], "names": None}
    return features
