"""Statistics of motion for many episodes at once.

The steps of all episodes are laid end to end, by dimension, so that one pass of numpy covers them all:

    episodes     0 . . .  1 . .  2 . . . .
    (D, N)       a a a a  a a a  a a a a a
                 b b b b  b b b  b b b b b
    starts       ^        ^      ^
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any]"


@dataclasses.dataclass(frozen=True)
class Laid:
    """Where the steps of E episodes are, laid end to end.

    Attributes:
      lengths: the number of steps of each episode, at least 1.
      starts: the first step of each.
      void: the last steps whose action is void (`is_last`).
    """

    lengths: Array
    starts: Array
    void: Array

    @classmethod
    def of(cls, lengths: Sequence[int], void: Sequence[bool]) -> Laid:
        sizes = np.array(lengths, np.int64)
        ends = np.cumsum(sizes)
        return cls(sizes, ends - sizes, (ends - 1)[np.array(void, bool) & (sizes > 1)])

    @property
    def ends(self) -> Array:
        """The last step of each episode."""
        return self.starts + self.lengths - 1

    def episode_of(self, steps: Array) -> Array:
        """The index of the episode of each step."""
        return np.searchsorted(self.starts, steps, side="right") - 1


def lay(columns: Sequence[Array | None], laid: Laid, *, is_action: bool) -> Array | None:
    """A field of all episodes as (D, N), float32 or float64, without NaN and infinity.

    A value that is not finite becomes the one before. So does the void action of the last step. None if no episode has
    the field.
    """
    known = [column for column in columns if column is not None]
    if not known:
        return None
    flat = [_flat(column) for column in known]
    if len(known) < len(columns) or len({one.shape[1] for one in flat}) > 1:
        flat = _filled(columns, laid)
    values = np.ascontiguousarray(np.concatenate(flat).T)
    if is_action and len(laid.void):
        values[:, laid.void] = values[:, laid.void - 1]
    if not np.isfinite(values).all():
        _replace_unknown(values, laid)
    return values


def _flat(column: Array) -> Array:
    wide = column if column.dtype in (np.float32, np.float64) else column.astype(np.float32)
    return wide.reshape(len(wide), -1)


def _filled(columns: Sequence[Array | None], laid: Laid) -> list[Array]:
    size = max(_flat(column).shape[1] for column in columns if column is not None)
    filled = []
    for column, length in zip(columns, laid.lengths, strict=True):
        rows = np.full((length, size), np.nan, np.float32)
        if column is not None and len(column) == length:
            flat = _flat(column)
            rows[:, : flat.shape[1]] = flat
        filled.append(rows)
    return filled


def _replace_unknown(values: Array, laid: Laid) -> None:
    known = np.isfinite(values)
    known[:, laid.starts] = True
    places = np.maximum.accumulate(np.where(known, np.arange(values.shape[1]), 0), axis=1)
    values[:] = np.take_along_axis(values, places, axis=1)
    values[~np.isfinite(values)] = 0  # from the first step on


@dataclasses.dataclass(frozen=True)
class Motion:
    """A field of motion of E episodes.

    Attributes:
      values: the values (D, N).
      changes: the change at each step from the one before (D, N), 0 at the first step of an episode.
      sizes: their absolute values.
      vectors: statistic -> (E, D) float32.
      at: the step of the largest change (E, D).
    """

    values: Array
    changes: Array
    sizes: Array
    vectors: dict[str, Array]

    @classmethod
    def of(cls, values: Array, laid: Laid) -> Motion:
        starts, counts = laid.starts, laid.lengths
        changes = np.empty_like(values)
        with np.errstate(over="ignore", invalid="ignore"):
            np.subtract(values[:, 1:], values[:, :-1], out=changes[:, 1:])
            changes[:, starts] = 0
            sizes = np.abs(changes)
            moved = sizes > 0
            largest = np.maximum.reduceat(sizes, starts, axis=1)
            low, high = np.minimum.reduceat(values, starts, axis=1), np.maximum.reduceat(values, starts, axis=1)
            moving = np.add.reduceat(moved.any(axis=0).view(np.int8), starts, dtype=np.int32)
            times = np.add.reduceat(moved.view(np.int8), starts, axis=1, dtype=np.int32)
            vectors = {
                "largest": largest,
                "largest_at": _first(sizes == np.repeat(largest, counts, axis=1), moved, laid),
                "travel": np.add.reduceat(sizes, starts, axis=1),
                "times": times,
                "still": moving - times,
                "last_moved": np.maximum.reduceat(moved * np.arange(values.shape[1], dtype=np.int32), starts, axis=1),
                "low": low,
                "high": high,
                "at_low": _count(values == np.repeat(low, counts, axis=1), starts),
                "at_high": _count(values == np.repeat(high, counts, axis=1), starts),
                "mean": np.add.reduceat(values, starts, axis=1) / counts,
                "square": np.add.reduceat(np.square(values), starts, axis=1) / counts,
                "end": values[:, laid.ends],
            }
            vectors["last_moved"] = np.maximum(vectors["last_moved"] - starts, 0)
        return cls(values, changes, sizes, {n: v.T.astype(np.float32) for n, v in vectors.items()})

    def jerk(self, laid: Laid) -> Array:
        """The integral of the squared jerk of each dimension (E, D), with a time step of 1."""
        jerks = np.zeros_like(self.changes)
        jerks[:, 2:] = self.changes[:, 2:] - 2 * self.changes[:, 1:-1] + self.changes[:, :-2]
        for more in range(3):  # the first steps, which have no jerk
            jerks[:, np.minimum(laid.starts + more, laid.ends)] = 0
        with np.errstate(over="ignore"):
            return np.add.reduceat(np.square(jerks), laid.starts, axis=1).T.astype(np.float32)


def _count(mask: Array, starts: Array) -> Array:
    return np.add.reduceat(mask.view(np.int8), starts, axis=1, dtype=np.int32)


def _first(mask: Array, moved: Array, laid: Laid) -> Array:
    """The first step in which each dimension of each episode is True (D, E); 0 if there is none."""
    dimension, step = np.nonzero(mask & moved)
    episode = laid.episode_of(step)
    place = dimension * len(laid.starts) + episode
    first = np.ones(len(place), bool)
    first[1:] = place[1:] != place[:-1]
    at = np.zeros(mask.shape[0] * len(laid.starts), np.int64)
    at[place[first]] = step[first] - laid.starts[episode[first]]
    return at.reshape(mask.shape[0], -1)


def runs(mask: Array) -> tuple[Array, Array]:
    """The start and stop of each run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    return edges[::2], edges[1::2]
