"""Episodes that repeat others up to noise: sketches of their motion, and a search among all of them.

A sketch has the mean of each dimension in 8 equal parts of the episode, so it is the same at another length or rate.

    values    1 1 2 2 | 3 3 3 3 | 5 5 4 4 | ...       sketch    1.5  3  4.5  ...

A neighbor is a repeat if it is closer than chance explains: in data of d dimensions, the distance to the nearest of k
neighbors is less than x times that to the k-th with the probability 1 - (1 - x^d)^(k-1). That d is estimated from the
data (as by Facco et al., 2017: Estimating the intrinsic dimension of datasets by a minimal neighborhood information).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlds_beam.checking.copies import group_copies, join_groups
from rlds_beam.checking.signals.motion import Laid
from rlds_beam.checking.signals.rows import SignalRows, VectorName
from rlds_beam.typing import Array

PARTS = 8
"""Parts of an episode, which have a mean each."""

_NEIGHBORS = 10
_MIN_KNOWN = 4
"""Neighbors that are no copies, from which the dimension around an episode is estimated."""
_ALARMS = 0.5
"""Most chance repeats to expect in a whole dataset."""

_LOCAL = 0.75
"""Neighborhoods whose dimension is less than this share of the dataset's have their own: clusters of idle episodes."""

_OF_MOTION = 0.2
"""A repeat is closer than this share of the episode's own motion: episodes at rest do not repeat each other."""

_RARE = 0.9
"""Starts say something if this share of the episodes of a split have their own."""

_EQUAL = 1e-6
_STILL = 1e-5
_MAX_NUMBERS = 128
_LEAF, _OVERLAP = 256, 0.05
_PRODUCTS = 1 << 18
"""Most multiplications of matrices at once."""


def sketch(values: Array, laid: Laid) -> Array:
    """The means of each dimension (D, N) in parts of each episode, float32 (D * PARTS, E), without void last steps.

    The parts end between steps: a step in two of them counts for each by its share.
    """
    counts = laid.lengths.copy()
    counts[laid.find_episode(laid.void)] -= 1
    ends = counts[:, None] * np.arange(PARTS + 1) / PARTS
    steps = ends.astype(np.int64)
    shares = ends - steps
    places = (laid.starts[:, None] + steps).ravel()
    padded = np.concatenate([values, values[:, -1:]], axis=1)
    with np.errstate(over="ignore", invalid="ignore"):
        sums = np.add.reduceat(padded, places, axis=1)  # (D, E * (PARTS + 1)); the last of each episode is not used
        sums *= np.diff(steps, append=0).ravel() > 0
        cut = padded.take(places, axis=1) * shares.ravel()
        means = sums - cut
        means[:, :-1] += cut[:, 1:]
        means *= np.repeat(PARTS / counts, PARTS + 1)
        parts = means.astype(np.float32).reshape(len(values), len(counts), PARTS + 1)[..., :-1]
        return np.ascontiguousarray(parts.transpose(0, 2, 1)).reshape(-1, len(counts))


class Repeats(NamedTuple):
    """Groups of episodes by key, each by its first episode, int64 (E,); one that is alone is its own group.

    Attributes:
      motion: those with the same motion, up to noise.
      starts: those of several splits with the same first state and instruction, if few episodes of one split share it.
    """

    motion: Array
    starts: Array


def find_repeats(rows: SignalRows, states: Sequence[str]) -> Repeats:
    """The groups of all episodes.

    Args:
      states: the fields of states.
    """
    size = len(rows)
    if "#whole" not in rows.numbers:
        return Repeats(np.arange(size), np.arange(size))
    copies = group_copies(*(rows.numbers[name][rows.order] for name in ("#whole", "#shorter")))
    sketches = [name for name in rows.vectors if name[1] == "sketch"]
    known = np.ones(size, bool)
    for name in sketches:
        known &= rows.map(lambda place, values: np.isfinite(values).all(axis=1), name)
    known = np.flatnonzero(known[rows.order])
    first, second = _find_pairs(_make_points(rows, sketches, known))
    members = np.flatnonzero(copies != np.arange(size))
    first, second = np.concatenate([known[first], copies[members]]), np.concatenate([known[second], members])
    return Repeats(join_groups(size, first, second), _group_starts(rows, states))


def _group_starts(rows: SignalRows, states: Sequence[str]) -> Array:
    """The groups of several splits with the same start; none if starts are often the same within a split."""
    alone, (known_splits, splits) = np.arange(len(rows)), rows.splits
    columns = [rows.vector((path, "first"), np.float32) for path in states if (path, "first") in rows.vectors]
    if len(known_splits) < 2 or not columns:
        return alone
    starts = np.concatenate(columns).T[rows.order] + np.float32(0)
    known = np.flatnonzero(np.isfinite(starts).all(axis=1)).tolist()
    splits, texts = splits[rows.order], rows.codes("instruction")[1][rows.order]
    names = {row: (starts[row].tobytes(), texts[row]) for row in known}
    if len({(splits[row], name) for row, name in names.items()}) < _RARE * len(known):
        return alone
    first: dict[Any, int] = {}
    for row, name in names.items():
        alone[row] = first.setdefault(name, row)
    _, others = count_others(alone, splits)
    return np.where(np.isnan(others), np.arange(len(rows)), alone)


