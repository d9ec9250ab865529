"""How the state follows the action: the lag between them, and whether actions are positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from rlds_beam.checking.signals.context import Context
from rlds_beam.checking.signals.motion import Laid, Motion

Array: TypeAlias = "np.ndarray[Any, Any]"

MOST_LAG = 10
"""The largest lag that is tried, in steps."""
_FEWEST = 15
"""Steps below which a correlation says nothing."""
_MOST_PAIRS = 4
_CORRELATED = 0.5
"""Correlation below which there is no lag: the state may not be what the action moves."""


def pairs(context: Context, sizes: Mapping[str, int]) -> list[tuple[str, str]]:
    """The actions and states that are compared: those with equally many dimensions, at least 2, at most `_MOST_PAIRS`.

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
    return sorted(found, key=lambda one: one[0].rpartition("/")[2] != one[1].rpartition("/")[2])[:_MOST_PAIRS]


def following(context: Context, motions: Mapping[str, Motion], laid: Laid) -> dict[str, Array]:
    """The lag of each episode (E,), and `#position`: whether the actions of the first pair are positions.

    The sum of all dimensions of the state's change is correlated with that of the action (velocities, differences) and
    of the action's change (positions), for each lag; the pair and the lag with the highest correlation count. Lag 0 is
    an action that changes the next step. LeRobot's visualizer shows the same cross-correlation.
    """
    compared = pairs(context, {path: len(motion.values) for path, motion in motions.items()})
    best, lag = np.zeros(len(laid.starts)), np.full(len(laid.starts), np.nan)
    first_is_position = np.zeros(len(laid.starts))
    for number, (action, state) in enumerate(compared):
        moved = motions[state].changes.sum(axis=0, dtype=np.float64)
        by_difference = _correlations(motions[action].values.sum(axis=0, dtype=np.float64), moved, laid, 1)
        by_position = _correlations(motions[action].changes.sum(axis=0, dtype=np.float64), moved, laid, 0)
        is_position = by_position.max(axis=0) > by_difference.max(axis=0)
        found = np.where(is_position, np.maximum(by_position.argmax(axis=0) - 1, 0), by_difference.argmax(axis=0))
        highest = np.maximum(by_difference.max(axis=0), by_position.max(axis=0))
        better = (highest > best) & (highest >= _CORRELATED) & (laid.lengths >= _FEWEST)
        best, lag = np.where(better, highest, best), np.where(better, found, lag)
        if number == 0:
            first_is_position[better & is_position] = 1
    return {"lag": lag, "#position": first_is_position} if compared else {}


def _correlations(first: Array, second: Array, laid: Laid, shift: int) -> Array:
    """The correlation of first[t] with second[t + lag + shift] within each episode, (lags, E)."""
    first, second = (_standardized(values, laid) for values in (first, second))
    room = laid.starts + laid.lengths
    until = np.repeat(room, laid.lengths) - np.arange(len(first))  # steps to the end of the episode
    found = np.zeros((MOST_LAG + 1, len(laid.starts)))
    for lag in range(MOST_LAG + 1):
        by = lag + shift
        if by >= len(first):
            break
        products = np.zeros(len(first))
        products[: len(first) - by] = first[: len(first) - by] * second[by:]
        products[until <= by] = 0  # they would be products with the next episode
        found[lag] = np.add.reduceat(products, laid.starts) / np.maximum(laid.lengths, 1)
    return found


def _standardized(values: Array, laid: Laid) -> Array:
    centered: Array = values - np.repeat(np.add.reduceat(values, laid.starts) / laid.lengths, laid.lengths)
    power = np.sqrt(np.add.reduceat(np.square(centered), laid.starts) / laid.lengths)
    centered /= np.repeat(np.where(power > 0, power, 1.0), laid.lengths)
    return centered
