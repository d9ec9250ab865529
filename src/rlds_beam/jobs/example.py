"""Example episodes: a noisy controller pushes a point mass to a goal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.flags import episode_flags
from rlds_beam.episodes.keys import EpisodeKey
from rlds_beam.jobs.example_camera import with_camera

NAME, VERSION = "point_mass", "1.0.0"

_STEP_SECONDS = 0.1
_LONGEST = 24
"""Steps after which an episode is truncated: it ends, but not in a terminal state."""

_NEAR = 0.05
"""Distance to the goal at which an episode ends in a terminal state."""


def make_episodes(count: int, *, broken: int = 0, seed: int = 0, camera: bool = False) -> Iterator[Episode]:
    """Yields episodes of 5 to 25 steps, the same ones for the same arguments.

    Args:
      count: number of episodes.
      broken: number of episodes without a last step (`missing_is_last`), as if the recording was interrupted; they are
        spread evenly.
      seed: seeds the starts, the goals and the noise.
      camera: add images, an instruction, and up to 4 idle steps at the start.
    """
    without_end = {count * i // broken for i in range(broken)}
    for i in range(count):
        episode = _episode(np.random.default_rng([seed, i]), i, ends=i not in without_end)
        yield with_camera(episode) if camera else episode


def _episode(rng: np.random.Generator, number: int, *, ends: bool) -> Episode:
    position, velocity = rng.uniform(-1, 1, 2), np.zeros(2)
    goal = rng.uniform(-1, 1, 2)
    positions, velocities = [position], [velocity]
    actions: list[Any] = []
    rewards: list[Any] = []
    while len(actions) < _LONGEST and (np.linalg.norm(goal - position) > _NEAR or len(actions) < 4):
        action = np.clip(4 * (goal - position) - 2.5 * velocity + rng.normal(0, 0.5, 2), -2, 2)
        velocity = velocity + _STEP_SECONDS * action
        position = position + _STEP_SECONDS * velocity
        positions.append(position)
        velocities.append(velocity)
        actions.append(action)
        rewards.append(-np.linalg.norm(goal - position))
    steps = len(positions)
    terminal = len(actions) < _LONGEST and ends
    # In RLDS, the last step holds the last observation; its action, reward and discount are void.
    columns = {
        "observation/position": np.array(positions, np.float32),
        "observation/velocity": np.array(velocities, np.float32),
        "observation/goal": np.tile(goal.astype(np.float32), (steps, 1)),
        "action": np.array([*actions, np.zeros(2)], np.float32),
        "reward": np.array([*rewards, 0], np.float32),
        "discount": np.where(terminal & (np.arange(steps) == steps - 2), 0, 1).astype(np.float32),
        **episode_flags(steps, last=ends, terminal=terminal),
    }
    return Episode(EpisodeKey(f"{NAME}/{VERSION}", "train", 0, number), columns, {"episode_id": np.int64(number)})
