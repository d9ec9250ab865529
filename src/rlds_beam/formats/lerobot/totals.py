"""The totals of a LeRobot dataset: the content of info.json, stats.json, and README.md, the card that the Hub shows.

`EarlierDataset` has those of a finished dataset that `convert --append` adds to.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_beam import storage
from rlds_beam.connectors.statistics.episode_statistics import LeafBuilder
from rlds_beam.encoding import arrow_columns
from rlds_beam.encoding.parquet_files import naming_damage, verified_parquet
from rlds_beam.errors import UsageError
from rlds_beam.formats.lerobot import layout, statistics
from rlds_beam.formats.lerobot.features import INDEX_FEATURES, FeatureMap
from rlds_beam.formats.lerobot.frames import FrameFormat
from rlds_beam.formats.lerobot.metadata import Meta
from rlds_beam.formats.lerobot.ranges import RangeFacts, RangeNumbers
from rlds_beam.formats.lerobot.videos import EncodedAgain, video_info
from rlds_beam.text import count
from rlds_beam.typing import Array

if TYPE_CHECKING:
    import pyarrow as pa

    from rlds_beam.output.commits import EarlierOutput
    from rlds_beam.reading.base import WorkRange


_AT_ONCE = 64
"""Number of single-episode files to read at a time."""


@dataclasses.dataclass
class Totals:
    """Totals of the dataset so far."""

    tasks: dict[str, int] = dataclasses.field(default_factory=dict)
    task_frames: Array = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))
    lengths: list[Array] = dataclasses.field(default_factory=list)
    splits: dict[str, list[int]] = dataclasses.field(default_factory=dict)
    histograms: dict[str, Array] = dataclasses.field(default_factory=dict)
    samples: dict[str, int] = dataclasses.field(default_factory=dict)
    builders: dict[str, LeafBuilder] = dataclasses.field(default_factory=dict)
    encoded: dict[str, EncodedAgain] = dataclasses.field(default_factory=dict)
    frames: int = 0
    episodes: int = 0

    def add(self, split: str, facts: RangeFacts, numbers: RangeNumbers) -> None:
        """Adds a range."""
        self.tasks |= zip(facts.tasks, numbers.tasks, strict=True)
        self.lengths.append(facts.lengths)
        self.episodes += len(facts.lengths)
        self.frames += facts.frames
        self.splits.setdefault(split, [numbers.first_episode, 0])[1] = self.episodes
        for name, histogram in facts.histograms.items():
            self.histograms[name] = self.histograms.get(name, 0) + histogram
            self.samples[name] = self.samples.get(name, 0) + int(facts.samples[name].sum())
        for name, found in facts.encoded.items():
            if found.episodes:
                self.encoded[name] = self.encoded.get(name, EncodedAgain()).add(found)

    def add_numbers(self, files: Sequence[str], features: FeatureMap) -> None:
        """Adds the values in a range's Parquet files to the statistics."""
        shapes = {feature.name: feature.shape for feature in features.numbers}
        shapes |= {"timestamp": (), "frame_index": ()}
        for table in row_groups(files, [*shapes, "task_index"]):
            task_frames = np.bincount(table["task_index"].to_numpy(), minlength=len(self.tasks))
            task_frames[: len(self.task_frames)] += self.task_frames
            self.task_frames = task_frames
            for name, shape in shapes.items():
                values = arrow_columns.numbers(table[name]).reshape(table.num_rows, *shape)
                self.builders.setdefault(name, LeafBuilder()).add(values)


def row_groups(files: Sequence[str], columns: list[str]) -> Iterator[pa.Table]:
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


def dataset_statistics(features: FeatureMap, totals: Totals) -> dict[str, Any]:
    """The content of `stats.json`."""
    lengths, frames = np.concatenate(totals.lengths), totals.frames
    by_feature: dict[str, Any] = {}
    for feature in features.images:
        values = statistics.histogram_statistics(totals.histograms[feature.name], feature.levels)
        by_feature[feature.name] = statistics.to_json(values, totals.samples[feature.name], (feature.shape[-1], 1, 1))
    for name, builder in totals.builders.items():
        leaf = builder.finish()
        by_feature[name] = statistics.to_json(statistics.leaf_statistics(leaf), leaf.count, leaf.shape or (1,))
    for name, of_index in {
        "episode_index": _statistics_of_counts(lengths),
        "index": statistics.range_statistics(np.array([frames])).T,
        "task_index": _statistics_of_counts(totals.task_frames),
    }.items():
        by_feature[name] = statistics.to_json(of_index, frames, (1,))
    order = (*(feature.name for feature in features.features), *INDEX_FEATURES)
    return {name: by_feature[name] for name in order if name in by_feature}


