"""The signals that compare each episode with the whole dataset, from the rows of all episodes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import numpy as np

from rlds_beam.checking.rates import estimate_rate
from rlds_beam.checking.signals.context import Context, find_gripper, is_gripper
from rlds_beam.checking.signals.lag import pairs
from rlds_beam.checking.signals.repeats import Repeats, count_others
from rlds_beam.checking.signals.rows import Columns, SignalRows
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


def score_episodes(rows: SignalRows, context: Context, repeats: Repeats) -> dict[str, Array]:
    """The columns of all signals that compare episodes: name -> (E,)."""
    found: dict[str, Array] = {}
    if len(rows) < MIN_EPISODES:
        return found
    vectors = load_fields(rows)
    stepped = {path: find_stepped(field) for path, field in vectors.items()}
    for path, field in vectors.items():
        found |= _jump(path, field)
        found |= _saturation(path, field, stepped[path])
    found |= _stuck(vectors, stepped)
    found |= _grippers(rows, context, vectors)
    found |= _offset(rows, context, vectors)
    found |= _outliers(rows, context, vectors, stepped)
    found |= _cameras(rows, context)
    found |= _rates(rows, context)
    found |= _duplicates(rows, repeats)
    found |= _groups(rows)
    return found


def load_fields(rows: SignalRows) -> dict[str, Mapping[str, Array]]:
    """Field of motion -> statistic -> float64 (E, D), which is loaded when it is used."""
    found: dict[str, list[str]] = {}
    for path, statistic in rows.vectors:
        found.setdefault(path, []).append(statistic)
    return {
        path: Columns(names, lambda name, path=path: rows.vectors[path, name].astype(np.float64))  # type: ignore[misc]
        for path, names in found.items()
    }


def _jump(path: str, field: Mapping[str, Array]) -> dict[str, Array]:
    """The logarithm of an episode's largest change, as a robust z-score among the episodes that move the dimension.

    Only larger changes than usual count. lerobot-doctor flags 8 standard deviations of one episode's changes
    (checks/actions.py), which a spike in smooth data never reaches.
    """
    with np.errstate(divide="ignore"):
        largest = np.log(np.where(field["largest"] > 0, field["largest"], np.nan))
    usual = _median(largest)
    scale = np.maximum(1.4826 * _median(np.abs(largest - usual)), 0.15)
    # The 80th percentile of a normal distribution: there may be a task that only some episodes have.
    scale = np.maximum(scale, (_quantile(largest, 0.8) - usual) / 0.8416)
    score, dimension = _largest((largest - usual) / scale)
    known = ~np.isnan(field["largest"][:, 0])
    score = np.where(known, np.maximum(np.nan_to_num(score), 0.0), np.nan)  # 0 if nothing moves
    at = np.take_along_axis(field["largest_at"], dimension[:, None], axis=1)[:, 0]
    place = np.where(score > 0, at, np.nan)
    return {f"jump/{path}": score, f"jump/{path}@step": place, f"jump/{path}@stop": place + 1}


def find_stepped(field: Mapping[str, Array]) -> Array:
    """The dimensions (D,) with few values, for example cells of a grid, whatever their scale.

    In the median episode, all changes have the same size, or a value recurs in most of the steps.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        same = _median(np.where(field["times"] > 0, field["largest"] * field["times"] / field["travel"], np.nan))
        return np.asarray((same < 1.05) | (_median(field["distinct"]) < 0.7))


def _saturation(path: str, field: Mapping[str, Array], stepped: Array) -> dict[str, Array]:
    """The share of steps at a limit, beyond the usual share: a smallest or largest value that several episodes share.

    forge and lerobot-doctor take each episode's own extremes. A dimension with few values (a gripper, a grid) has no
    limits, and 0 is none: a velocity rests there.
    """
    low, high = field["low"], field["high"]
    share = np.zeros_like(low)
    moves = low != high
    for ends, at in ((low, field["at_low"]), (high, field["at_high"])):
        for d in np.flatnonzero(~stepped):
            limit = _limit(ends[:, d][moves[:, d]])
            if limit is not None:
                share[:, d] += np.where((ends[:, d] == limit) & moves[:, d], at[:, d], 0)
    score, _ = _largest(np.where(np.isnan(low), np.nan, np.maximum(share - _median(share), 0)))
    return {f"saturation/{path}": score}


