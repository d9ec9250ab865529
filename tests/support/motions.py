"""Episodes of clean data without images, and near-duplicates of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.episodes.schema import episode_flags
from rlds_beam.jobs.example import TRAYS, plan_motion, simulate
from rlds_beam.typing import Array

STATE, ACTION, TEXT = "observation/state", "action", "language_instruction"


def arm(seed: int) -> Episode:
    """An episode of `example --robot`."""
    rng = np.random.default_rng([3, seed])
    place, block = str(rng.choice(list(TRAYS))), float(rng.choice((0.25, 0.36)) + rng.uniform(-0.012, 0.012))
    actions = plan_motion(rng, block, TRAYS[place], bool(rng.uniform() < 0.2))
    states, _ = simulate(actions, block)
    return make(seed, states + rng.uniform(-0.002, 0.002, states.shape), actions, f"put it on the {place}")


def locomotion(seed: int) -> Episode:
    """A stochastic policy in random smooth dynamics of 11 states and 3 actions, as in MuJoCo."""
    weights, rng = np.random.default_rng(3), np.random.default_rng([11, seed])
    own = weights.normal(0, 1, (11, 11))
    own /= np.abs(np.linalg.eigvals(own)).max()
    by, policy = weights.normal(0, 0.5, (11, 3)), weights.normal(0, 0.7, (3, 11))
    state, states, actions = rng.normal(0, 0.1, 11), [], []
    for step in range(int(rng.integers(100, 150))):
        action = np.tanh(policy @ state + 2 * np.sin(0.2 * step) + rng.normal(0, 0.3, 3))
        states.append(state)
        actions.append(action)
        state = np.tanh(own @ state + by @ action)
    return make(seed, np.array(states), np.array(actions), "run")


def grid(seed: int) -> Episode:
    """A walk to a goal in a grid of 8 by 8 cells: the same walk often occurs by chance."""
    rng, moves = np.random.default_rng([9, seed]), np.array([[1, 0], [-1, 0], [0, 1], [0, -1]])
    place, goal = rng.integers(0, 8, 2), rng.integers(0, 8, 2)
    states, actions = [], []
    for _ in range(40):
        states.append([*place, *goal])
        far = goal - place
        axis = int(far[0] == 0)
        actions.append([rng.integers(0, 4) if rng.random() < 0.2 else 2 * axis + int(far[axis] < 0)])
        place = np.clip(place + moves[actions[-1][0]], 0, 7)
        if (place == goal).all():
            break
    return make(seed, np.array(states) / 8, np.array(actions), "go to the goal")


def make(
    number: int, states: Array, actions: Array, text: str = "do it", split: str = "train", *, void: bool = False
) -> Episode:
    """An episode of these states [T, D] and actions [T, A]; with `void`, a last step without an action is added."""
    if void:
        states, actions = np.concatenate([states, states[-1:]]), np.concatenate([actions, np.zeros_like(actions[:1])])
    length = len(states)
    columns = {
        STATE: states.astype(np.float32),
        ACTION: actions.astype(np.float32),
        TEXT: np.full(length, text.encode(), object),
        "reward": np.zeros(length, np.float32),
        "discount": np.ones(length, np.float32),
        **episode_flags(length, last=True, terminal=False),
    }
    return Episode(EpisodeKey("motions/1.0.0", split, 0, number), columns)


def near(
    episodes: Sequence[Episode], count: int, noise: float, resample: bool = False, copy: int = 0
) -> list[tuple[int, Episode]]:
    """Near-duplicates of random episodes, each with the index of the original.

    Args:
      noise: the standard deviation of the noise, as a share of each dimension's spread in the data.
      resample: also change the length by up to 5 percent.
      copy: which copy of the same originals; each has its own noise.
    """
    rng = np.random.default_rng(5)
    spread = {path: np.concatenate([e.steps[path] for e in episodes]).std(axis=0) for path in (STATE, ACTION)}
    found = []
    originals = rng.choice(len(episodes), count, replace=False).tolist()
    rng = np.random.default_rng([5, copy]) if copy else rng
    for i, at in enumerate(originals):
        values, length = {}, len(episodes[at])
        steps = np.linspace(0, length - 1, round(length * (1 + rng.uniform(-0.05, 0.05) * resample)))
        for path in (STATE, ACTION):
            column = np.asarray(episodes[at].steps[path])
            moved = np.stack([np.interp(steps, np.arange(length), c) for c in column.T], axis=1)
            values[path] = moved + rng.normal(0, 1, moved.shape) * spread[path] * noise
        text = bytes(episodes[at].steps[TEXT][0]).decode()
        found.append((at, make(len(episodes) + i, values[STATE], values[ACTION], text)))
    return found


KINDS: dict[str, Callable[[int], Episode]] = {"arm": arm, "locomotion": locomotion, "grid": grid}