def count_others(groups: Array, sides: Array) -> tuple[Array, Array]:
    """The number of episodes of each one's group that are on another side, and the first of them (NaN if none), (E,).

    Args:
      groups: the first episode of each one's group.
      sides: a number for each episode, for example that of its split.
    """
    sizes = np.bincount(groups)
    counts, others = np.zeros(len(groups)), np.full(len(groups), np.nan)
    shared = np.flatnonzero(sizes[groups] > 1)
    rows = [*zip(shared.tolist(), groups[shared].tolist(), sides[shared].tolist(), strict=True)]
    own = Counter((group, side) for _, group, side in rows)
    first: dict[int, list[tuple[int, int]]] = {}
    for row, group, side in rows:
        known = first.setdefault(group, [(row, side)])
        if len(known) == 1 and known[0][1] != side:
            known.append((row, side))
    for row, group, side in rows:
        counts[row] = sizes[group] - own[group, side]
        others[row] = next((other for other, there in first[group] if there != side), np.nan)
    return counts, others


class _Points(NamedTuple):
    """Sketches in units of the dataset's spread.

    Attributes:
      places: float32 (E, M); distances between them are root mean squares over all numbers of a sketch.
      motion: the root mean square of each episode's own deviation from its means (E,).
    """

    places: Array
    motion: Array


def _make_points(rows: SignalRows, sketches: list[VectorName], known: Array) -> _Points:
    """The sketches of these episodes, by key; more than `_MAX_NUMBERS` numbers are projected to as many, at random."""
    taken, motion, random = rows.order[known], np.zeros(len(known)), np.random.default_rng(0)
    total = sum(map(rows.width, sketches))
    scales: list[Array] = []
    signs: list[Array] = []
    for name in sketches:
        center, scale = np.zeros(rows.width(name)), np.zeros(rows.width(name))  # 0 for dimensions that do not move
        for start in range(0, len(scale), PARTS):
            own = rows.vector(name, np.float64, start, start + PARTS)[:, taken]
            spread = own.std() if own.size else 0.0
            if not spread > _STILL * np.abs(own).max(initial=0):
                continue
            part = slice(start, start + PARTS)
            center[part], scale[part] = own.mean(), 1 / spread
            own -= own.mean(axis=0)
            own /= spread
            motion += np.square(own).sum(axis=0)
            if total > _MAX_NUMBERS:
                signs.append(random.choice([-1.0, 1.0], (PARTS, _MAX_NUMBERS)) / np.sqrt(_MAX_NUMBERS))
        scales.append(np.stack([center, scale]))
    center, scale = np.concatenate([np.zeros((2, 0)), *scales], axis=1)
    moving = np.flatnonzero(scale)
    center, scale = center[moving], scale[moving] / np.sqrt(max(len(moving), 1))
    turn = np.concatenate(signs).astype(np.float32) if signs else None
    places = np.zeros((len(known), _MAX_NUMBERS if signs else len(moving)), np.float32)
    at = np.full(len(rows), -1)
    at[taken] = np.arange(len(taken))

    def put(part: slice, *own: Array) -> Array:
        values = np.concatenate(own, axis=1)
        values = values if len(moving) == values.shape[1] else values[:, moving]
        values -= center
        values *= scale
        few = values.astype(np.float32)
        wanted = at[part] >= 0
        places[at[part][wanted]] = (few if turn is None else _multiply(few, turn))[wanted]
        return wanted

    if len(moving):
        with np.errstate(over="ignore", invalid="ignore"):  # of episodes that are not compared
            rows.map(put, *sketches)
    return _Points(places, np.sqrt(motion / max(len(moving), 1)))