def _limit(ends: Array) -> float | None:
    values, counts = np.unique(ends[~np.isnan(ends)], return_counts=True)
    counts[values == 0] = 0
    if not len(values) or counts.max() < max(2, 0.02 * len(ends)):
        return None
    return float(values[counts.argmax()])


def _stuck(vectors: Mapping[str, Mapping[str, Array]], stepped: Mapping[str, Array]) -> dict[str, Array]:
    """The share of moving steps in which a dimension does not change, beyond its usual share.

    lerobot-doctor calls a dimension stuck if it is unchanged in 80 % of the steps (checks/anomalies.py); only what is
    unusual for the dimension counts here. One with few values, as a gripper or a cell of a grid, often rests.
    """
    found: dict[str, Array] = {}
    moves = {path: np.nanmax(field["times"] + field["still"], axis=1, initial=0) for path, field in vectors.items()}
    anything = np.max([np.nan_to_num(move) for move in moves.values()], axis=0) if moves else None
    for path, field in vectors.items():
        with np.errstate(divide="ignore", invalid="ignore"):
            share = field["still"] / moves[path][:, None]
            others = (moves[path] == 0) & (anything > 2)
            share[others] = 1.0  # the whole field is stuck while another one moves
            excess = share - _median(share)
        excess[:, stepped[path]] = np.nan
        score, dimension = _largest(excess)
        last = np.take_along_axis(field["last_moved"], dimension[:, None], axis=1)[:, 0]
        known = ~np.isnan(field["low"][:, 0])
        score = np.where(known, np.maximum(np.nan_to_num(score), 0.0), np.nan)
        found |= {f"stuck/{path}": score, f"stuck/{path}@step": np.where(score > 0, last, np.nan)}
    return found


def _grippers(rows: SignalRows, context: Context, vectors: Mapping[str, Mapping[str, Array]]) -> dict[str, Array]:
    """Chatter and range of grippers: fields of that name, or an action's last dimension if mostly at its ends.

    forge counts crossings of the middle per second (`gripper_chatter`). Here the gripper must cross the outer thirds of
    at least half its usual range, at least 4 times, so noise of a resting gripper does not count.
    """
    found: dict[str, Array] = {}
    for name in rows.numbers:
        if not name.startswith("#crossings/"):
            continue
        path, crossings = name.partition("/")[2], rows.numbers[name]
        field = vectors[path]
        at = find_gripper(context, path, field["high"].shape[1])
        if at is None:
            continue
        width = field["high"][:, at] - field["low"][:, at]
        used = width[width > 0]
        if not len(used) or (not is_gripper(context, path) and _median(rows.numbers[f"#ends/{path}"]) < 0.8):
            continue
        usual = np.median(used)
        real = (width >= usual / 2) & (crossings >= 4)
        rate = np.where(real, 100 * crossings / np.maximum(rows.numbers["steps"], 1), 0.0)
        found[f"gripper_chatter/{path}"] = np.where(np.isnan(width), np.nan, rate)
        if np.mean(width[~np.isnan(width)] >= usual / 2) >= 0.8:  # most episodes use it
            found[f"gripper_range/{path}"] = width / usual
    return found


