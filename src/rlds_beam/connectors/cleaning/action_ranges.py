"""Compares actions with states: targets lie where the states do, differences do not.

This tells them apart if neither names nor representations do. All arrays are those of several episodes, end to end.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlds_beam.connectors.cleaning.selection import vectors
from rlds_beam.episodes.columns import is_numeric
from rlds_beam.episodes.episode import Episode
from rlds_beam.typing import Array

_APART = 0.5
"""The distance of actions that are not near the states: BridgeData's next states have up to 0.03, its differences 0.85
and more."""

OVERRIDE = "compare_ranges: false"
"""What a connector's arguments say to skip the comparison."""


def lie_together(actions: Array, states: Array, values: Sequence[int]) -> bool | None:
    """Whether most of some values of actions, (T, D), lie where those of states do, (T, D); None if they are constant.

    The distance of a value is the mean square of the action minus the state, divided by the sum of both variances: 0
    for equal numbers, 1 for independent ones around the same mean.
    """
    known = _distances(actions, states)[[*values]]
    known = known[np.isfinite(known)]
    return bool(np.median(known) < _APART) if known.size else None


def describe_ranges(actions: Array, states: Array, values: Sequence[int], state: str) -> str:
    """The ranges of the value that differs most: `value 0 is -0.02 to 0.02, and 0.2 to 0.36 in observation/state`."""
    i = max(values, key=np.nan_to_num(_distances(actions, states)).__getitem__)
    first, second = (f"{column[:, i].min():.3g} to {column[:, i].max():.3g}" for column in (actions, states))
    return f"value {i} is {first}, and {second} in {state}"


def _distances(actions: Array, states: Array) -> Array:
    squares, spread = ((actions - states) ** 2).mean(axis=0), actions.var(axis=0) + states.var(axis=0)
    moves = spread > 1e-12 * (actions**2 + states**2).mean(axis=0)
    return np.where(moves, squares / np.where(moves, spread, 1), np.nan)


def stack_vectors(episodes: Sequence[Episode], *paths: str) -> list[Array]:
    """Fields that are vectors, float64 (T, D), at all steps but the last of episodes, if all are finite there."""
    stacked = []
    for episode in episodes:
        columns = [vectors(episode, path, "action").astype(np.float64)[:-1] for path in paths]
        finite = np.all([np.isfinite(column).all(axis=1) for column in columns], axis=0)
        stacked.append([column[finite] for column in columns])
    return [np.concatenate(columns) for columns in zip(*stacked, strict=True)]


def find_state(episode: Episode, width: int) -> str | None:
    """The observed vector of floats with as many values as the action: `observation/state`, or the only one."""
    observed = {path: column for path, column in episode.steps.items() if path.partition("/")[0] == "observation"}
    numbers = {path: np.asarray(column) for path, column in observed.items() if is_numeric(column)}
    alike = [path for path, n in numbers.items() if n.dtype.kind == "f" and n.shape[1:] == (width,)]
    return "observation/state" if "observation/state" in alike else alike[0] if len(alike) == 1 else None
