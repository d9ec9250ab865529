"""The delay of states after actions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from rlds_beam.checking.signals.context import Context
from rlds_beam.checking.signals.motion import Laid, Motion
from rlds_beam.typing import Array

MAX_LAG = 10
"""The largest lag that is tried, in steps."""
_MIN_STEPS = 15
"""Steps below which a correlation says nothing."""
_MAX_STEPS = 64
"""The steps in the middle of a longer episode that are compared."""
_MAX_PAIRS = 4
_MAX_ACTIONS, _MAX_STATES = 16, 32
"""The dimensions that are compared."""
_CORRELATED = 0.5
"""Correlation below which there is no lag: the state may not be what the action moves."""
_BY_CHANCE = 15.0
"""Squared correlation times compared steps, below which it may be chance: noise exceeds it at any of 22 tried lags in
one of 80 episodes (22 * exp(-15 / 2))."""


def _pair_fields(context: Context, sizes: Mapping[str, int]) -> list[tuple[str, str]]:
    """The actions and states of the same thing: those with equally many dimensions, at least 2, at most `_MAX_PAIRS`.

    Fields with the same last name come first (`action/joint_position`, `observation/joint_position`).

    Args:
      sizes: field -> its number of dimensions.
    """
    found = [
        (action, state)
        for action in context.actions
        for state in context.states
        if sizes.get(action, 0) == sizes.get(state, 1) > 1
    ]
    return sorted(found, key=lambda pair: pair[0].rpartition("/")[2] != pair[1].rpartition("/")[2])[:_MAX_PAIRS]


def measure_lag(context: Context, motions: Mapping[str, Motion], laid: Laid) -> dict[str, Array]:
    """The lag of each episode (E,).

    Changes of an action are correlated with changes of a state (positions), and with changes of these changes
    (velocities, torques), for each lag. Changes differ from step to step even if the motion is smooth or periodic;
    values would fit several lags. Lag 0 is an action that changes the next step.

    Fields of the same size are compared by the sum of their dimensions, as LeRobot's visualizer compares them. If no
    action has the size of a state, all dimensions of the first ones are compared with each other. The pair, the kind,
    and the lag with the largest mean square count.
    """
    sizes = {path: len(motion.values) for path, motion in motions.items()}
    alike = _pair_fields(context, sizes)
    others = [
        (action, state) for action in context.actions for state in context.states if {action, state} <= sizes.keys()
    ]
    size = len(laid.starts)
    best, lag = np.zeros(size), np.full(size, np.nan)
    for action, state in alike or others[:1]:
        if alike:
            fields = [motions[path].changes.sum(axis=0, dtype=np.float64)[None] for path in (action, state)]
        else:
            fields = [motions[action].changes[:_MAX_ACTIONS], motions[state].changes[:_MAX_STATES]]
        for episodes, commands, moves in _cut(laid, *fields):
            squares = np.square(_correlate(commands, moves)).reshape(*commands.shape[::2], MAX_LAG + 1, 2, -1)
            fewer = _weigh_lags(np.minimum(laid.lengths[episodes], _MAX_STEPS))
            moving = np.maximum(commands.any(axis=1).sum(axis=1), 1)
            explained = squares.max(axis=4).sum(axis=1) * fewer / moving[:, None, None]
            kind, row = explained.max(axis=1).argmax(axis=1), np.arange(len(episodes))  # 0 for positions
            found = (squares[row, :, :, kind].sum(axis=(1, 3)) * fewer[..., 0]).argmax(axis=1)
            peak = np.sqrt(explained[row, found, kind])
            compared = np.minimum(laid.lengths[episodes], _MAX_STEPS) - 1 - found
            certain = np.maximum(_CORRELATED, np.sqrt(_BY_CHANCE / np.maximum(compared, 1)))
            better = (peak > best[episodes]) & (peak >= certain)
            at = episodes[better]
            best[at], lag[at] = peak[better], found[better]
    return {"lag": lag} if alike or others else {}


def _cut(laid: Laid, commands: Array, moves: Array) -> Iterator[tuple[Array, Array, Array]]:
    """The episodes of `_MIN_STEPS` or more, by length: their indices, commands (E, T, Dc), and moves (E, T, 2 * Dm).

    Moves are followed by their changes. The middle of an episode counts. Values have mean 0 and sum of squares 1, and
    are 0 after the end. T depends on the length of the episode alone: sums are the same with any other episodes.
    """
    places, counts, starts = laid.find_middle(_MAX_STEPS)
    if counts.max() < _MIN_STEPS:
        return
    if len(places) < commands.shape[1]:
        commands, moves = commands[:, places], moves[:, places]
    values = np.concatenate([commands, moves, moves])
    values[-len(moves) :, 1:] -= moves[:, :-1]
    values[-len(moves) :, starts] = 0
    values = np.ascontiguousarray(_standardize(values, counts, starts).T)
    sizes = 1 << np.ceil(np.log2(counts)).astype(np.int64)
    for size in np.unique(sizes[counts >= _MIN_STEPS]).tolist():
        episodes = np.flatnonzero((sizes == size) & (counts >= _MIN_STEPS))
        steps = np.arange(size)
        inside = steps < counts[episodes, None]
        found = values[np.where(inside, starts[episodes, None] + steps, 0)]
        found[~inside] = 0
        yield episodes, found[..., : len(commands)], found[..., len(commands) :]


def _weigh_lags(lengths: Array) -> Array:
    """A factor for mean squares (E, lags, 1): fewer steps of an episode of some length are compared at a larger lag."""
    compared = np.maximum(lengths[:, None] - np.arange(1, MAX_LAG + 2), lengths[:, None] / 2)
    factor: Array = np.square(lengths[:, None] / compared)[..., None]
    return factor


def _standardize(values: Array, counts: Array, starts: Array) -> Array:
    """Values (D, N) with mean 0 and sum of squares 1 in each episode, float32; 0 if they do not change."""
    few = values.astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        few -= np.repeat(np.add.reduceat(few, starts, axis=1) / counts.astype(np.float32), counts, axis=1)
        power = np.add.reduceat(np.square(few), starts, axis=1)
        few *= np.repeat(np.where(power > 0, 1 / np.sqrt(power), 0), counts, axis=1)
    if not np.isfinite(power).all():
        few[~np.isfinite(few)] = 0
    return few


def _correlate(commands: Array, moves: Array) -> Array:
    """The correlation of each dimension of commands[t] and each one of moves[t + lag + 1]: (E, Dc, lags, Dm).

    Args:
      commands, moves: (E, T, Dc) and (E, T, Dm), from `_cut`.
    """
    episodes, steps, size = commands.shape
    lags = MAX_LAG + 1
    late = np.zeros((episodes, size, lags, steps), np.float32)
    turned = commands.transpose(0, 2, 1)
    for lag in range(min(lags, steps - 1)):
        late[:, :, lag, lag + 1 :] = turned[..., : -lag - 1]
    found: Array = late.reshape(episodes, size * lags, steps) @ moves
    return found.reshape(episodes, size, lags, moves.shape[2])
