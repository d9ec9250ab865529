"""RLlib's observation filter, with statistics of the whole dataset."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from rlds_beam.connectors.base import Batch, edit_each
from rlds_beam.connectors.fields import StepFields, agent_of
from rlds_beam.connectors.fitting import FittedConnector
from rlds_beam.connectors.statistics.used_statistics import (
    EPSILON,
    Leaf,
    Rows,
    RowStatistics,
    array,
    loaded_statistics,
    pick_statistics,
    valid_rows,
)
from rlds_beam.episodes.columns import all_below, is_numeric
from rlds_beam.episodes.episode import Episode
from rlds_beam.errors import UsageError
from rlds_beam.typing import Array

_NEEDED = ("mean", "std", "count")


@dataclasses.dataclass(frozen=True)
class MeanStdFilter(FittedConnector):
    """Scales each agent's observations to mean 0 and standard deviation 1, and clips them.

        observation/a (T+1, D)    float     (x - mean) / (std + 1e-8), clipped to -10 and 10; the same dtype
        observation/b (T+1,)      int64     unchanged: integers are assumed to be categories

    RLlib's filter uses running statistics, so its output depends on the order of episodes. This connector uses the
    statistics of the whole dataset, to which RLlib's converge, with an unbiased `std` (n - 1), as in RLlib. It must
    come before connectors that add columns.

    Attributes:
      de_mean_to_zero: whether to subtract the mean.
      de_std_to_one: whether to divide by the standard deviation.
      clip_by_value: the largest absolute value; None does not clip.
      statistics: a `stats.json` from `rlds-beam stats` (path or content), the same for all agents; by default the
        dataset's own statistics, per agent.
    """

    de_mean_to_zero: bool = True
    de_std_to_one: bool = True
    clip_by_value: float | None = 10.0
    statistics: str | Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.statistics is not None and not (isinstance(self.statistics, Mapping) and "agents" in self.statistics):
            leaves = loaded_statistics(self.statistics, "MeanStdFilter")
            object.__setattr__(self, "statistics", {"fields": pick_statistics(leaves, _NEEDED, "MeanStdFilter")})

    @property
    def fitted(self) -> bool:
        return self.statistics is not None

    def accumulator(self) -> RowStatistics:
        return RowStatistics(self._rows)

    def fit(self, result: Mapping[str, Mapping[str, Leaf]]) -> MeanStdFilter:
        return dataclasses.replace(
            self,
            statistics={
                "agents": {agent: pick_statistics(leaves, _NEEDED, "MeanStdFilter") for agent, leaves in result.items()}
            },
        )

    def transform(self, batch: Batch) -> Batch:
        return edit_each(self, batch, self._filter)

    def _filter(self, episode: Episode, fields: StepFields) -> Episode:
        paths = _floats(episode, fields.obs)
        return episode.with_columns({path: self._scale(episode, path) for path in paths})

    def _scale(self, episode: Episode, path: str) -> Array:
        assert isinstance(self.statistics, Mapping)
        agent, x = agent_of(episode), np.asarray(episode.steps[path])
        known = self.statistics["fields"] if "fields" in self.statistics else self.statistics["agents"].get(agent, {})
        if path not in known:
            whose = f" for agent {agent}" if agent else ""
            raise UsageError(f"MeanStdFilter: no statistics of {path}{whose}, only of {', '.join(known) or 'nothing'}")
        leaf, y = known[path], x.astype(np.float64)
        if self.de_mean_to_zero:
            y = y - array(leaf, "mean")
        if self.de_std_to_one:
            unbiased = np.sqrt(leaf["count"] / max(leaf["count"] - 1, 1))
            y = y / (array(leaf, "std") * unbiased + EPSILON)
        if self.clip_by_value is not None:
            y = np.clip(y, -self.clip_by_value, self.clip_by_value)
        return y.astype(x.dtype)

    def _rows(self, batch: Batch) -> Rows:
        for episode in batch.episodes:
            for path in _floats(episode, batch.fields.obs):
                yield agent_of(episode), path, np.asarray(valid_rows(episode, path, batch.fields))


def _floats(episode: Episode, field: str) -> list[str]:
    columns = ((path, episode.steps[path]) for path in all_below(episode.steps, field))
    return [path for path, column in columns if is_numeric(column) and np.asarray(column).dtype.kind in "fV"]