def _offset(rows: SignalRows, context: Context, vectors: Mapping[str, Mapping[str, Array]]) -> dict[str, Array]:
    """The mean of commanded minus measured position, over the usual range (lerobot PR #3762: 17 degrees unnoticed).

    What it differs from the usual difference counts as well, for example below a gripper that always closes further.
    """
    position = rows.numbers.get("#position")
    compared = pairs(context, {path: field["mean"].shape[1] for path, field in vectors.items()})
    if position is None or not compared:
        return {}
    action, state = (vectors[path] for path in compared[0])
    usual = _median(np.where(state["high"] > state["low"], state["high"] - state["low"], np.nan))
    with np.errstate(divide="ignore", invalid="ignore"):
        difference = action["mean"] - state["mean"]
        score, _ = _largest(np.maximum(np.abs(difference), np.abs(difference - _median(difference))) / usual)
        gain = _median((action["high"] - action["low"]) / (state["high"] - state["low"]))
    told = position[~np.isnan(rows.numbers["lag"])]
    known = len(told) and np.mean(told) > 0.5 and 0.5 < _median(gain) < 2  # otherwise the units differ
    return {"offset": np.where(known & ~np.isnan(position), score, np.nan)}


def _outliers(
    rows: SignalRows,
    context: Context,
    vectors: Mapping[str, Mapping[str, Array]],
    stepped: Mapping[str, Array],
) -> dict[str, Array]:
    steps = rows.numbers["steps"]
    with np.errstate(divide="ignore", invalid="ignore"):
        found = {"outlier_length": robust_z(np.where(steps > 0, np.log(steps), np.nan), 0.1)}
    returns = rows.numbers.get("return")
    if returns is not None:
        found["outlier_return"] = _score_returns(returns)
    fields = [vectors[path] for path in context.states if path in vectors] or list(vectors.values())
    if fields:
        every = {name: np.concatenate([f[name] for f in fields], axis=1) for name in ("travel", "low", "high", "end")}
        width = _spread(np.concatenate([every["low"], every["high"]]))
        with np.errstate(divide="ignore", invalid="ignore"):
            share = every["travel"] / np.where(width > 0, width, np.nan)
            path = np.where(np.isnan(share).all(axis=1), np.nan, np.nansum(share, axis=1))
            found["outlier_path"] = robust_z(np.log(path / steps + 1e-3), 0.1)
        found["outlier_end_pose"] = _score_ends(every)
    jerks = [measure_jerk(vectors[path], steps, stepped[path]) for path in context.states if path in vectors]
    if jerks:
        found["outlier_jerk"] = robust_z(_mean(np.concatenate(jerks, axis=1)), 0.2)
    return found


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


