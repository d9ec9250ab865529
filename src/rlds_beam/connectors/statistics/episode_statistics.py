"""Computes statistics of a dataset in one pass: in total, per split, and per value of a field."""

from __future__ import annotations

import array
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from rlds_beam.checking.steps import compute_propensities
from rlds_beam.connectors.fields import StepFields
from rlds_beam.connectors.statistics.distributions import RELATIVE_ERROR, Moments, ValueDistribution, exact_rows
from rlds_beam.connectors.statistics.importance import TARGET, PropensityStatistics
from rlds_beam.episodes.columns import below, is_numeric, transitions
from rlds_beam.episodes.episode import Episode
from rlds_beam.errors import UsageError
from rlds_beam.typing import Array

_FIRST_ROWS = 1 << 10
"""The initial capacity of a builder, in steps."""

_PARTS = 8
"""The number of parts that a builder merges at once."""

BINS = 16
"""The number of bins of a histogram."""

_MAX_HISTOGRAMS = 64
"""Leaves of more dimensions have no histograms."""

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}


@dataclasses.dataclass(frozen=True)
class LeafStatistics:
    """The statistics of one leaf of D dimensions over N steps. Immutable, mergeable, picklable.

    Attributes:
      shape: the shape of one step.
      moments: the mean and variance, by part of the data.
      low, high: the smallest and largest values, float64 (D,).
      distribution: the distribution of the values, for quantiles.
    """

    shape: tuple[int, ...]
    moments: Moments
    low: Array
    high: Array
    distribution: ValueDistribution

    @staticmethod
    def from_values(values: Array, part: str = "") -> LeafStatistics:
        """Computes the statistics of values (N, ...), N > 0, of one part of the data."""
        builder = LeafBuilder(part)
        builder.add(np.asarray(values))
        return builder.finish()

    @staticmethod
    def of_columns(
        columns: Array, shape: tuple[int, ...], distribution: ValueDistribution, part: str = ""
    ) -> LeafStatistics:
        """Computes the statistics of contiguous columns (D, N), N > 0, of one part of the data."""
        # Adding 0.0 turns -0.0 into 0.0, so that the result does not depend on which of them comes first.
        low, high = (bound(axis=1).astype(np.float64) + 0.0 for bound in (columns.min, columns.max))
        return LeafStatistics(shape, Moments.from_columns(columns, part), low, high, distribution)

    def merge(self, *others: LeafStatistics) -> LeafStatistics:
        """Merges the statistics. Raises ValueError if the shapes differ."""
        every = (self, *others)
        if any(other.shape != self.shape for other in others):
            raise ValueError(f"the shapes differ: {sorted({summary.shape for summary in every})}")
        return LeafStatistics(
            self.shape,
            self.moments.merge(*(other.moments for other in others)),
            np.min([summary.low for summary in every], axis=0),
            np.max([summary.high for summary in every], axis=0),
            self.distribution.merge(*(other.distribution for other in others)),
        )

    @property
    def count(self) -> int:
        """The number of steps, N."""
        return self.moments.count

    @property
    def mean(self) -> Array:
        """The mean, float64 (D,)."""
        return np.where(self.low == self.high, self.low, self.moments.mean)

    @property
    def std(self) -> Array:
        """The population standard deviation, as `np.std`: float64 (D,)."""
        return np.where((self.low == self.high) & np.isfinite(self.low), 0.0, self.moments.std)

    def to_json(self) -> dict[str, Any]:
        """`mean`, `std`, `min`, `max`, and quantiles, each in the shape of a step; `count`, and the quantile error."""
        quantiles = dict(zip(QUANTILES, self.distribution.quantiles(list(QUANTILES.values())), strict=True))
        values = {"mean": self.mean, "std": self.std, "min": self.low, "max": self.high, **quantiles}
        return {
            **{name: value.reshape(self.shape).tolist() for name, value in values.items()},
            "count": self.count,
            "zero": np.flatnonzero((self.low == 0) & (self.high == 0)).tolist(),
            "constant": np.flatnonzero(self.low == self.high).tolist(),
            "quantile_error": 0.0 if self.distribution.exact else RELATIVE_ERROR,
        }

    def to_full_json(self) -> dict[str, Any]:
        """`to_json`, and `histogram`: the values in `BINS` equal bins from `min` to `max`, in the shape of a step."""
        if len(self.low) > _MAX_HISTOGRAMS:
            return self.to_json()
        counts = self.distribution.histogram(self.low, self.high, BINS)
        return {**self.to_json(), "histogram": counts.reshape(*self.shape, BINS).tolist()}


