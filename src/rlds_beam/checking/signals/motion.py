"""Statistics of motion for many episodes at once.

The steps of all episodes are laid end to end, by dimension, so that one pass of numpy covers them all:

    episodes     0 . . .  1 . .  2 . . . .
    (D, N)       a a a a  a a a  a a a a a
                 b b b b  b b b  b b b b b
    starts       ^        ^      ^
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from rlds_beam.checking.idle import runs
from rlds_beam.episodes.columns import JoinedColumns
from rlds_beam.typing import Array

_AT_ONCE = 1 << 20
"""Bytes of a field to work on at once: with larger arrays, most of the time goes into fresh memory pages."""

_SAMPLED = 50
"""The steps of a longer episode from which the mean is estimated."""

_COMPARED = 8
"""The steps of an episode whose values are compared."""

_LONG = 400
"""Steps from which on a search in each episode is faster than one in all."""


@dataclasses.dataclass(frozen=True)
class Laid:
    """The bounds of E episodes whose steps are laid end to end.

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

    @functools.cached_property
    def sample(self) -> tuple[Array, Array, Array]:
        """Up to `_SAMPLED` evenly spaced steps of each episode: their places, how many there are, and their starts."""
        counts = np.minimum(self.lengths, _SAMPLED)
        starts = np.cumsum(counts) - counts
        number = np.arange(counts.sum()) - np.repeat(starts, counts)
        places = np.repeat(self.starts, counts) + number * np.repeat(self.lengths, counts) // np.repeat(counts, counts)
        return places, counts, starts

    def find_middle(self, most: int) -> tuple[Array, Array, Array]:
        """The middle `most` steps of each episode, or all: their places, how many there are, and their starts."""
        counts = np.minimum(self.lengths, most)
        starts = np.cumsum(counts) - counts
        first = self.starts + (self.lengths - counts) // 2
        return np.arange(counts.sum()) + np.repeat(first - starts, counts), counts, starts

    def find_episode(self, steps: Array) -> Array:
        """The index of the episode of each step."""
        return np.searchsorted(self.starts, steps, side="right") - 1


def lay(field: JoinedColumns, laid: Laid, *, is_action: bool) -> Array | None:
    """A field of all episodes as (D, N), float32 or float64, without NaN and infinity.

    A value that is not finite becomes the one before. So does the void action of the last step. None if no episode has
    the field.
    """
    if isinstance(field, np.ndarray):
        flat = _flat(field)
    elif any(column is not None for column in field):
        flat = _fill(field, laid)
    else:
        return None
    values = np.ascontiguousarray(flat.T)
    if is_action and len(laid.void):
        values[:, laid.void] = values[:, laid.void - 1]
    if not np.isfinite(values).all():
        _replace_unknown(values, laid)
    return values


def _flat(column: Array) -> Array:
    wide = column if column.dtype in (np.float32, np.float64) else column.astype(np.float32)
    return wide.reshape(len(wide), -1)


