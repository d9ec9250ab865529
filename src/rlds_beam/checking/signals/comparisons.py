"""The signals of whole episodes: their length and return, copies, instructions, and scales.

Episodes that repeat others, as copies (also in another format) or up to noise, are found by sketches. A sketch has the
mean of each dimension in 8 equal parts of the episode, so it is the same at another length or rate.

    values    1 1 2 2 | 3 3 3 3 | 5 5 4 4 | ...       sketch    1.5  3  4.5  ...

A neighbor is a repeat if it is closer than chance explains: in data of d dimensions, the distance to the nearest of k
neighbors is less than x times that to the k-th with the probability 1 - (1 - x^d)^(k-1). That d is estimated from the
data (as by Facco et al., 2017: Estimating the intrinsic dimension of datasets by a minimal neighborhood information).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlds_beam.checking.signals.base import Measured, once, signal, statistics
from rlds_beam.checking.signals.episodes import Episodes, Layout
from rlds_beam.checking.signals.rows import Rows, find_stepped, median, quantile, robust_z
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


PARTS = 8  # parts of an episode, which have a mean each
_NEIGHBORS = 10
_ALARMS = 0.5  # most chance repeats to expect in a whole dataset
_EQUAL = 1e-6  # distance up to which sketches are equal
_OF_MOTION = 0.2  # a repeat is closer than this share of its own motion: episodes at rest do not repeat each other
_RARE = 0.9  # starts say something if this share of the episodes of a split have their own
_STILL = 1e-5  # spread of a dimension, as a share of its values, or motion, up to which nothing moves
_MAX_NUMBERS = 128  # longer sketches are projected to as many numbers
_LEAF, _OVERLAP = 256, 0.05


@statistics
def _sketch_motion(episodes: Episodes) -> dict[str, Array]:
    return {
        f"#sketch/{path}": sketch(motion.values, episodes.layout, episodes.moving).T
        for path, motion in episodes.motions.items()
    }


def sketch(values: Array, layout: Layout, counts: Array) -> Array:
    """The means of each dimension (D, N) in parts of the first `counts` steps of each episode, float32 (D * PARTS, E).

    The parts end between steps: a step in two of them counts for each by its share.
    """
    ends = counts[:, None] * np.arange(PARTS + 1) / PARTS
    steps = ends.astype(np.int64)
    places = (layout.starts[:, None] + steps).ravel()
    padded = np.concatenate([values, values[:, -1:]], axis=1)
    with np.errstate(over="ignore", invalid="ignore"):
        sums = np.add.reduceat(padded, places, axis=1)  # (D, E * (PARTS + 1)); the last of each episode is not used
        sums *= np.diff(steps, append=0).ravel() > 0
        cut = padded.take(places, axis=1) * (ends - steps).ravel()
        means = sums - cut
        means[:, :-1] += cut[:, 1:]
        means *= np.repeat(PARTS / counts, PARTS + 1)
        parts = means.astype(np.float32).reshape(len(values), len(counts), PARTS + 1)[..., :-1]
        return np.ascontiguousarray(parts.transpose(0, 2, 1)).reshape(-1, len(counts))


def outline_actions(rows: Rows) -> Array | None:
    """One dimension of the first action, as `PARTS` means of each episode (E, PARTS); None without such an action.

    It is the dimension that moves most within an episode, in units of its range in the dataset.
    """
    path = next((path for path in rows.context.actions if f"#sketch/{path}" in rows.numbers), None)
    if path is None:
        return None
    numbers = rows.numbers[f"#sketch/{path}"]
    means = numbers.reshape(len(rows), numbers.shape[1] // PARTS, PARTS)
    low, high = means.min(axis=2), means.max(axis=2)
    with np.errstate(invalid="ignore"):
        width = quantile(high, 1.0) - quantile(low, 0.0)
        moved = median(high - low) / np.maximum(width, 1e-9)
    outline: Array = means[:, np.argmax(np.nan_to_num(moved))]
    return outline


@once
def group_motion(rows: Rows) -> Array:
    """The first episode with the same motion as each one, up to noise, int64 (E,); itself if it is alone."""
    known = np.ones(len(rows), bool)
    for path in rows.fields:
        known &= np.isfinite(rows.numbers[f"#sketch/{path}"]).all(axis=1)
    places = np.flatnonzero(known)
    first, second = _find_pairs(*_make_points(rows, places))
    return _join_groups(len(rows), places[first], places[second])


def count_others(groups: Array, sides: Array) -> tuple[Array, Array]:
    """The number of episodes of each one's group that are on another side, and the first of them (NaN if none), (E,).

    Args:
      groups: the first episode of each one's group.
      sides: a number for each episode, for example that of its split.
    """
    _, codes, own = np.unique(
        groups.astype(np.int64) * (int(sides.max(initial=0)) + 1) + sides, return_inverse=True, return_counts=True
    )
    counts = np.bincount(groups)[groups] - own[codes]
    differs = sides != sides[groups]
    second = np.full(len(groups), np.nan)
    late = np.flatnonzero(differs)[::-1]
    second[groups[late]] = late  # the first of several is written last
    return counts, np.where(differs, groups, second[groups])


def _join_groups(size: int, first: Array, second: Array) -> Array:
    """The smallest index that is connected with each of `size` indices by pairs, int64 (size,)."""
    group = np.arange(size)
    while True:
        low = np.minimum(group[first], group[second])
        joined = group.copy()
        np.minimum.at(joined, group[first], low)
        np.minimum.at(joined, group[second], low)
        joined = joined[joined]
        if (joined == group).all():
            return group
        group = joined


def group_starts(rows: Rows) -> Array:
    """The first episode with the same first state and instruction as each one, int64 (E,), if it has another split.

    None have one if starts are often the same within a split.
    """
    alone, (names, splits) = np.arange(len(rows)), rows.codes("#split")
    columns = [rows.numbers[name] for path in rows.context.states if (name := f"#first/{path}") in rows.numbers]
    if len(names) < 2 or not columns:
        return alone
    starts, texts = np.concatenate(columns, axis=1) + np.float32(0), rows.codes("instruction")[1].tolist()
    known = np.isfinite(starts).all(axis=1)
    first: dict[tuple[bytes, int], int] = {}
    groups = np.array(
        [
            first.setdefault((start.tobytes(), text), i) if is_known else i
            for i, (start, text, is_known) in enumerate(zip(starts, texts, known, strict=True))
        ]
    )
    if len(np.unique(groups[known] * len(names) + splits[known])) < _RARE * known.sum():
        return alone
    return np.where(np.isnan(count_others(groups, splits)[1]), alone, groups)


def _make_points(rows: Rows, taken: Array) -> tuple[Array, Array]:
    """Sketches in units of the dataset's spread, float32 (E, M), and the motion in each episode (E,).

    Distances are root mean squares over the numbers of a sketch; so is the motion, as the deviation from the episode's
    own mean. Dimensions with few values (grippers, cells of a grid) are left out: they are often equal by chance.
    """
    fields = {path: np.flatnonzero(~stepped).tolist() for path, stepped in find_stepped(rows).items()}
    numbers, random = PARTS * sum(map(len, fields.values())), np.random.default_rng(0)
    places, motion, used = np.zeros((len(taken), min(numbers, _MAX_NUMBERS)), np.float32), np.zeros(len(taken)), 0
    for path, dimensions in fields.items():
        for d in dimensions:
            own = rows.numbers[f"#sketch/{path}"][taken, d * PARTS : (d + 1) * PARTS].T.astype(np.float64)
            spread = own.std() if own.size else 0.0
            if not spread > _STILL * np.abs(own).max(initial=0):
                continue
            own = (own - own.mean()) / spread
            motion += np.square(own - own.mean(axis=0)).sum(axis=0)
            if numbers > _MAX_NUMBERS:
                signs = random.choice([-1.0, 1.0], (PARTS, _MAX_NUMBERS)) / np.sqrt(_MAX_NUMBERS)
                places += (own.T @ signs).astype(np.float32)
            else:
                places[:, used : used + PARTS] = own.T
            used += PARTS
    motion = np.sqrt(motion / max(used, 1))
    return places[:, :used] / np.float32(np.sqrt(max(used, 1))), np.where(motion > _STILL, motion, 0)


def _find_pairs(places: Array, motion: Array) -> tuple[Array, Array]:
    """The pairs of points that are equal, or closer than chance explains: two arrays of indices."""
    size, k = len(places), min(_NEIGHBORS, (len(places) - 1) // 3)
    if k < 2 or not places.shape[1]:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    neighbors, distances = _find_neighbors(places, k)
    far, chance = np.maximum(distances[:, -1], 1e-30), _ALARMS / (size * (k - 1))
    ratios = np.log(far / np.maximum(distances[:, k // 2 - 1], 1e-30))
    dimension = float(np.log(k / (k // 2))) / max(float(np.median(ratios)), 1e-9)
    limit = np.maximum(far * chance ** (1 / dimension), _EQUAL)
    near = distances < limit[:, None]
    near &= distances < _OF_MOTION * np.minimum(motion[:, None], motion[neighbors])
    at, column = np.nonzero(near)
    return at, neighbors[at, column]


def _find_neighbors(places: Array, k: int) -> tuple[Array, Array]:
    """The k nearest neighbors of each point, nearest first: their indices and distances, (E, k).

    Compares points within overlapping leaves of a tree. Neighbors far closer than the size of a leaf are never missed
    in practice; of others, a few may be.
    """
    neighbors = np.full((len(places), k), -1)
    distances = np.full((len(places), k), np.inf, np.float32)
    for leaf in _leaves(places):
        own, row = places[leaf], np.arange(len(leaf))
        rough = np.square(own).sum(axis=1) - 2 * (own @ own.T)  # without the square of each row
        np.fill_diagonal(rough, np.inf)
        for _ in range(k):  # several times as fast as argpartition
            nearest = rough.argmin(axis=1)
            rough[row, nearest] = np.inf
            distance = np.sqrt(np.square(own - own[nearest]).sum(axis=1))
            worst = distances[leaf].argmax(axis=1)
            better = (distance < distances[leaf, worst]) & (neighbors[leaf] != leaf[nearest, None]).all(axis=1)
            neighbors[leaf[better], worst[better]] = leaf[nearest[better]]
            distances[leaf[better], worst[better]] = distance[better]
    order = np.argsort(distances, axis=1, kind="stable")
    return np.take_along_axis(neighbors, order, axis=1), np.take_along_axis(distances, order, axis=1)


def _leaves(places: Array) -> Iterator[Array]:
    """Groups of at most `_LEAF` points: halves along the direction in which they spread most, which overlap."""
    random, stack = np.random.default_rng(0), [np.arange(len(places))]
    while stack:
        rows = stack.pop()
        if len(rows) <= _LEAF:
            yield np.sort(rows)
            continue
        own = places[rows]
        sample = own[:: max(1, len(own) // 500)]
        sample = sample - sample.mean(axis=0)
        direction = random.standard_normal(places.shape[1]).astype(np.float32)
        for _ in range(4):
            direction = sample.T @ (sample @ direction)
            direction /= max(float(np.linalg.norm(direction)), 1e-30)
        order = np.argsort(own @ direction, kind="stable")
        half, overlap = len(rows) // 2, int(_OVERLAP * len(rows))
        stack += [np.sort(rows[order[: half + overlap]]), np.sort(rows[order[half - overlap :]])]
