"""The signals that compare each episode with the whole dataset, from the rows of all episodes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from rlds_beam.checking.rates import estimate_rate
from rlds_beam.checking.signals.context import Context, find_gripper, is_gripper
from rlds_beam.checking.signals.repeats import Repeats, count_others
from rlds_beam.checking.signals.rows import SignalRows, find_stepped
from rlds_beam.typing import Array

MIN_EPISODES = 10
"""Episodes below which nothing is usual: the signals that compare are then not measured."""


def robust_z(values: Array, floor: float | Array = 0.0) -> Array:
    """The distance of each value from the median, in robust standard deviations (E, ...).

    The standard deviation is 1.4826 times the median absolute deviation (Iglewicz and Hoaglin, 1993: How to Detect and
    Handle Outliers), and at least `floor`: if most values are equal, a small difference is no outlier.
    """
    distance = np.abs(values - _median(values))
    scale = np.maximum(1.4826 * _median(distance), floor)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(distance > 0, distance / scale, np.where(np.isnan(distance), np.nan, 0.0))


def _median(values: Array) -> Array:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of rows without a number
        return np.asarray(np.nanmedian(values, axis=0))


def _quantile(values: Array, share: float) -> Array:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of rows without a number
        return np.asarray(np.nanquantile(values, share, axis=0))


def _largest(values: Array) -> tuple[Array, Array]:
    """The largest value over the dimensions (E, D), and its dimension; NaN if there is none."""
    filled = np.where(np.isnan(values), -np.inf, values)
    best = filled.argmax(axis=1)
    largest = filled[np.arange(len(values)), best]
    return np.where(np.isinf(largest), np.nan, largest), best


class EpisodeScores:
    """The rows of all episodes, and what several signals need.

    Attributes:
      rows: the measurements.
      context: the fields that were measured.
      repeats: the result of `find_repeats`; None if it was not searched for them.
      stepped: field of motion -> the dimensions (D,) with few values, for example cells of a grid, at any scale.
    """

    def __init__(self, rows: SignalRows, context: Context, repeats: Repeats | None):
        self.rows, self.context, self.repeats = rows, context, repeats
        self.stepped = {path: find_stepped(rows, path) for path in rows.fields} if len(rows) >= MIN_EPISODES else {}

    def score(self, signal: str) -> dict[str, Array]:
        """The columns of a signal that compares episodes: name -> (E,); none for other signals.

        `@other` is the row of the first of the other episodes that the signal counts.
        """
        score = _SCORES.get(signal)
        return {} if score is None or len(self.rows) < MIN_EPISODES else score(self)


def _score_jump(compared: EpisodeScores) -> dict[str, Array]:
    """The logarithm of an episode's largest change, as a robust z-score among the episodes that move the dimension.

    Only larger changes than usual count. lerobot-doctor flags 8 standard deviations of one episode's changes
    (checks/actions.py), which a spike in smooth data never reaches.
    """

    def logarithm(largest: Array) -> Array:
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(np.where(largest > 0, largest, np.nan)))

    def usual(largest: Array) -> Array:
        largest = logarithm(largest)
        center = _median(largest)
        scale = np.maximum(1.4826 * _median(np.abs(largest - center)), 0.15)
        # The 80th percentile of a normal distribution: there may be a task that only some episodes have.
        return np.stack([center, np.maximum(scale, (_quantile(largest, 0.8) - center) / 0.8416)], axis=1)

    rows = compared.rows
    found: dict[str, Array] = {}
    for path in rows.fields:
        center, scale = rows.reduce(usual, (path, "largest")).T

        def score(
            place: slice, largest: Array, largest_at: Array, center: Array = center, scale: Array = scale
        ) -> tuple[Array, Array]:
            score, dimension = _largest((logarithm(largest) - center) / scale)
            # 0 if nothing moves
            score = np.where(np.isnan(largest[:, 0]), np.nan, np.maximum(np.nan_to_num(score), 0.0))
            at = np.take_along_axis(largest_at, dimension[:, None], axis=1)[:, 0]
            return score, np.where(score > 0, at, np.nan)

        values, step = rows.map(score, (path, "largest"), (path, "largest_at"))
        found |= {f"jump/{path}": values, f"jump/{path}@step": step, f"jump/{path}@stop": step + 1}
    return found


def _score_stuck(compared: EpisodeScores) -> dict[str, Array]:
    """The share of moving steps in which a dimension does not change, beyond its usual share.

    lerobot-doctor calls a dimension stuck if it is unchanged in 80 % of the steps (checks/anomalies.py); only what is
    unusual for the dimension counts here. One with few values, as a gripper or a cell of a grid, often rests.
    """
    rows = compared.rows
    found: dict[str, Array] = {}
    moves = {path: rows.map(_count_moves, (path, "times"), (path, "still")) for path in rows.fields}
    anything = np.max([np.nan_to_num(move) for move in moves.values()], axis=0) if moves else None
    for path, move in moves.items():
        others = (move == 0) & (anything > 2)

        def share(still: Array, place: slice = slice(None), move: Array = move, others: Array = others) -> Array:
            with np.errstate(divide="ignore", invalid="ignore"):
                share: Array = still / move[place][:, None]
            share[others[place]] = 1.0  # the whole field is stuck while another one moves
            return share

        usual = rows.reduce(lambda still, share=share: _median(share(still)), (path, "still"))
        usual[compared.stepped[path]] = np.nan

        def score(
            place: slice, still: Array, last_moved: Array, low: Array, share: Any = share, usual: Array = usual
        ) -> tuple[Array, Array]:
            score, dimension = _largest(share(still, place) - usual)
            last = np.take_along_axis(last_moved, dimension[:, None], axis=1)[:, 0]
            score = np.where(~np.isnan(low[:, 0]), np.maximum(np.nan_to_num(score), 0.0), np.nan)
            return score, np.where(score > 0, last, np.nan)

        values, step = rows.map(score, (path, "still"), (path, "last_moved"), (path, "low"))
        found |= {f"stuck/{path}": values, f"stuck/{path}@step": step}
    return found


def _count_moves(place: slice, times: Array, still: Array) -> Array:
    """The steps in which any dimension changes (E,)."""
    return np.asarray(np.nanmax(times + still, axis=1, initial=0))


def _score_grippers(compared: EpisodeScores) -> dict[str, Array]:
    """Chatter of grippers: fields of that name, or an action's last dimension if mostly at its ends.

    forge counts crossings of the middle per second (`gripper_chatter`). Here the gripper must cross the outer thirds of
    at least half its usual range, at least 4 times, so noise of a resting gripper does not count.
    """
    rows, context = compared.rows, compared.context
    found: dict[str, Array] = {}
    for name in rows.numbers:
        if not name.startswith("#crossings/"):
            continue
        path, crossings = name.partition("/")[2], rows.numbers[name]
        at = find_gripper(context, path, rows.width((path, "high")))
        if at is None:
            continue
        high, low = (rows.vector((path, end), np.float64, at, at + 1)[0] for end in ("high", "low"))
        width = high - low
        used = width[width > 0]
        if not len(used) or (not is_gripper(context, path) and _median(rows.numbers[f"#ends/{path}"]) < 0.8):
            continue
        usual = np.median(used)
        real = (width >= usual / 2) & (crossings >= 4)
        rate = np.where(real, 100 * crossings / np.maximum(rows.numbers["steps"], 1), 0.0)
        found[f"gripper_chatter/{path}"] = np.where(np.isnan(width), np.nan, rate)
    return found


def _score_length(compared: EpisodeScores) -> dict[str, Array]:
    steps = compared.rows.numbers["steps"]
    with np.errstate(divide="ignore"):
        return {"outlier_length": robust_z(np.where(steps > 0, np.log(steps), np.nan), 0.1)}


def _score_return(compared: EpisodeScores) -> dict[str, Array]:
    returns = compared.rows.numbers.get("return")
    return {} if returns is None else {"outlier_return": _score_returns(returns)}


def _score_returns(returns: Array) -> Array:
    """A robust z-score; 0 for the two most frequent returns, and between them, if nearly all episodes have one of them.

    Rewards at the end only give 0 and 1: a failure is no outlier.
    """
    score = robust_z(returns, 0.05 * _spread(returns))
    values, counts = np.unique(returns[~np.isnan(returns)], return_counts=True)
    order = np.lexsort((np.abs(values), -counts))[:2]
    if counts[order].sum() < 0.8 * counts.sum():
        return score
    low, high = values[order].min(), values[order].max()
    with np.errstate(invalid="ignore"):
        return np.where((returns >= low) & (returns <= high), 0.0, score)


def _spread(values: Array) -> Array:
    """The distance from the 1st to the 99th percentile."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        low, high = np.nanquantile(values, [0.01, 0.99], axis=0)
    return np.asarray(high - low)


