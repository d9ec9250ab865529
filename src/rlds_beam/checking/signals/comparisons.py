"""The signals of whole episodes: their length and return, copies, instructions, and scales."""

from __future__ import annotations

import numpy as np

from rlds_beam.checking.signals.base import Measured, signal, statistics
from rlds_beam.checking.signals.episodes import Episodes
from rlds_beam.checking.signals.repeats import count_others, group_motion, group_starts
from rlds_beam.checking.signals.rows import Rows, median, quantile, robust_z
from rlds_beam.typing import Array


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
    hashes, alone = rows.numbers["#actions"], np.arange(len(rows))
    _, first, places = np.unique(hashes, return_index=True, return_inverse=True)
    return _count(rows, alone, np.where(hashes != 0, first[places], alone))


@signal("Episodes", "episodes", 0, remedy="keep one of them", relative=True)
def near_duplicate(rows: Rows) -> Measured:
    """Other episodes with the same motion, up to noise and small changes of the length."""
    return _count(rows, np.arange(len(rows)), group_motion(rows))


@signal("Episodes", "episodes", 0, remedy="keep them in one split", needs="splits", relative=True)
def split_leakage(rows: Rows) -> Measured:
    """Episodes of other splits with the same motion, or with the same rare start and instruction."""
    names, splits = rows.codes("#split")
    if len(names) < 2:
        return Measured(np.full(len(rows), np.nan))
    return _count(rows, splits, group_motion(rows), group_starts(rows))


def _count(rows: Rows, sides: Array, *groupings: Array) -> Measured:
    """The most episodes of the groups of each one that are on another side (E,), and the first of them."""
    counted = [count_others(groups, sides) for groups in groupings]
    counts = np.max([count for count, _ in counted], axis=0)
    others = np.fmin.reduce([other for _, other in counted])
    return Measured(np.where(rows.numbers["steps"] > 0, counts, np.nan), other=others)


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
