"""meta/*.jsonl of v2.1: the length, tasks and statistics of each episode, and the tasks.

episodes.jsonl         {"episode_index": 0, "tasks": ["push"], "length": 41, "episode_key": ..., fields of the episode}
episodes_stats.jsonl   {"episode_index": 0, "stats": {"action": {"min": [...], "max": ..., "mean", "std", "count"}}}
tasks.jsonl            {"task_index": 0, "task": "push"}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from rlds_beam import storage
from rlds_beam.formats.lerobot import layout, statistics
from rlds_beam.formats.lerobot.episode_numbers import EpisodeNumbers, FeatureStatistics, features_statistics
from rlds_beam.formats.lerobot.frame_format import FrameFormat
from rlds_beam.formats.lerobot.range_facts import RangeFacts
from rlds_beam.output.shards import ShardWriter

_STATISTICS = ("min", "max", "mean", "std", "count")
"""The statistics of v2.1."""


class EpisodesLines:
    """Writes the JSON lines (`metadata.EpisodesFiles`)."""

    def __init__(self, directory: str, frame_format: FrameFormat):
        self._directory, self._features = directory, frame_format.features
        self._episodes, self._stats = (
            ShardWriter(storage.below(directory, name)) for name in (layout.EPISODES_JSONL, layout.EPISODES_STATS_JSONL)
        )

    def add(self, place: int, number: int, facts: RangeFacts, numbers: EpisodeNumbers) -> None:
        del place, number
        if not facts.frames:
            return
        known = facts.columns.select(list(self._features.columns)).to_pylist()
        features = [one for one in features_statistics(self._features.features, facts, numbers) if _is_known(one)]
        episodes, stats = [], []
        for i, (key, length, own) in enumerate(
            zip(facts.keys, facts.lengths.tolist(), facts.episode_tasks(), strict=True)
        ):
            index = {"episode_index": numbers.episode + i}
            tasks = [facts.tasks[task] for task in own]
            columns = known[i] if known else {}
            episodes.append({**index, "tasks": tasks, "length": length, "episode_key": key, **columns})
            stats.append({**index, "stats": {one.name: _statistics(one, i) for one in features}})
        self._episodes.write(_lines(episodes), 0)
        self._stats.write(_lines(stats), 0)

    def finish(self, tasks: Sequence[str]) -> None:
        self._episodes.commit()
        self._stats.commit()
        lines = _lines({"task_index": i, "task": task} for i, task in enumerate(tasks))
        storage.write_bytes(storage.below(self._directory, layout.TASKS_JSONL), b"".join(lines))


def _is_known(feature: FeatureStatistics) -> bool:
    """Whether LeRobot 0.3 accepts the statistics: a feature with `image` in its name must have three channels."""
    return "image" not in feature.name or feature.shape == (3, 1, 1)


def _statistics(feature: FeatureStatistics, episode: int) -> dict[str, Any]:
    content = statistics.to_json(feature.values[episode], int(feature.counts[episode]), feature.shape)
    return {name: content[name] for name in _STATISTICS}


def _lines(content: Iterable[Any]) -> list[bytes]:
    return [json.dumps(one, ensure_ascii=False).encode() + b"\n" for one in content]