@dataclasses.dataclass(frozen=True)
class EpisodeStatistics:
    """The statistics of a set of episodes. Immutable, mergeable, picklable.

    Attributes:
      episodes, transitions: the numbers of episodes and transitions.
      leaves: path -> statistics; images, text, and flags have none.
      lengths: the number of transitions per episode.
      returns: the sum of rewards per episode.
      propensities: the statistics of recorded propensities, if there are any.
    """

    episodes: int = 0
    transitions: int = 0
    leaves: Mapping[str, LeafStatistics] = dataclasses.field(default_factory=dict)
    lengths: LeafStatistics | None = None
    returns: LeafStatistics | None = None
    propensities: PropensityStatistics | None = None

    @staticmethod
    def from_episodes(*episodes: Episode, fields: StepFields | None = None) -> EpisodeStatistics:
        """Computes the statistics of episodes. Of void last steps only observations count."""
        builder = StatisticsBuilder(fields)
        for episode in episodes:
            builder.add(episode)
        return builder.finish()

    def merge(self, *others: EpisodeStatistics) -> EpisodeStatistics:
        """Merges the statistics of disjoint sets of episodes."""
        every = [statistics for statistics in (self, *others) if statistics.episodes]
        leaves: dict[str, list[LeafStatistics]] = {}
        for statistics in every:
            for path, leaf in statistics.leaves.items():
                leaves.setdefault(path, []).append(leaf)
        lengths = [statistics.lengths for statistics in every if statistics.lengths]
        returns = [statistics.returns for statistics in every if statistics.returns]
        return EpisodeStatistics(
            sum(statistics.episodes for statistics in every),
            sum(statistics.transitions for statistics in every),
            {path: _merge(parts) for path, parts in sorted(leaves.items())},
            _merge(lengths) if lengths else None,
            _merge(returns) if returns else None,
            PropensityStatistics.merged([s.propensities for s in every if s.propensities]),
        )

    def to_json(self) -> dict[str, Any]:
        """`episodes`, `transitions`, `fields` by path, `episode_length`, `episode_return`; `propensities`, if any."""
        propensities = {} if self.propensities is None else {"propensities": self.propensities.to_json()}
        return {
            "episodes": self.episodes,
            "transitions": self.transitions,
            "fields": {path: leaf.to_full_json() for path, leaf in self.leaves.items()},
            "episode_length": self.lengths and self.lengths.to_full_json(),
            "episode_return": self.returns and self.returns.to_full_json(),
            **propensities,
        }


class LeafBuilder:
    """Collects the rows of a leaf and processes many at a time.

    Values are stored by dimension, because all computations run along one dimension at a time:

        rows (n, D)    a0 b0 c0  a1 b1 c1        room (D, N)    a0 a1 ...
                                                                b0 b1 ...
                                                                c0 c1 ...

    Args:
      part: the name of the part of the data that the rows are from (`Moments`).
    """

    def __init__(self, part: str = "") -> None:
        self._part = part
        self._room = np.empty((0, 0))
        self._shape: tuple[int, ...] = ()
        self._used = 0
        self._parts: list[LeafStatistics] = []

    def add(self, rows: Array) -> None:
        """Adds copies of rows (n, ...), n > 0. Raises ValueError if their shape differs from the rows before."""
        flat = rows.reshape(len(rows), -1)
        if flat.dtype.kind not in "fiu":  # bfloat16
            flat = flat.astype(np.float32)
        if not self._used and not self._parts:
            self._shape, self._most = rows.shape[1:], exact_rows(flat.shape[1])
            self._room = np.empty((flat.shape[1], min(self._most, _FIRST_ROWS)), flat.dtype)
        if rows.shape[1:] != self._shape:
            raise ValueError(f"the shapes differ: {sorted({rows.shape[1:], self._shape})}")
        while len(flat):
            if self._used == self._most:
                self._count()
            self._grow(self._used + len(flat), flat.dtype)
            taken = flat[: self._room.shape[1] - self._used]
            self._room[:, self._used : self._used + len(taken)] = taken.T
            self._used += len(taken)
            flat = flat[len(taken) :]

    def include(self, statistics: LeafStatistics) -> None:
        """Adds the statistics of other rows."""
        if not self._used:
            self._shape, self._most = statistics.shape, exact_rows(len(statistics.low))
            self._room = np.empty((len(statistics.low), 0), np.float16)
        self._parts.append(statistics)

    def finish(self) -> LeafStatistics:
        """The statistics of all rows so far; there must be at least one."""
        if not self._parts:
            columns = self._room[:, : self._used].copy()
            return LeafStatistics.of_columns(columns, self._shape, ValueDistribution.from_parts(columns), self._part)
        if self._used:
            self._count()
        self._parts = [_merge(self._parts)]
        return self._parts[0]

    def _count(self) -> None:
        columns = self._room[:, : self._used]
        distribution = ValueDistribution.counted(columns)
        self._parts.append(LeafStatistics.of_columns(columns, self._shape, distribution, self._part))
        self._used = 0
        if len(self._parts) == _PARTS:
            self._parts = [_merge(self._parts)]

    def _grow(self, rows: int, dtype: np.dtype[Any]) -> None:
        dimensions, now = self._room.shape
        if rows <= now and dtype == self._room.dtype:
            return
        room = np.empty((dimensions, min(self._most, max(2 * now, rows))), np.result_type(self._room.dtype, dtype))
        room[:, : self._used] = self._room[:, : self._used]
        self._room = room


