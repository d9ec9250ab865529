"""Number a range's episodes within the dataset, and compute their statistics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlds_beam.formats.lerobot import statistics
from rlds_beam.formats.lerobot.features import INDEX_FEATURES, LerobotFeature
from rlds_beam.formats.lerobot.gathered_statistics import GatheredStatistics
from rlds_beam.formats.lerobot.range_facts import RangeFacts

Array = np.ndarray[Any, Any]


class EpisodeNumbers(NamedTuple):
    """Numbers that a range does not know itself.

    Attributes:
      episode, frame: the numbers of its first episode and frame in the dataset.
      tasks: the number of each of its tasks in the dataset.
    """

    episode: int
    frame: int
    tasks: Array


class FeatureStatistics(NamedTuple):
    """The statistics of a feature in each of E episodes.

    Attributes:
      name: the name of the feature.
      values: the statistics, (E, statistics, D).
      shape: the shape of a statistic in one episode.
      counts: the number of values behind each, (E,).
    """

    name: str
    values: Array
    shape: tuple[int, ...]
    counts: Array


def features_statistics(
    features: Sequence[LerobotFeature], facts: RangeFacts, numbers: EpisodeNumbers
) -> Iterator[FeatureStatistics]:
    """The statistics of a range's episodes, by feature."""
    named = {feature.name: feature for feature in features}
    every = {**facts.statistics, **_of_indices(facts, numbers)}
    for name in (n for n in (*named, *INDEX_FEATURES) if n in every):
        feature = named.get(name)
        shape: tuple[int, ...] = (1,)
        counts = facts.lengths
        if feature is not None and feature.kind == "image":
            # An episode without a decoded frame has the statistics of an earlier one.
            shape, counts = (feature.shape[-1], 1, 1), np.maximum(facts.samples[name], 1)
        elif feature is not None:
            shape = feature.shape or (1,)
        yield FeatureStatistics(name, every[name], shape, counts)


def _of_indices(facts: RangeFacts, numbers: EpisodeNumbers) -> dict[str, Array]:
    """The statistics of the index features, (E, statistics, 1)."""
    ends = np.cumsum(facts.lengths)
    std = statistics.STATISTICS.index("std")
    of_index = statistics.range_statistics(facts.lengths)
    of_episode = np.zeros_like(of_index)
    first = numbers.frame + ends - facts.lengths
    others = np.arange(of_index.shape[1]) != std
    of_index[:, others] += first[:, None]
    of_episode[:, others] += numbers.episode + np.arange(len(ends))[:, None]
    tasks = GatheredStatistics()
    for own in np.split(numbers.tasks[facts.frame_tasks], ends[:-1]) if len(ends) else ():
        tasks.add({"task_index": own}, {})
    return {"index": of_index[..., None], "episode_index": of_episode[..., None], **tasks.finish()}
