"""Scales fields and advantages by statistics of the whole dataset, also as RLlib's observation filter does."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np

from rlds_beam import storage
from rlds_beam.connectors.base import Batch, Columns, FittedConnector, check_order, edit_each, find_agent, find_module
from rlds_beam.connectors.fields import StepFields, check_choices, match_fields
from rlds_beam.connectors.learner.columns import real_transitions
from rlds_beam.connectors.statistics.episode_statistics import LeafBuilder
from rlds_beam.encoding.metadata import parse_json
from rlds_beam.episodes.columns import all_below, below, is_numeric
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.errors import UsageError
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.text import did_you_mean
from rlds_beam.typing import Array

Leaf: TypeAlias = Mapping[str, Any]
"""The statistics of a field, as in `stats.json`: `mean`, `std`, `min`, and so on, each in the shape of a step."""

EPSILON = 1e-8
"""Added to divisors, as in Octo, OpenVLA, and RLlib's filter."""


def loaded_statistics(statistics: str | Mapping[str, Any], connector: str) -> Mapping[str, Leaf]:
    """Loads the statistics per field from a `stats.json`, given its path or content.

    Raises:
      UsageError: the file does not exist, or has no statistics.
    """
    where = f"{connector}: statistics"
    content: Any = statistics
    if isinstance(statistics, str):
        where = f"{where}={statistics}"
        content = parse_json(storage.read_text(statistics), where)
    if not isinstance(content, Mapping) or not isinstance(content.get("fields"), Mapping):
        raise UsageError(f"{where}: there are no `fields`; create the file with rlds-beam stats --output=FILE")
    return content["fields"]  # type: ignore[no-any-return]


def numbers(column: Column, path: str, connector: str) -> Array:
    """The column as an array; raises UsageError if it does not hold numbers."""
    if not is_numeric(column):
        what = "images" if isinstance(column, EncodedImages) else str(column.dtype)
        raise UsageError(f"{connector}: {path} holds {what}; only numbers have statistics")
    return np.asarray(column)


def float_dtype(values: Array) -> np.dtype[Any]:
    """The dtype of `values` if it is a float, else float32."""
    return cast("np.dtype[Any]", values.dtype) if values.dtype.kind == "f" else np.dtype(np.float32)


def pick_statistics(leaves: Mapping[str, Leaf], names: Sequence[str], connector: str) -> dict[str, dict[str, Any]]:
    """Keeps only the named statistics, because they become part of a job's plan."""
    for path, leaf in leaves.items():
        if missing := [name for name in names if name not in leaf]:
            raise UsageError(f"{connector}: the statistics of {path} lack {missing[0]}, but have {', '.join(leaf)}")
    return {path: {name: leaf[name] for name in names} for path, leaf in leaves.items()}


def array(leaf: Leaf, name: str) -> Array:
    """A statistic, float64, in the shape of a step."""
    return np.asarray(leaf[name], np.float64)


Rows: TypeAlias = "Iterable[tuple[str, str, Array]]"
"""Tuples of a group (an agent, a module), a name in it, and rows (N, ...)."""


class RowStatistics:
    """An `Accumulator` of the statistics of rows.

    Args:
      rows_of: a picklable function that returns the rows of a batch.
    """

    def __init__(self, rows_of: Callable[[Batch], Rows]):
        self._rows_of = rows_of
        self._builders: dict[tuple[str, str], LeafBuilder] = {}

    def add(self, batch: Batch) -> None:
        """Adds copies of the rows of one batch."""
        for group, name, rows in self._rows_of(batch):
            if len(rows):
                if (group, name) not in self._builders:
                    self._builders[group, name] = LeafBuilder()
                self._builders[group, name].add(rows)

    def merge(self, *others: RowStatistics) -> RowStatistics:
        """Merges the statistics."""
        merged = RowStatistics(self._rows_of)
        for statistics in (self, *others):
            for key, builder in statistics._builders.items():
                merged._builders.setdefault(key, LeafBuilder()).include(builder.finish())
        return merged

    def finish(self) -> dict[str, dict[str, Any]]:
        """`LeafStatistics.to_json` by group and name, sorted."""
        by_group: dict[str, dict[str, Any]] = {}
        for group, name in sorted(self._builders):
            by_group.setdefault(group, {})[name] = self._builders[group, name].finish().to_json()
        return by_group


class _Scaler(FittedConnector):
    """A connector that is fitted to the statistics of the rows that it chooses."""

    statistics: Any

    @property
    def fitted(self) -> bool:
        return self.statistics is not None

    def accumulator(self) -> RowStatistics:
        return RowStatistics(self.rows)

    @abc.abstractmethod
    def rows(self, batch: Batch) -> Rows:
        """The rows of a batch."""


def valid_rows(episode: Episode, path: str, fields: StepFields) -> Column:
    """The valid rows of a step field: all observations, but one action, reward, and so on per transition.

    step          0     1     2     3 (last)
    observation   o0    o1    o2    o3
    action        a0    a1    a2                the action of the last step is void

    Timesteps that `AddOneTsToEpisodesAndTruncate` added are left out.
    """
    count = real_transitions(episode)
    return episode.steps[path][: count + 1 if below(path, fields.obs) else count]


_NEEDED = {
    "normal": ("mean", "std", "min", "max"),
    "bounds": ("min", "max"),
    "bounds_q99": ("q01", "q99", "min", "max"),
}


