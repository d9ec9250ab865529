"""Measured episodes in columns (`Rows`), what is usual in them, and the signals of whole episodes."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rlds_beam.checking.signals.base import Measured, once, signal, statistics
from rlds_beam.checking.signals.episodes import Context, Episodes
from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.typing import Array

_PLACE = ("#shard", "#position", "#part")


class Rows:
    """The measurements of E records.

    Args:
      context: the fields that were measured.
      numbers: column -> (E,), or (E, D) for a number of each dimension. What is missing is NaN. `#shard`, `#position`,
        and `#part` are of the key.
      values: column -> texts, numbers, or None; `#split` and `#group`, (dataset, split), are of the key.
    """

    def __init__(self, context: Context, numbers: Mapping[str, Array], values: Mapping[str, list[Any]]):
        self.context, self.numbers, self.values = context, numbers, values
        self.cache: dict[Any, Any] = {}

    def __len__(self) -> int:
        return len(self.values["#split"])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "cache": {}}  # what `once` computed has functions as names

    @classmethod
    def join(cls, parts: Sequence[Rows]) -> Rows:
        """All rows of several parts; what a part lacks is missing."""
        if len(parts) == 1:
            return parts[0]
        numbers = {name: _join([part.numbers.get(name) for part in parts], parts) for name in _names(parts, "numbers")}
        values = {
            name: [value for part in parts for value in part.values.get(name) or [None] * len(part)]
            for name in _names(parts, "values")
        }
        return cls(parts[0].context, numbers, values)

    def sort(self) -> Rows:
        """The rows by key."""
        groups = self.values["#group"]
        ranks = {group: rank for rank, group in enumerate(sorted(set(groups)))}
        group = np.array([ranks[one] for one in groups], np.int32)
        order = np.lexsort((*(self.numbers[name] for name in reversed(_PLACE)), group))
        if (order[1:] > order[:-1]).all():
            return self
        numbers = {name: column[order] for name, column in self.numbers.items()}
        places = order.tolist()
        return Rows(self.context, numbers, {name: [of[i] for i in places] for name, of in self.values.items()})

    def keys(self, places: Sequence[int]) -> list[str]:
        """The keys of some rows."""
        shard, position, part = (self.numbers[name] for name in _PLACE)
        groups: list[tuple[str, str]] = self.values["#group"]
        return [str(EpisodeKey(*groups[i], int(shard[i]), int(position[i]), int(part[i]))) for i in places]

    @functools.cached_property
    def fields(self) -> list[str]:
        """The fields of motion."""
        return [name.partition("/")[2] for name in self.numbers if name.startswith("#low/")]

    def vector(self, name: str, path: str) -> Array:
        """A statistic of the dimensions of a field, float64 (E, D); NaN where it is missing."""
        return np.asarray(self.numbers[f"#{name}/{path}"], np.float64)

    def codes(self, name: str) -> tuple[list[str], Array]:
        """The different values of a column as texts, ascending, and the place of each row's among them (E,)."""
        values = [str(value) for value in self.values.get(name) or [None] * len(self)]
        different = sorted(set(values))
        places = {value: place for place, value in enumerate(different)}
        return different, np.array([places[value] for value in values], np.int64)


def _names(parts: Sequence[Rows], kind: str) -> list[str]:
    return sorted({name for part in parts for name in getattr(part, kind)})


def _join(columns: Sequence[Array | None], parts: Sequence[Rows]) -> Array:
    """Columns of the parts, one after the other; NaN where a part has none, or fewer dimensions."""
    known = [column for column in columns if column is not None]
    if len(known) == len(columns) and len({column.shape[1:] for column in known}) == 1:
        return np.concatenate(known)
    shape = max(column.shape[1:] for column in known)
    joined = np.full((sum(map(len, parts)), *shape), np.nan, known[0].dtype)
    end = 0
    for column, part in zip(columns, parts, strict=True):
        if column is not None:
            joined[(slice(end, end + len(part)), *map(slice, column.shape[1:]))] = column
        end += len(part)
    return joined


def _of_known(function: Callable[..., Any], values: Array, *args: Any) -> Array:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of columns without a number
        return np.asarray(function(values, *args, axis=0))


def median(values: Array) -> Array:
    """The median of E values that are not NaN, for each dimension."""
    return _of_known(np.nanmedian, values)


def quantile(values: Array, share: float | list[float]) -> Array:
    """Quantiles of E values that are not NaN, for each dimension."""
    return _of_known(np.nanquantile, values, share)


def robust_z(values: Array, floor: float | Array = 0.0) -> Array:
    """The distance of each value from the median, in robust standard deviations (E, ...).

    The standard deviation is 1.4826 times the median absolute deviation (Iglewicz and Hoaglin, 1993: How to Detect and
    Handle Outliers), and at least `floor`: if most values are equal, a small difference is no outlier.
    """
    distance = np.abs(values - median(values))
    scale = np.maximum(1.4826 * median(distance), floor)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(distance > 0, distance / scale, np.where(np.isnan(distance), np.nan, 0.0))