class StatisticsBuilder:
    """Adds episodes one by one, and processes many steps at once so that short episodes are not slower.

    Args:
      fields: the names of the step fields.
      part: the name of the part of the data that the episodes are from (`Moments`).
    """

    def __init__(self, fields: StepFields | None = None, part: str = ""):
        self._fields, self._part = fields or StepFields(), part
        self._leaves: dict[str, LeafBuilder] = {}
        self._lengths = array.array("q")
        self._returns = array.array("d")
        self._propensities: list[PropensityStatistics] = []

    def add(self, episode: Episode) -> None:
        """Adds an episode. Copies only its numbers."""
        count, fields = transitions(episode), self._fields
        for path, column in episode.steps.items():
            rows = column if below(path, fields.obs) else column[:count]
            if len(rows) and not path.startswith("is_") and is_numeric(rows):
                if path not in self._leaves:
                    self._leaves[path] = LeafBuilder(self._part)
                self._leaves[path].add(np.asarray(rows))
        rewards = episode.steps.get(fields.rewards)
        if rewards is not None and is_numeric(rewards):
            self._returns.append(np.sum(np.asarray(rewards)[:count], dtype=np.float64))
        self._lengths.append(count)
        propensities = PropensityStatistics.from_episode(episode, fields, self._part)
        if propensities is not None:
            self._propensities.append(propensities)
        if len(self._propensities) > _PARTS * _PARTS:
            merged = PropensityStatistics.merged(self._propensities)
            self._propensities = [] if merged is None else [merged]

    def finish(self) -> EpisodeStatistics:
        """The statistics of all episodes so far."""
        if not self._lengths:
            return EpisodeStatistics()
        leaves = {path: leaf.finish() for path, leaf in sorted(self._leaves.items())}
        lengths, returns = np.array(self._lengths), np.array(self._returns)
        of_returns = LeafStatistics.from_values(returns, self._part) if len(returns) else None
        propensities = PropensityStatistics.merged(self._propensities)
        of_lengths = LeafStatistics.from_values(lengths, self._part)
        return EpisodeStatistics(len(lengths), int(lengths.sum()), leaves, of_lengths, of_returns, propensities)


def _merge(parts: Iterable[LeafStatistics]) -> LeafStatistics:
    first, *others = parts
    return first.merge(*others) if others else first


@dataclasses.dataclass(frozen=True)
class DatasetStatistics:
    """Statistics by split and group. Immutable, mergeable, picklable.

    Attributes:
      groups: (split, value of the `by` field) -> statistics; the value is empty without `by`.
    """

    groups: Mapping[tuple[str, str], EpisodeStatistics] = dataclasses.field(default_factory=dict)

    @staticmethod
    def from_episodes(episodes: Iterable[Episode], by: str | None = None) -> DatasetStatistics:
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
        groups: dict[tuple[str, str], list[EpisodeStatistics]] = {}
        for statistics in (self, *others):
            for key, of_group in statistics.groups.items():
                groups.setdefault(key, []).append(of_group)
        return DatasetStatistics({key: EpisodeStatistics().merge(*parts) for key, parts in sorted(groups.items())})

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
                chosen = {v: [s for key, s in self.groups.items() if key[place] == v] for v in values}
                content[name] = {v: EpisodeStatistics().merge(*parts).to_json() for v, parts in chosen.items()}
        return content


class Groups:
    """Adds episodes one by one, each to its group.

    Args:
      by: as for `DatasetStatistics.from_episodes`.
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
        value: Any = ""
        if (by := self._by) is not None:
            if by in episode.metadata:
                value = episode.metadata[by]
            elif by in episode.steps and len(episode):
                value = np.asarray(episode.steps[by])[0]
            else:
                fields = ", ".join((*episode.metadata, *episode.steps))
                raise UsageError(f"--by={by}: {episode.key} has no such field, only {fields}")
        key = episode.key.split, value.decode(errors="replace") if isinstance(value, bytes) else str(value)
        if key not in self._builders:
            self._builders[key] = StatisticsBuilder(part=self._part)
        self._builders[key].add(episode)

    def finish(self) -> DatasetStatistics:
        """The statistics of all episodes so far."""
        return DatasetStatistics({key: builder.finish() for key, builder in sorted(self._builders.items())})