def _score_cameras(compared: EpisodeScores) -> dict[str, Array]:
    rows, context = compared.rows, compared.context
    found: dict[str, Array] = {}
    for path in context.cameras:
        sharpness = rows.numbers.get(f"#sharpness/{path}")
        if sharpness is None:
            continue
        for dark in ("black_images", "overexposed_images"):  # they have no details; those signals say it
            share = rows.numbers.get(f"{dark}/{path}")
            sharpness = sharpness if share is None else np.where(share == 1, np.nan, sharpness)
        usual = _median(sharpness)
        with np.errstate(divide="ignore", invalid="ignore"):
            found[f"blurred_images/{path}"] = np.minimum(usual / sharpness, 1e6) if usual > 0 else sharpness * np.nan
    return found


def _score_rates(compared: EpisodeScores) -> dict[str, Array]:
    rows, context = compared.rows, compared.context
    found: dict[str, Array] = {}
    for path in context.clocks:
        interval = rows.numbers.get(f"#interval/{path}")
        if interval is None or path.endswith("frame_index"):
            continue
        usual = _median(interval)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = estimate_rate(interval, context.fps) / context.fps if context.fps else usual / interval
        found[f"rate_mismatch/{path}"] = np.abs(ratio - 1)
    return found


def _score_duplicate_actions(compared: EpisodeScores) -> dict[str, Array]:
    actions = _group_actions(compared)
    return {} if actions is None else _count("duplicate_actions", compared, np.arange(len(actions)), actions)


