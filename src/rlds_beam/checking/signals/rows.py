"""Measured episodes in columns (`Rows`), what is usual in them, and the signals of whole episodes."""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_beam.checking.signals.base import Measured, once, signal, statistics
from rlds_beam.checking.signals.episodes import Context, Episodes
from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.typing import Array

if TYPE_CHECKING:
    import pyarrow as pa

METADATA = "metadata/"
_KEY = ("#dataset", "#split", "#shard", "#position", "#part")


class Rows:
    """The measurements of E records.

    Args:
      context: the fields that were measured.
      numbers: column -> (E,), or (E, D) for a number of each dimension. What is missing is NaN. `#shard`, `#position`,
        and `#part` are of the key.
      values: column -> texts, numbers, or None; `#dataset` and `#split` are of the key.
    """

    def __init__(self, context: Context, numbers: Mapping[str, Array], values: Mapping[str, list[Any]]):
        self.context, self.numbers, self.values = context, numbers, values
        self.cache: dict[Any, Any] = {}

    def __len__(self) -> int:
        return len(self.values["#split"])

    def to_arrow(self) -> pa.Table:
        """The measurements as a part for `join`: metadata is JSON, as its types may differ between parts."""
        import pyarrow as pa

        columns: dict[str, Any] = {}
        for name, array in self.numbers.items():
            columns[name] = pa.array(array.ravel() if name.startswith("#") else array.astype(np.float64))
            if array.ndim > 1:
                ends = np.arange(len(array) + 1) * array.shape[1]
                columns[name] = pa.LargeListArray.from_arrays(pa.array(ends), columns[name])
        for name, column in self.values.items():
            if name.startswith(METADATA):
                column = [None if value is None else json.dumps(value) for value in column]
            columns[name] = pa.array(column, pa.string())
        return pa.table({name.encode("unicode_escape").decode(): column for name, column in columns.items()})

    @classmethod
    def join(cls, context: Context, parts: Sequence[pa.Table]) -> Rows:
        """The rows of all parts by key; what a part lacks is missing."""
        import pyarrow as pa
        import pyarrow.compute as pc

        table = pa.concat_tables(parts, promote_options="permissive")
        order = pc.sort_indices(table.select(_KEY), [(name, "ascending") for name in _KEY])
        numbers, values = dict[str, Array](), dict[str, list[Any]]()
        for escaped in table.column_names:
            name, column = escaped.encode().decode("unicode_escape"), table[escaped].take(order)
            if name.startswith(METADATA):
                values[name] = [None if value is None else json.loads(value) for value in column.to_pylist()]
            elif pa.types.is_string(column.type):
                values[name] = column.to_pylist()
            else:
                numbers[name] = _to_matrix(column) if pa.types.is_large_list(column.type) else column.to_numpy()
        return cls(context, dict(sorted(numbers.items())), dict(sorted(values.items())))

    def keys(self, places: Sequence[int]) -> list[str]:
        """The keys of some rows."""
        columns = [self.values[name] for name in _KEY[:2]] + [self.numbers[name].tolist() for name in _KEY[2:]]
        return [str(EpisodeKey(*(column[i] for column in columns))) for i in places]

    @functools.cached_property
    def fields(self) -> list[str]:
        """The fields of motion."""
        return [name.partition("/")[2] for name in self.numbers if name.startswith("#low/")]

    def vector(self, name: str, path: str) -> Array:
        """A statistic of the dimensions of a field, float64 (E, D); NaN where it is missing."""
        return np.asarray(self.numbers[f"#{name}/{path}"], np.float64)


def _to_matrix(column: pa.ChunkedArray) -> Array:
    """Lists of numbers (E, D); NaN if a row has none, or fewer dimensions."""
    import pyarrow.compute as pc

    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    flat = pc.list_flatten(column).to_numpy()
    matrix = np.full((len(lengths), lengths.max(initial=0)), np.nan, flat.dtype)
    matrix[np.arange(matrix.shape[1]) < lengths[:, None]] = flat
    return matrix


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
    names = rows.values.get("metadata/source_dataset", rows.values["#split"])
    groups, number = np.unique(np.array([str(name) for name in names], object), return_inverse=True)
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