def largest_dimension(values: Array) -> tuple[Array, Array]:
    """The largest value over the dimensions (E, D), and its dimension; NaN if there is none."""
    filled = np.where(np.isnan(values), -np.inf, values)
    best = filled.argmax(axis=1)
    largest = filled[np.arange(len(values)), best]
    return np.where(np.isinf(largest), np.nan, largest), best


@once
def find_stepped(rows: Rows) -> dict[str, Array]:
    """Field of motion -> which dimensions have few values at any scale, for example cells of a grid, bool (D,).

    In the median episode, all changes have the same size, or a value recurs in most of the steps.
    """
    found = {}
    for path in rows.fields:
        largest, times, travel, distinct = (
            rows.vector(name, path) for name in ("largest", "times", "travel", "distinct")
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            same = median(np.where(times > 0, largest * times / travel, np.nan))
            found[path] = np.asarray((same < 1.05) | (median(distinct) < 0.7))
    return found


@signal(
    "Episodes",
    "|z|",
    5,
    misses="short episodes in datasets whose lengths vary by several times",
    relative=True,
)
def outlier_length(rows: Rows) -> Array:
    """Length, as a robust z-score of its logarithm."""
    steps = rows.numbers["steps"]
    with np.errstate(divide="ignore"):
        return robust_z(np.where(steps > 0, np.log(steps), np.nan), 0.1)


@signal(
    "Episodes",
    "|z|",
    5,
    misses="returns of 0 and 1, which nearly all episodes have",
    needs="rewards",
    relative=True,
)
def outlier_return(rows: Rows) -> Array:
    """Return, as a robust z-score.

    It is 0 for the two most frequent returns, and between them, if nearly all episodes have one of them: rewards at the
    end only give 0 and 1, and a failure is no outlier.
    """
    returns = rows.numbers.get("return", np.full(len(rows), np.nan))
    low, high = quantile(returns, [0.01, 0.99])
    score = robust_z(returns, 0.05 * (high - low))
    values, counts = np.unique(returns[~np.isnan(returns)], return_counts=True)
    order = np.lexsort((np.abs(values), -counts))[:2]
    if not len(values) or counts[order].sum() < 0.8 * counts.sum():
        return score
    low, high = values[order].min(), values[order].max()
    with np.errstate(invalid="ignore"):
        return np.where((returns >= low) & (returns <= high), 0.0, score)


@statistics
def _hash_actions(episodes: Episodes) -> dict[str, Array]:
    return {"#actions": np.array(episodes.hashes, np.uint64)}


@signal(
    "Episodes",
    "episodes",
    0,
    remedy="keep one of them",
    misses="copies that were resampled, cut, or rounded",
    relative=True,
)
def duplicate_actions(rows: Rows) -> Measured:
    """Other episodes with exactly the same actions."""
    hashes, places = rows.numbers["#actions"], np.arange(len(rows))
    _, first, groups, sizes = np.unique(hashes, return_index=True, return_inverse=True, return_counts=True)
    others = np.where(hashes == 0, 0, sizes[groups] - 1)
    later = np.flatnonzero(first[groups] != places)[::-1]
    second = np.full(len(first), np.nan)
    second[groups[later]] = later  # the first of several is written last
    other = np.where(first[groups] == places, second[groups], first[groups])
    return Measured(np.where(rows.numbers["steps"] > 0, others, np.nan), other=np.where(others > 0, other, np.nan))


@signal(
    "Text and metadata",
    "0 or 1",
    0.5,
    remedy="the connector RelabelLanguage writes an instruction, DropUnlabeled drops the episode",
)
def missing_instruction(episodes: Episodes) -> Array:
    """No instruction, although the dataset has a field for it."""
    if not episodes.context.instructions:
        return np.full(len(episodes), np.nan)
    return np.array([text is None for text in episodes.instructions], np.float64)


@signal(
    "Dataset",
    "times",
    5,
    remedy="convert the units of one of them before merging",
    misses="ratios up to five, and a group of more than half of the episodes, whose scale is the usual one",
    needs="splits",
    relative=True,
)
def scale_mismatch(rows: Rows) -> dict[str, Array]:
    """Scale of a field in this dataset or split, over that of the others.

    The datasets are those of a merged one (`source_dataset`). A ratio is the group's scale over that of the other
    groups, or its inverse if that is larger; it is the median of the dimensions, whose scale is the median range of the
    episodes. That of a group with most of the episodes is 1: its scale is the usual one.
    """
    groups, number = rows.codes("metadata/source_dataset" if "metadata/source_dataset" in rows.values else "#group")
    if len(groups) < 2:
        return {}
    most = np.bincount(number, minlength=len(groups)) > len(rows) / 2
    found = {}
    for path in rows.fields:
        width = rows.vector("high", path) - rows.vector("low", path)
        width[~(width > 0)] = np.nan
        scales = np.stack([median(width[number == group]) for group in range(len(groups))])
        ratios = np.full(len(groups), np.nan)
        for group in range(len(groups)):
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = np.abs(np.log(scales[group] / median(np.delete(scales, group, axis=0))))
            if np.isfinite(ratio).any():
                ratios[group] = np.exp(np.median(ratio[np.isfinite(ratio)]))
        found[path] = np.where(most, 1.0, ratios)[number]
    return found