def _score_near_duplicate(compared: EpisodeScores) -> dict[str, Array]:
    """Nothing if it was not searched for repeats."""
    repeats = compared.repeats
    if repeats is None or "#actions" not in compared.rows.numbers:
        return {}
    return _count("near_duplicate", compared, np.arange(len(compared.rows)), repeats.motion)


def _score_split_leakage(compared: EpisodeScores) -> dict[str, Array]:
    """Nothing if it was not searched for repeats, or if there is one split."""
    names, splits = compared.rows.splits
    if compared.repeats is None or len(names) < 2 or "#actions" not in compared.rows.numbers:
        return {}
    return _count("split_leakage", compared, splits[compared.rows.order], *compared.repeats)


def _group_actions(compared: EpisodeScores) -> Array | None:
    """The first episode with the same actions as each one, by key (E,); None if actions were not measured."""
    if "#actions" not in compared.rows.numbers:
        return None
    hashes = compared.rows.numbers["#actions"][compared.rows.order]
    order = np.argsort(hashes, kind="stable").astype(np.int32)
    ordered = hashes[order]
    begins = np.flatnonzero(np.diff(ordered, prepend=ordered[:1] + 1))
    first = np.empty_like(order)
    first[order] = np.repeat(order[begins], np.diff(begins, append=len(order)))
    return np.where(hashes != 0, first, np.arange(len(hashes), dtype=np.int32))


def _count(signal: str, compared: EpisodeScores, sides: Array, *groupings: Array) -> dict[str, Array]:
    """The most episodes of the groups of each one that are on another side; the groups and sides are by key (E,)."""
    rows, order = compared.rows, compared.rows.order
    counted = [count_others(groups, sides) for groups in groupings]
    counts, others = np.empty((2, len(rows)))
    counts[order] = np.max([count for count, _ in counted], axis=0)
    first = np.fmin.reduce([other for _, other in counted])
    others[order] = np.where(np.isnan(first), np.nan, order[np.nan_to_num(first).astype(np.int64)])
    return {signal: np.where(rows.numbers["steps"] > 0, counts, np.nan), f"{signal}@other": others}


def group_scales(rows: SignalRows) -> tuple[list[str], Array, dict[str, Array]]:
    """The groups of a dataset: their names, the group of each episode (E,), and by field their scale ratios (G,).

    Groups are the datasets of a merged one (`source_dataset`), otherwise its splits. A ratio is the group's scale over
    that of the other groups, or its inverse if that is larger; it is the median of the dimensions, whose scale is the
    median range of the episodes. There are none if there is one group only.
    """
    if "metadata/source_dataset" in rows.values:
        names, number = rows.codes("metadata/source_dataset", str)
    else:
        pairs, number = rows.groups
        names = [":".join(pair) for pair in pairs]
    groups, rank = np.unique(names, return_inverse=True)
    number = rank[number]
    found: dict[str, Array] = {}

    def widths(high: Array, low: Array) -> Array:
        width = high - low
        width[~(width > 0)] = np.nan
        return np.stack([_median(width[number == g]) for g in range(len(groups))], axis=1)

    for path in rows.fields if len(groups) > 1 else ():
        scales = rows.reduce(widths, (path, "high"), (path, "low")).T
        found[path] = np.full(len(groups), np.nan)
        for g in range(len(groups)):
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = np.abs(np.log(scales[g] / _median(np.delete(scales, g, axis=0))))
            if np.isfinite(ratio).any():
                found[path][g] = np.exp(np.median(ratio[np.isfinite(ratio)]))
    return groups.tolist(), number, found


def _score_scales(compared: EpisodeScores) -> dict[str, Array]:
    """The ratio of each episode's group; that of a group with most of the episodes is 1: its scale is the usual one."""
    groups, number, found = group_scales(compared.rows)
    most = np.bincount(number, minlength=len(groups)) > len(compared.rows) / 2
    return {f"scale_mismatch/{path}": np.where(most, 1.0, scores)[number] for path, scores in found.items()}


_SCORES: dict[str, Callable[[EpisodeScores], dict[str, Array]]] = {
    "jump": _score_jump,
    "stuck": _score_stuck,
    "gripper_chatter": _score_grippers,
    "outlier_length": _score_length,
    "outlier_return": _score_return,
    "blurred_images": _score_cameras,
    "rate_mismatch": _score_rates,
    "duplicate_actions": _score_duplicate_actions,
    "near_duplicate": _score_near_duplicate,
    "split_leakage": _score_split_leakage,
    "scale_mismatch": _score_scales,
}
"""Signal that compares episodes -> what measures it."""