@dataclasses.dataclass(frozen=True)
class Normalize(_Scaler, reads_images=False):
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

    fields: Sequence[str]
    mode: str = "bounds_q99"
    mask: Mapping[str, Sequence[bool]] = dataclasses.field(default_factory=dict)
    constant: str = "zero"
    clip: bool = True
    statistics: str | Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.fields, str):
            object.__setattr__(self, "fields", (self.fields,))
        check_choices(self, mode=tuple(_NEEDED), constant=("zero", "low"))
        if self.statistics is not None:
            leaves = loaded_statistics(self.statistics, "Normalize")
            used = {path: leaves[path] for field in self.fields for path in all_below(leaves, field)}
            object.__setattr__(self, "statistics", {"fields": pick_statistics(used, _NEEDED[self.mode], "Normalize")})

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
            raise UsageError(f"Normalize: {path} has shape {x.shape[1:]}, but its statistics {shift.shape}")
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

    def rows(self, batch: Batch) -> Rows:
        for episode in batch.episodes:
            for path in self._paths(episode):
                yield "", path, numbers(valid_rows(episode, path, batch.fields), path, "Normalize")

    def _paths(self, episode: Episode) -> list[str]:
        """The leaves to scale. Images, text, and bools below a name are skipped."""
        paths: dict[str, None] = {}
        for field in self.fields:
            matching = match_fields(episode.steps, field, "Normalize")
            paths |= dict.fromkeys(path for path in matching if path == field or is_numeric(episode.steps[path]))
        for path in self.mask:
            if path not in paths:
                raise UsageError(f"Normalize: mask has {path}, which is not one of {', '.join(paths)}")
        return list(paths)


_FILTER = ("mean", "std", "count")


@dataclasses.dataclass(frozen=True)
class MeanStdFilter(_Scaler):
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
            picked = pick_statistics(loaded_statistics(self.statistics, "MeanStdFilter"), _FILTER, "MeanStdFilter")
            object.__setattr__(self, "statistics", {"fields": picked})

    def fit(self, result: Mapping[str, Mapping[str, Leaf]]) -> MeanStdFilter:
        picked = {agent: pick_statistics(leaves, _FILTER, "MeanStdFilter") for agent, leaves in result.items()}
        return dataclasses.replace(self, statistics={"agents": picked})

    def transform(self, batch: Batch) -> Batch:
        return edit_each(self, batch, self._filter)

    def _filter(self, episode: Episode, fields: StepFields) -> Episode:
        return episode.with_columns({path: self._scale(episode, path) for path in _floats(episode, fields.obs)})

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

    def rows(self, batch: Batch) -> Rows:
        for episode in batch.episodes:
            for path in _floats(episode, batch.fields.obs):
                yield find_agent(episode), path, np.asarray(valid_rows(episode, path, batch.fields))


def _floats(episode: Episode, field: str) -> list[str]:
    columns = ((path, episode.steps[path]) for path in all_below(episode.steps, field))
    return [path for path, column in columns if is_numeric(column) and np.asarray(column).dtype.kind in "fV"]


_MIN_DIVISOR = 1e-4
"""The smallest divisor, as in RLlib."""


@dataclasses.dataclass(frozen=True)
class StandardizeAdvantages(_Scaler):
    """Standardizes `advantages`, float32 (T,), to mean 0 and standard deviation 1 over a module's transitions.

        advantages    1     3     5     0*      mean 3, std 1.63
                     -1.22  0     1.22  0*      * added by AddOneTsToEpisodesAndTruncate: neither counted
                                                  nor changed

        (advantages - mean) / max(std, 1e-4)    population std, as in RLlib

    The statistics cover the whole dataset and are computed before anything is written. (RLlib uses those of each
    training batch, including added timesteps.) Must come after GeneralAdvantageEstimation, and before
    AddTimeDimToBatchAndZeroPad.

    Attributes:
      column: the column to standardize.
      statistics: module -> `mean` and `std`; by default the dataset's own.
    """

    column: str = "advantages"
    statistics: Mapping[str, Leaf] | None = None

    def __post_init__(self) -> None:
        if self.statistics is not None:
            picked = pick_statistics(self.statistics, ("mean", "std"), "StandardizeAdvantages")
            object.__setattr__(self, "statistics", picked)

    def fit(self, result: Mapping[str, Mapping[str, Leaf]]) -> StandardizeAdvantages:
        return dataclasses.replace(self, statistics={module: leaves[self.column] for module, leaves in result.items()})

    def transform(self, batch: Batch) -> Batch:
        check_order(self, batch, time=True)
        pairs = zip(batch.episodes, batch.columns, strict=True)
        return batch.replace(columns=tuple({**c, self.column: self._standardize(e, c)} for e, c in pairs))

    def _standardize(self, episode: Episode, columns: Columns) -> Array:
        values, real, module = self._values(columns), real_transitions(episode), find_module(episode)
        assert self.statistics is not None
        if not real:
            return values.astype(np.float32)
        if module not in self.statistics:
            raise UsageError(f"StandardizeAdvantages: no statistics of {module}, only of {', '.join(self.statistics)}")
        mean, std = (float(self.statistics[module][name]) for name in ("mean", "std"))
        scaled = (values.astype(np.float64) - mean) / max(std, _MIN_DIVISOR)
        return np.where(np.arange(len(values)) < real, scaled, values).astype(np.float32)

    def rows(self, batch: Batch) -> Rows:
        check_order(self, batch, time=True)
        for episode, columns in zip(batch.episodes, batch.columns, strict=True):
            yield find_module(episode), self.column, self._values(columns)[: real_transitions(episode)]

    def _values(self, columns: Columns) -> Array:
        match_fields(columns, self.column, "StandardizeAdvantages", "put GeneralAdvantageEstimation before it")
        return np.asarray(columns[self.column])
