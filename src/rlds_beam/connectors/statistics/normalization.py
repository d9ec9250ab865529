"""Scales fields by statistics of the whole dataset, also as RLlib's observation filter does."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlds_beam.connectors.base import Batch, edit_each
from rlds_beam.connectors.fields import StepFields, find_agent
from rlds_beam.connectors.fitted_connector import FittedConnector
from rlds_beam.connectors.statistics.used_statistics import (
    EPSILON,
    Leaf,
    Rows,
    RowStatistics,
    array,
    float_dtype,
    loaded_statistics,
    numbers,
    pick_statistics,
    valid_rows,
)
from rlds_beam.episodes.columns import all_below, is_numeric
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.errors import UsageError
from rlds_beam.text import did_you_mean
from rlds_beam.typing import Array

_NEEDED = {
    "normal": ("mean", "std", "min", "max"),
    "bounds": ("min", "max"),
    "bounds_q99": ("q01", "q99", "min", "max"),
}


@dataclasses.dataclass(frozen=True)
class Normalize(FittedConnector):
    """Scales step fields by statistics of the dataset, as Octo and OpenVLA do.

        mode          y                                                 for x = [-2, 0, 2]
        normal        (x - mean) / (std + 1e-8)                         [-1.22, 0, 1.22]
        bounds        2 (x - min) / (max - min + 1e-8) - 1              [-1, 0, 1]
        bounds_q99    2 (x - q01) / (q99 - q01 + 1e-8) - 1              [-1, 0, 1], clipped

        action (T+1, 3)    mask [T, T, F]       y (T+1, 3)
        x0 y0 open                              scaled, scaled, unchanged

    Floats keep their dtype; other numbers become float32. By default the statistics are computed from the dataset
    before anything is written, without the void actions of last steps. The method `inverse` undoes the scaling. Must
    come before connectors that add columns.

    Attributes:
      fields: the step fields; a name is a leaf (`action`) or covers everything below it (`observation`).
      mode: `normal`, `bounds`, or `bounds_q99`.
      mask: field -> whether to scale each dimension: `{action: [true, true, false]}`; other dimensions do not change.
      constant: the result for a dimension with a single value in the whole dataset: `zero`, as in OpenVLA (for bounds
        also if the mask excludes it); or `low`, as in Octo (-1 for bounds, 0 for `normal`).
      clip: whether to clip bounds modes to [-1, 1].
      statistics: a `stats.json` from `rlds-beam stats` (path or content); by default the dataset's own statistics.
    """

    reads_images = False

    fields: Sequence[str]
    mode: str = "bounds_q99"
    mask: Mapping[str, Sequence[bool]] = dataclasses.field(default_factory=dict)
    constant: str = "zero"
    clip: bool = True
    statistics: str | Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.fields, str):
            object.__setattr__(self, "fields", (self.fields,))
        for name, known in (("mode", tuple(_NEEDED)), ("constant", ("zero", "low"))):
            if getattr(self, name) not in known:
                raise UsageError(f"Normalize: {name}={getattr(self, name)}, expected one of {', '.join(known)}")
        if self.statistics is not None:
            leaves = loaded_statistics(self.statistics, "Normalize")
            used = {path: leaves[path] for field in self.fields for path in all_below(leaves, field)}
            object.__setattr__(self, "statistics", {"fields": pick_statistics(used, _NEEDED[self.mode], "Normalize")})

    @property
    def fitted(self) -> bool:
        return self.statistics is not None

    def accumulator(self) -> RowStatistics:
        return RowStatistics(self._rows)

    def fit(self, result: Mapping[str, Mapping[str, Leaf]]) -> Normalize:
        return dataclasses.replace(self, statistics={"fields": result.get("", {})})

    def transform(self, batch: Batch) -> Batch:
        return edit_each(self, batch, self._normalize)

    def inverse(self, values: Any, field: str = "action") -> Array:
        """Returns the unscaled values of scaled `values` (..., D); clipped ones become the bound.

        Raises:
          UsageError: the connector is not fitted, or has no statistics of the field.
        """
        if not self.fitted:
            raise UsageError("Normalize: no statistics yet: give a stats.json, or fit it to the dataset")
        leaf, y = self._leaf(field), np.asarray(values)
        shift, scale, middle = self._line(leaf)
        x = np.where(self._mask(field), (y + middle) * scale + shift, y)
        return np.where(self._constant(field), array(leaf, "min"), x).astype(float_dtype(y))

    def _normalize(self, episode: Episode, fields: StepFields) -> Episode:
        return episode.with_columns({path: self._scale(path, episode.steps[path]) for path in self._paths(episode)})

    def _scale(self, path: str, column: Column) -> Array:
        leaf, x = self._leaf(path), numbers(column, path, "Normalize")
        shift, scale, middle = self._line(leaf)
        if shift.shape != x.shape[1:]:
            raise UsageError(
                f"Normalize: the statistics of {path} have shape {shift.shape}, but a step has {x.shape[1:]}"
            )
        y = x.astype(np.float64)
        y -= shift
        y /= scale
        if middle:
            y -= middle
            if self.clip:
                np.clip(y, -1, 1, out=y)
        if path in self.mask:
            y = np.where(self._mask(path), y, x)
        constant = self._constant(path)
        if constant.any():
            y[..., constant] = 0.0 if self.constant == "zero" else -middle
        return y.astype(float_dtype(x))

    def _line(self, leaf: Leaf) -> tuple[Array, Array, float]:
        """The shift, scale, and middle of `y = (x - shift) / scale - middle`."""
        if self.mode == "normal":
            return array(leaf, "mean"), array(leaf, "std") + EPSILON, 0.0
        low, high = (array(leaf, name) for name in _NEEDED[self.mode][:2])
        return low, (high - low + EPSILON) / 2, 1.0

    def _leaf(self, path: str) -> Leaf:
        assert isinstance(self.statistics, Mapping)
        known = self.statistics["fields"]
        if path not in known:
            near = did_you_mean(path, known)
            raise UsageError(f"Normalize: no statistics of {path}, only of {', '.join(known) or 'nothing'}{near}")
        return known[path]  # type: ignore[no-any-return]

    def _mask(self, path: str) -> Array:
        mask, shape = np.asarray(self.mask.get(path, True), bool), np.shape(self._leaf(path)["min"])
        if mask.shape not in ((), shape):
            raise UsageError(f"Normalize: the mask of {path} has shape {mask.shape}, but a step has {shape}")
        return mask

    def _constant(self, path: str) -> Array:
        """Which dimensions become a constant. For bounds, OpenVLA sets masked constant dimensions to zero as well."""
        leaf = self._leaf(path)
        constant: Array = array(leaf, "min") == array(leaf, "max")
        also_masked = self.constant == "zero" and self.mode != "normal"
        return constant if also_masked else constant & self._mask(path)

    def _rows(self, batch: Batch) -> Rows:
        for episode in batch.episodes:
            for path in self._paths(episode):
                yield "", path, numbers(valid_rows(episode, path, batch.fields), path, "Normalize")

    def _paths(self, episode: Episode) -> list[str]:
        """The leaves to scale. Images, text, and bools below a name are skipped."""
        paths: dict[str, None] = {}
        for field in self.fields:
            matching = all_below(episode.steps, field)
            if not matching:
                near = did_you_mean(field, episode.steps)
                raise UsageError(f"Normalize: the steps have no {field}, only {', '.join(episode.steps)}{near}")
            paths |= dict.fromkeys(path for path in matching if path == field or is_numeric(episode.steps[path]))
        for path in self.mask:
            if path not in paths:
                raise UsageError(f"Normalize: mask has {path}, which is not one of {', '.join(paths)}")
        return list(paths)


_FILTER_STATISTICS = ("mean", "std", "count")


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
            object.__setattr__(
                self, "statistics", {"fields": pick_statistics(leaves, _FILTER_STATISTICS, "MeanStdFilter")}
            )

    @property
    def fitted(self) -> bool:
        return self.statistics is not None

    def accumulator(self) -> RowStatistics:
        return RowStatistics(self._rows)

    def fit(self, result: Mapping[str, Mapping[str, Leaf]]) -> MeanStdFilter:
        return dataclasses.replace(
            self,
            statistics={
                "agents": {
                    agent: pick_statistics(leaves, _FILTER_STATISTICS, "MeanStdFilter")
                    for agent, leaves in result.items()
                }
            },
        )

    def transform(self, batch: Batch) -> Batch:
        return edit_each(self, batch, self._filter)

    def _filter(self, episode: Episode, fields: StepFields) -> Episode:
        paths = _floats(episode, fields.obs)
        return episode.with_columns({path: self._scale(episode, path) for path in paths})

    def _scale(self, episode: Episode, path: str) -> Array:
        assert isinstance(self.statistics, Mapping)
        agent, x = find_agent(episode), np.asarray(episode.steps[path])
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
                yield find_agent(episode), path, np.asarray(valid_rows(episode, path, batch.fields))


def _floats(episode: Episode, field: str) -> list[str]:
    columns = ((path, episode.steps[path]) for path in all_below(episode.steps, field))
    return [path for path, column in columns if is_numeric(column) and np.asarray(column).dtype.kind in "fV"]
