"""Computes statistics of a dataset: in total, per split, and per value of a field."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from rlds_beam.checking.propensities import compute_propensities
from rlds_beam.connectors.statistics.episode_statistics import EpisodeStatistics, StatisticsBuilder
from rlds_beam.connectors.statistics.propensity_statistics import TARGET
from rlds_beam.episodes.episode import Episode
from rlds_beam.errors import UsageError


@dataclasses.dataclass(frozen=True)
class DatasetStatistics:
    """Statistics by split and group. Immutable, mergeable, picklable.

    Attributes:
      groups: (split, value of the `by` field) -> statistics; the value is empty without `by`.
    """

    groups: Mapping[tuple[str, str], EpisodeStatistics] = dataclasses.field(default_factory=dict)

    @staticmethod
    def of(episodes: Iterable[Episode], by: str | None = None) -> DatasetStatistics:
        """Computes the statistics of episodes.

        Args:
          by: an episode field (`episode_metadata/task`), or a step field whose first value counts
            (`language_instruction`).
        """
        groups = Groups(by)
        for episode in episodes:
            groups.add(episode)
        return groups.finish()

    def merge(self, *others: DatasetStatistics) -> DatasetStatistics:
        """Merges the statistics of disjoint sets of episodes."""
        every = (self, *others)
        keys = sorted({key for summary in every for key in summary.groups})
        return DatasetStatistics(
            {
                key: EpisodeStatistics().merge(*(summary.groups[key] for summary in every if key in summary.groups))
                for key in keys
            }
        )

    @property
    def whole(self) -> EpisodeStatistics:
        """The statistics of all episodes."""
        return EpisodeStatistics().merge(*self.groups.values())

    def to_json(self) -> dict[str, Any]:
        """`EpisodeStatistics.to_json` of the whole, plus `splits` and `groups` in the same form, if there are any."""
        content = self.whole.to_json()
        for name, place in (("splits", 0), ("groups", 1)):
            values = sorted({key[place] for key in self.groups})
            if values != [""]:
                content[name] = {value: self._select(place, value).to_json() for value in values}
        return content

    def _select(self, place: int, value: str) -> EpisodeStatistics:
        return EpisodeStatistics().merge(
            *(statistics for key, statistics in self.groups.items() if key[place] == value)
        )


class Groups:
    """Adds episodes one by one, each to its group.

    Args:
      by: as for `DatasetStatistics.of`.
      target_propensity_fn: a `module:function` that returns the propensities of a target policy. They replace the step
        field `target_propensity`.
      part: the name of the part of the data that the episodes are from (`Moments`).
    """

    def __init__(self, by: str | None = None, target_propensity_fn: str | None = None, part: str = ""):
        self._by, self._target, self._part = by, target_propensity_fn, part
        self._builders: dict[tuple[str, str], StatisticsBuilder] = {}

    def add(self, episode: Episode) -> None:
        """Adds an episode.

        Raises:
          UsageError: it has no field `by`, or the target policy's propensities are invalid.
        """
        if self._target is not None:
            target = compute_propensities(self._target, episode, "--target_propensity_fn")
            episode = episode.with_columns({TARGET: target})
        key = episode.key.split, "" if self._by is None else _value(episode, self._by)
        if key not in self._builders:
            self._builders[key] = StatisticsBuilder(part=self._part)
        self._builders[key].add(episode)

    def finish(self) -> DatasetStatistics:
        """The statistics of all episodes so far."""
        return DatasetStatistics({key: builder.finish() for key, builder in sorted(self._builders.items())})


def _value(episode: Episode, field: str) -> str:
    if field in episode.metadata:
        value = episode.metadata[field]
    elif field in episode.steps and len(episode):
        value = np.asarray(episode.steps[field])[0]
    else:
        fields = ", ".join((*episode.metadata, *episode.steps))
        raise UsageError(f"--by={field}: {episode.key} has no such field, only {fields}")
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
