"""Statistics of the leaves of episodes: one pass, mergeable in any order."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np

from rlds_beam.connectors.fields import StepFields, transitions
from rlds_beam.connectors.quantiles import RELATIVE_ERROR, Distribution
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.images import EncodedImages

Array: TypeAlias = "np.ndarray[Any, Any]"

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}


@dataclasses.dataclass(frozen=True)
class LeafStatistics:
    """The values of one leaf of D dimensions, over N steps. Immutable, mergeable, picklable.

    Attributes:
      shape: of one step.
      count: N.
      mean, m2: float64 (D,), the mean, and the sum of squared differences from it (Chan, Golub and LeVeque 1979).
      low, high: float64 (D,), the smallest and largest values.
      zeros: int64 (D,), how many values are 0.
      distribution: for quantiles.
    """

    shape: tuple[int, ...]
    count: int
    mean: Array
    m2: Array
    low: Array
    high: Array
    zeros: Array
    distribution: Distribution

    @staticmethod
    def of(values: Array) -> LeafStatistics:
        """Of values (N, ...), N > 0."""
        flat = np.asarray(values).reshape(len(values), -1)
        wide = flat.astype(np.float64)
        mean = wide.mean(axis=0)
        return LeafStatistics(
            values.shape[1:], len(values), mean, np.square(wide - mean).sum(axis=0), wide.min(axis=0), wide.max(axis=0),
            np.count_nonzero(flat == 0, axis=0), Distribution.of(flat),
        )  # fmt: skip

    def merge(self, *others: LeafStatistics) -> LeafStatistics:
        """All of the values.

        Raises:
          ValueError: the shapes differ.
        """
        every = (self, *others)
        if any(one.shape != self.shape for one in others):
            raise ValueError(f"the shapes differ: {sorted({one.shape for one in every})}")
        counts = np.array([one.count for one in every])[:, None]
        means, total = np.stack([one.mean for one in every]), counts.sum()
        mean = (means * counts).sum(axis=0) / total
        m2 = np.sum([one.m2 for one in every], axis=0) + (counts * np.square(means - mean)).sum(axis=0)
        return LeafStatistics(
            self.shape, int(total), mean, m2,
            np.min([one.low for one in every], axis=0), np.max([one.high for one in every], axis=0),
            np.sum([one.zeros for one in every], axis=0),
            self.distribution.merge(*(one.distribution for one in others)),
        )  # fmt: skip

    @property
    def std(self) -> Array:
        """The standard deviation of the population, as `np.std`."""
        return np.sqrt(self.m2 / self.count)

    def to_json(self) -> dict[str, Any]:
        """`mean`, `std`, `min`, `max`, the quantiles, each in the shape of a step; `count`, and how exact they are."""
        quantiles = dict(zip(QUANTILES, self.distribution.quantiles(list(QUANTILES.values())), strict=True))
        values = {"mean": self.mean, "std": self.std, "min": self.low, "max": self.high, **quantiles}
        return {
            **{name: value.reshape(self.shape).tolist() for name, value in values.items()},
            "count": self.count,
            "zero": np.flatnonzero(self.zeros == self.count).tolist(),
            "constant": np.flatnonzero(self.low == self.high).tolist(),
            "quantile_error": 0.0 if self.distribution.exact else RELATIVE_ERROR,
        }


@dataclasses.dataclass(frozen=True)
class EpisodeStatistics:
    """The numbers of any number of episodes. Immutable, mergeable, picklable.

    Attributes:
      episodes, transitions: how many.
      leaves: by path. Images and text have none, and neither have the flags.
      lengths: transitions of each episode, one dimension.
      returns: the sum of the rewards of each episode.
    """

    episodes: int = 0
    transitions: int = 0
    leaves: Mapping[str, LeafStatistics] = dataclasses.field(default_factory=dict)
    lengths: LeafStatistics | None = None
    returns: LeafStatistics | None = None

    @staticmethod
    def of(episode: Episode, fields: StepFields | None = None) -> EpisodeStatistics:
        """Of one episode. Of the last step only the observation counts, since the action, reward and so on are void."""
        fields = fields or StepFields()
        count = transitions(episode)
        leaves = {}
        for path, column in episode.steps.items():
            rows = column if path.split("/")[0] == fields.obs.split("/")[0] else column[:count]
            if _is_numeric(path, rows):
                leaves[path] = LeafStatistics.of(np.asarray(rows))
        rewards = episode.steps.get(fields.rewards)
        total = (
            None
            if rewards is None
            else LeafStatistics.of(np.sum(np.asarray(rewards)[:count], dtype=np.float64, keepdims=True).reshape(1))
        )
        return EpisodeStatistics(1, count, leaves, LeafStatistics.of(np.array([count])), total)

    def merge(self, *others: EpisodeStatistics) -> EpisodeStatistics:
        """All of the episodes."""
        every = [one for one in (self, *others) if one.episodes]
        paths = dict.fromkeys(path for one in every for path in one.leaves)
        return EpisodeStatistics(
            sum(one.episodes for one in every),
            sum(one.transitions for one in every),
            {path: _merged(one.leaves[path] for one in every if path in one.leaves) for path in paths},
            _merged(one.lengths for one in every if one.lengths is not None) if every else None,
            _merged(one.returns for one in every if one.returns is not None)
            if any(one.returns for one in every)
            else None,
        )

    def to_json(self) -> dict[str, Any]:
        """`episodes`, `transitions`, `fields` by path, `episode_length`, `episode_return`."""
        return {
            "episodes": self.episodes,
            "transitions": self.transitions,
            "fields": {path: leaf.to_json() for path, leaf in self.leaves.items()},
            "episode_length": self.lengths and self.lengths.to_json(),
            "episode_return": self.returns and self.returns.to_json(),
        }


def _merged(parts: Iterable[LeafStatistics]) -> LeafStatistics:
    first, *others = parts
    return first.merge(*others) if others else first


def _is_numeric(path: str, column: Any) -> bool:
    if isinstance(column, EncodedImages) or path.startswith("is_") or not len(column):
        return False
    return bool(column.dtype.kind in "fiu" or column.dtype.name == "bfloat16")