def _fill(columns: Sequence[Array | None], laid: Laid) -> Array:
    """Columns end to end (N, D); NaN where an episode has none, fewer dimensions, or another number of steps."""
    flat = [None if column is None else _flat(column) for column in columns]
    width = max(column.shape[1] for column in flat if column is not None)
    rows = np.full((laid.lengths.sum(), width), np.nan, np.float32)
    for column, start, length in zip(flat, laid.starts, laid.lengths, strict=True):
        if column is not None and len(column) == length:
            rows[start : start + length, : column.shape[1]] = column
    return rows


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
      laid: where the steps are.
      values: the values (D, N).
      changes: the change at each step from the one before (D, N), 0 at the first step of an episode.
      sizes: their absolute values.
    """

    laid: Laid
    values: Array
    changes: Array
    sizes: Array

    @classmethod
    def of(cls, values: Array, laid: Laid) -> Motion:
        changes = np.empty_like(values)
        with np.errstate(over="ignore", invalid="ignore"):
            np.subtract(values[:, 1:], values[:, :-1], out=changes[:, 1:])
        changes[:, laid.starts] = 0
        return cls(laid, values, changes, np.abs(changes))

    @functools.cached_property
    def low(self) -> Array:
        """The smallest value of each episode (D, E)."""
        return np.asarray(np.minimum.reduceat(self.values, self.laid.starts, axis=1))

    @functools.cached_property
    def high(self) -> Array:
        """The largest value of each episode (D, E)."""
        return np.asarray(np.maximum.reduceat(self.values, self.laid.starts, axis=1))

    def vectors(self) -> dict[str, Array]:
        """Statistic -> (D, E) float32: what the signals that compare episodes need."""
        moving = np.add.reduceat(self.sizes.any(axis=0).view(np.int8), self.laid.starts, dtype=np.int32)
        size = max(1, _AT_ONCE // max(1, self.values[0].nbytes))
        parts = [self._vectors(slice(d, d + size), moving) for d in range(0, len(self.values), size)]
        return {name: np.concatenate([part[name] for part in parts]).astype(np.float32) for name in parts[0]}

    def _vectors(self, of: slice, moving: Array) -> dict[str, Array]:
        """The statistics of some dimensions (D, E)."""
        laid, starts = self.laid, self.laid.starts
        values, sizes = self.values[of], self.sizes[of]
        with np.errstate(over="ignore", invalid="ignore"):
            moved = sizes > 0
            largest = np.maximum.reduceat(sizes, starts, axis=1)
            times = np.add.reduceat(moved.view(np.int8), starts, axis=1, dtype=np.int32)
            return {
                "largest": largest,
                "largest_at": _largest_at(sizes, largest, laid),
                "travel": np.add.reduceat(sizes, starts, axis=1),
                "times": times,
                "still": moving - times,
                "last_moved": _last_moved(moved, 2 * times < moving, laid),
                "low": self.low[of],
                "high": self.high[of],
                "first": values[:, laid.starts],
                **_sample(values, laid),
            }


def _sample(values: Array, laid: Laid) -> dict[str, Array]:
    """The means of the values and of their squares, and the share of different values (D, E)."""
    places, counts, starts = laid.sample
    few = values if len(places) == values.shape[1] else values[:, places]
    return {
        "mean": np.asarray(np.add.reduceat(few, starts, axis=1) / counts),
        "square": np.asarray(np.add.reduceat(np.square(few), starts, axis=1) / counts),
        "distinct": _distinct(values, laid),
    }


def _distinct(values: Array, laid: Laid) -> Array:
    """The share of different values among `_COMPARED` evenly spaced steps (D, E); of all steps, if there are fewer."""
    counts = np.minimum(laid.lengths, _COMPARED)
    number = np.minimum(np.arange(_COMPARED)[:, None], counts - 1)
    few = values[:, laid.starts + number * laid.lengths // counts]  # (D, _COMPARED, E)
    known = np.zeros(few.shape, bool)
    for n in range(1, _COMPARED):
        known[:, n] = (few[:, n, None] == few[:, :n]).any(axis=1)
    return np.asarray((_COMPARED - known.sum(axis=1)) / counts)


def _largest_at(sizes: Array, largest: Array, laid: Laid) -> Array:
    """The first step with the largest change of each dimension and episode (D, E)."""
    size = len(laid.starts)
    if sizes.shape[1] >= _LONG * size:
        places = zip(laid.starts.tolist(), (laid.ends + 1).tolist(), strict=True)
        return np.stack([sizes[:, start:stop].argmax(axis=1) for start, stop in places], axis=1)
    found = np.flatnonzero(((sizes == np.repeat(largest, laid.lengths, axis=1)) & (sizes > 0)).ravel())
    dimension, step = np.divmod(found, sizes.shape[1])
    episode = laid.find_episode(step)
    place = dimension * size + episode
    first = np.ones(len(place), bool)
    first[1:] = place[1:] != place[:-1]
    at = np.zeros(len(sizes) * size, np.int64)
    at[place[first]] = step[first] - laid.starts[episode[first]]
    return at.reshape(len(sizes), size)


def _last_moved(moved: Array, wanted: Array, laid: Laid) -> Array:
    """The last step in which a dimension changes (D, E); 0 if it never does, or the result is not wanted."""
    found = np.zeros(wanted.shape, np.int64)
    some = np.flatnonzero(wanted.any(axis=1))
    if len(some):
        at = np.maximum.reduceat(moved[some] * np.arange(moved.shape[1], dtype=np.int32), laid.starts, axis=1)
        found[some] = np.where(wanted[some], np.maximum(at - laid.starts, 0), 0)
    return found


def longest_runs(mask: Array, laid: Laid, least: int = 1, *, with_total: bool = False) -> tuple[Array, ...]:
    """The longest run of True in each episode: its length, first step, and the step after it (NaN without a run).

    Args:
      mask: bool (N,); no run reaches into the next episode.
      least: runs shorter than this do not count.
      with_total: also return, first, the number of steps in all runs that count.
    """
    size = len(laid.starts)
    first, stop, longest, total = np.full(size, np.nan), np.full(size, np.nan), np.zeros(size), np.zeros(size)
    if mask.any():
        edges = runs(mask)
        edges = edges[edges[:, 1] - edges[:, 0] >= least]
        lengths = edges[:, 1] - edges[:, 0]
        episode = laid.find_episode(edges[:, 0])
        total[:] = np.bincount(episode, lengths, size)
        order = np.lexsort((-edges[:, 0], lengths))  # the longest is written last, the first of several
        at = episode[order]
        longest[at] = lengths[order]
        first[at], stop[at] = edges[order, 0] - laid.starts[at], edges[order, 1] - laid.starts[at]
    return (total, longest, first, stop) if with_total else (longest, first, stop)