def _score_ends(fields: Mapping[str, Array]) -> Array:
    """The distance of the last state from where episodes usually are, over the width of that range.

    It is what the 10th to the 90th percentile of the episodes' bounds enclose, so several goals are no outliers.
    """
    low, high = _quantile(fields["low"], 0.1), _quantile(fields["high"], 0.9)
    beyond = np.maximum(np.maximum(low - fields["end"], fields["end"] - high), 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        score, _ = _largest(np.where(high > low, beyond / (high - low), np.nan))
    return score


def measure_jerk(field: Mapping[str, Array], steps: Array, stepped: Array) -> Array:
    """The logarithm of mean squared jerk over squared peak speed of each dimension (E, D), with a time step of 1.

    It is the dimensionless jerk of Hogan and Sternad (2009: Sensitivity of Smoothness Measures to Movement Duration,
    Amplitude, and Arrests), as in forge, without the factor of the duration, which would hide noise behind the length.
    NaN for a dimension at rest, or with few values.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = field["jerk"] / np.square(field["largest"])
        known = (ratio > 0) & np.isfinite(ratio) & (steps[:, None] > 4) & ~stepped
        return np.where(known, np.log(ratio), np.nan)


def _mean(values: Array) -> Array:
    known = np.isfinite(values)
    count = known.sum(axis=1)
    return np.where(count > 0, np.where(known, values, 0).sum(axis=1) / np.maximum(count, 1), np.nan)


def _spread(values: Array) -> Array:
    """The distance from the 1st to the 99th percentile."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        low, high = np.nanquantile(values, [0.01, 0.99], axis=0)
    return np.asarray(high - low)


def _cameras(rows: SignalRows, context: Context) -> dict[str, Array]:
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
        color = np.stack([rows.numbers[f"#{name}/{path}"] for name in ("red", "green", "blue")], axis=1)
        found[f"swapped_channels/{path}"] = _swap(color)
    return found


def _swap(color: Array) -> Array:
    """How much better the mean color (E, 3) fits the camera's usual one with red and blue exchanged.

    1 if it is the usual color, exchanged; -1 if it is the usual color. NaN if the usual color is gray: then nobody can
    tell.
    """
    usual = _median(color)
    if not abs(usual[0] - usual[2]) >= 4:  # also for gray images
        return np.full(len(color), np.nan)
    straight = np.abs(color - usual).sum(axis=1)
    exchanged = np.abs(color[:, ::-1] - usual).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(straight + exchanged > 0, (straight - exchanged) / (straight + exchanged), 0.0)


def _rates(rows: SignalRows, context: Context) -> dict[str, Array]:
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


def _duplicates(rows: SignalRows, repeats: Repeats) -> dict[str, Array]:
    """Episodes with the same actions or motion, those of other splits, and those with another instruction.

    `@other` is the first such episode, as its row.
    """
    hashes = rows.numbers.get("#actions")
    if hashes is None:
        return {}
    number = np.arange(len(rows))
    _, first, group = np.unique(hashes, return_index=True, return_inverse=True)
    actions = np.where(hashes != 0, first[group], number)
    splits, texts = [key[1] for key in rows.keys], rows.values.get("instruction", [None] * len(rows))
    found = {
        "duplicate_actions": [count_others(actions, number)],
        "near_duplicate": [count_others(repeats.motion, number)],
    }
    if len({*splits}) > 1:
        found["split_leakage"] = [count_others(group, splits) for group in repeats]
    if any(text is not None for text in texts):
        found["contradictory_instruction"] = [count_others(group, texts) for group in (actions, repeats.motion)]
    scores: dict[str, Array] = {}
    for name, counted in found.items():
        counts = np.max([count for count, _ in counted], axis=0)
        scores[name] = np.where(rows.numbers["steps"] > 0, counts, np.nan)
        scores[f"{name}@other"] = np.fmin.reduce([other for _, other in counted])
    return scores


def group_scales(rows: SignalRows) -> tuple[list[str], Array, dict[str, Array]]:
    """The groups of a dataset: their names, the group of each episode (E,), and by field their scale ratios (G,).

    Groups are the datasets of a merged one (`source_dataset`), otherwise its splits. A ratio is the group's scale over
    that of the other groups, or its inverse if that is larger; it is the median of the dimensions, whose scale is the
    median range of the episodes. There are none if there is one group only.
    """
    names = rows.values.get("metadata/source_dataset") or [f"{key[0]}:{key[1]}" for key in rows.keys]
    groups, number = np.unique([str(name) for name in names], return_inverse=True)
    found: dict[str, Array] = {}
    for path in dict.fromkeys(field for field, _ in rows.vectors) if len(groups) > 1 else ():
        width = rows.vectors[path, "high"].astype(np.float64) - rows.vectors[path, "low"]
        width[~(width > 0)] = np.nan
        scales = np.stack([_median(width[number == g]) for g in range(len(groups))])
        found[path] = np.full(len(groups), np.nan)
        for g in range(len(groups)):
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = np.abs(np.log(scales[g] / _median(np.delete(scales, g, axis=0))))
            if np.isfinite(ratio).any():
                found[path][g] = np.exp(np.median(ratio[np.isfinite(ratio)]))
    return groups.tolist(), number, found


def _groups(rows: SignalRows) -> dict[str, Array]:
    """The ratio of each episode's group; that of a group with most of the episodes is 1: its scale is the usual one."""
    groups, number, found = group_scales(rows)
    most = np.bincount(number, minlength=len(groups)) > len(rows) / 2
    return {f"scale_mismatch/{path}": np.where(most, 1.0, scores)[number] for path, scores in found.items()}