def _statistics_of_counts(counts: Array) -> Array:
    """The statistics of 0, 1, ... that occur this often, (N,): (len(statistics.STATISTICS), 1)."""
    return statistics.histogram_statistics(counts[None], np.arange(len(counts), dtype=np.float64))


def features_info(frame_format: FrameFormat) -> dict[str, Any]:
    """The `features` of `info.json`."""
    features: dict[str, Any] = {feature.name: feature.info() for feature in frame_format.features.features}
    for feature in frame_format.videos:
        height, width, _ = feature.shape
        info = video_info(frame_format.video_encoding(feature), height, width, frame_format.fps)
        if feature.path in frame_format.copied:
            info = {**frame_format.copied[feature.path], "video.fps": frame_format.fps}
        features[feature.name] |= {"dtype": "video", "info": info}
    for name in INDEX_FEATURES:
        features[name] = {"dtype": "float32" if name == "timestamp" else "int64", "shape": [1], "names": None}
    return features


_CARD = """---
tags:
- LeRobot
- rlds
task_categories:
- robotics
configs:
- config_name: default
  data_files: data/*/*.parquet
---

# {name}

{episodes}, {frames} at {fps} frames per second, {tasks}.

Converted by rlds-beam: `plan.json` lists the source files and options, `meta/rlds_beam.json` the original
field of each feature, and `report.json` what was read, repaired and rejected.

```json
{features}
```
"""


def card(name: str, info: Mapping[str, Any]) -> str:
    """The text of the card."""
    return _CARD.format(
        name=name,
        episodes=count(info["total_episodes"], "episode"),
        fps=info["fps"],
        frames=count(info["total_frames"], "frame"),
        tasks=count(info["total_tasks"], "task"),
        features=json.dumps(info["features"], indent=4),
    )


@dataclasses.dataclass(frozen=True)
class EarlierDataset:
    """A finished dataset that is appended to. Picklable.

    Attributes:
      directory: its directory.
      ranges: the number of ranges of each split.
      files: the number of its files of meta/episodes (v3.0).
      entry: its entry in the manifest.
    """

    directory: str
    ranges: Mapping[str, int]
    files: int
    entry: Mapping[str, Any]

    @classmethod
    def from_output(cls, earlier: EarlierOutput, ranges: Sequence[WorkRange]) -> EarlierDataset:
        """Reads the metadata. Raises UsageError if the ranges cannot be added to it."""
        counts = Counter(commit.split for commit in earlier.commits)
        last = earlier.commits[-1].split
        if wrong := [work.split for work in ranges if work.split in counts and work.split != last]:
            raise UsageError(
                f"--append: LeRobot stores the episodes of a split together, so only {last}, the last one, can be "
                f"appended to, not {wrong[0]}: use --split={last}, or convert again"
            )
        plans = (earlier.plan.content, *earlier.plan.appended)
        before = (sum(split["ranges"][1] for split in content["splits"].values()) for content in plans)
        files = sum(map(layout.episodes_files, before))
        return cls(earlier.directory, dict(counts), files, earlier.manifest["lerobot"])

    def totals(self) -> Totals:
        """The totals of the dataset, without the statistics of numbers (`Totals.add_numbers`)."""
        meta = Meta.open(self.directory)
        pixels = self.entry.get("pixels", {})
        return Totals(
            tasks={meta.tasks[i]: i for i in range(len(meta.tasks))},
            lengths=[np.array([row.length for row in meta.episodes], np.int64)],
            splits={name: list(map(int, text.split(":"))) for name, text in meta.info["splits"].items()},
            histograms={name: np.array(entry["histogram"], np.int64) for name, entry in pixels.items()},
            samples={name: entry["samples"] for name, entry in pixels.items()},
            encoded={name: EncodedAgain(**found) for name, found in self.entry.get("encoded", {}).items()},
            frames=meta.info["total_frames"],
            episodes=meta.info["total_episodes"],
        )

    def read(self, name: str) -> bytes:
        """The content of one of its files."""
        with storage.open_read(storage.below(self.directory, name)) as file:
            return file.read()