def _multiply(left: Array, right: Array) -> Array:
    """The product of matrices, in parts that OpenBLAS multiplies in one thread: workers share the cores."""
    step = max(1, _PRODUCTS // right.size)
    blocks = np.zeros((-(-len(left) // step) * step, left.shape[1]), left.dtype)
    blocks[: len(left)] = left
    product: Array = blocks.reshape(-1, step, left.shape[1]) @ right
    return product.reshape(len(blocks), -1)[: len(left)]


def _find_pairs(points: _Points) -> tuple[Array, Array]:
    """The pairs of points that are closer than chance explains: two arrays of indices."""
    size, k = len(points.places), min(_NEIGHBORS, (len(points.places) - 1) // 3)
    if k < 2 or not points.places.shape[1]:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    neighbors, distances = _find_neighbors(points.places, k)
    far, chance = distances[:, -1], _ALARMS / (size * (k - 1))
    logs = np.log(np.maximum(far, 1e-30))[:, None] - np.log(np.maximum(distances, 1e-30))
    dimension = np.log(k / (k // 2)) / max(float(np.median(logs[:, k // 2 - 1])), 1e-9)
    copies = (logs > -np.log(chance) / dimension).sum(axis=1)
    local = _local_dimension(logs, neighbors, copies)
    local = np.where(local < _LOCAL * dimension, local, dimension)
    limit = far * chance ** (1 / local)
    near = (distances < limit[:, None]) & (distances > _EQUAL)
    near &= distances < _OF_MOTION * np.minimum(points.motion[:, None], points.motion[neighbors])
    at, column = np.nonzero(near)
    return at, neighbors[at, column]


def _local_dimension(logs: Array, neighbors: Array, copies: Array) -> Array:
    """The dimension around each point, (E,), from itself and its neighbors; copies of a point say nothing about it.

    Args:
      logs: the logarithm of the distance to the last of k neighbors, as a multiple of that to each, (E, k).
      neighbors: the neighbors, nearest first, (E, k).
      copies: the number of nearest neighbors that are closer than chance explains in the dataset's dimension, (E,).
    """
    size, k = logs.shape
    half = copies + (k - copies) // 2
    sums = np.cumsum([0, *(1 / np.arange(1, k))])
    known = k - copies >= _MIN_KNOWN
    inverse = np.where(known, logs[np.arange(size), half - 1] / np.maximum(sums[-1] - sums[half - 1], 1e-9), 0)
    count = np.maximum(known + known[neighbors].sum(axis=1), 1)
    return np.asarray(count / np.maximum(inverse + inverse[neighbors].sum(axis=1), 1e-9))


def _find_neighbors(places: Array, k: int) -> tuple[Array, Array]:
    """The k nearest neighbors of each point, nearest first: their indices and distances, (E, k).

    Compares points within overlapping leaves of a tree. Neighbors far closer than the size of a leaf are never missed
    in practice; of others, a few may be.
    """
    neighbors = np.full((len(places), k), -1, np.int32)
    distances = np.full((len(places), k), np.inf, np.float32)
    for leaf in _leaves(places):
        nearest, near = _find_in_leaf(places.take(leaf, axis=0), k)
        found = np.concatenate([neighbors[leaf], leaf[nearest]], axis=1, dtype=np.int32)
        distance = np.concatenate([distances[leaf], near], axis=1)
        order = np.argsort(found, axis=1)
        found, distance = np.take_along_axis(found, order, axis=1), np.take_along_axis(distance, order, axis=1)
        distance[:, 1:][found[:, 1:] == found[:, :-1]] = np.inf  # found in another leaf too
        order = np.argsort(distance, axis=1, kind="stable")[:, :k]
        neighbors[leaf], distances[leaf] = (np.take_along_axis(each, order, axis=1) for each in (found, distance))
    return neighbors, distances


def _find_in_leaf(own: Array, k: int) -> tuple[Array, Array]:
    """The k nearest neighbors of each point of a leaf: their indices in it and distances, (N, k)."""
    squares = np.einsum("ij,ij->i", own, own)
    distances = _multiply(own, own.T)  # at first without the half square of each row
    distances -= squares / 2
    np.negative(distances, out=distances)
    np.fill_diagonal(distances, np.inf)
    row, nearest = np.arange(len(own)), np.empty((len(own), k), np.int64)
    near = np.empty((len(own), k), np.float32)
    for column in range(k):  # several times as fast as argpartition
        nearest[:, column] = smallest = distances.argmin(axis=1)
        distances[row, smallest] = np.inf
        difference = own - own.take(smallest, axis=0)
        near[:, column] = np.einsum("ij,ij->i", difference, difference)
    return nearest, np.sqrt(near)


def _leaves(places: Array) -> Iterator[Array]:
    """Groups of at most `_LEAF` points: halves along the direction in which they spread most, which overlap."""
    random = np.random.default_rng(0)
    stack = [np.arange(len(places))]
    while stack:
        rows = stack.pop()
        if len(rows) <= _LEAF:
            yield rows
            continue
        own = places.take(rows, axis=0)
        sample = own[:: max(1, len(own) // 500)]
        sample = sample - sample.mean(axis=0)
        direction = random.standard_normal(places.shape[1]).astype(np.float32)
        for _ in range(4):
            further = np.einsum("ij,i->j", sample, np.einsum("ij,j->i", sample, direction))
            norm = float(np.linalg.norm(further))
            direction = further / norm if norm > 0 else direction
        half, overlap = len(rows) // 2, int(_OVERLAP * len(rows))
        along = np.einsum("ij,j->i", own, direction)
        stack += [rows[_are_smallest(along, half + overlap)], rows[~_are_smallest(along, half - overlap)]]


def _are_smallest(values: Array, number: int) -> Array:
    """Which are the smallest `number` of values, bool (N,); the first of equal ones."""
    limit = np.partition(values, number - 1)[number - 1]
    smallest: Array = values < limit
    smallest[np.flatnonzero(values == limit)[: number - np.count_nonzero(smallest)]] = True
    return smallest
