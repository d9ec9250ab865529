"""Clean episodes of three kinds of data, for `run.py defects`.

The arm of `rlds-beam example --robot` (positions, two cameras, timestamps, tasks), an agent in a grid (integers as
floats, discrete actions, images), and a simulated walker (17 values, 6 actions, as in MuJoCo).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rlds_beam.checking.signals import Context
from rlds_beam.cli.commands import example
from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.episodes.schema import episode_flags
from rlds_beam.typing import Array


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of data.

    Attributes:
      name: its name in the table.
      make: makes clean episodes, from their number and a seed.
      state, action: the fields of motion; an action that is not motion is "".
      camera, clock, text: the fields; "" if there are none.
      names: the names of the values of fields.
      moving: the dimensions of the state that defects change.
      discrete: whether states are whole numbers.
      position: whether actions are positions.
    """

    name: str
    make: Callable[[int, int], list[Episode]]
    state: str
    action: str = ""
    camera: str = ""
    clock: str = ""
    text: str = ""
    names: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    moving: tuple[int, ...] = ()
    discrete: bool = False
    position: bool = False
    fps: float = 10

    def context(self, episode: Episode, decoded: int) -> Context:
        found = Context.of_episode(episode, fps=self.fps, decoded=decoded)
        return dataclasses.replace(found, names=dict(self.names))


def make_robot(count: int, seed: int) -> list[Episode]:
    """The arm of the example, with the timestamps of a camera: 10 Hz, with a noise of 2 ms."""
    episodes = []
    for number, episode in enumerate(example.make_episodes(count, seed=seed, robot=True)):
        rng, steps = np.random.default_rng([1, seed, number]), len(episode)
        columns = {**episode.steps, "timestamp": np.arange(steps) * 0.1 + rng.normal(0, 0.002, steps)}
        metadata = {**episode.metadata, "num_steps": np.int64(steps)}
        episodes.append(episode.replace(steps=columns, metadata=metadata))
    return episodes


_SIDE = 8
_COLORS = {"red": (214, 57, 52), "green": (58, 158, 92), "blue": (48, 108, 206), "yellow": (240, 190, 50)}
_MOVES = np.array([(-1, 0), (1, 0), (0, -1), (0, 1)])


def make_grid(count: int, seed: int) -> list[Episode]:
    """An agent in a grid of 8x8 cells that walks to a goal; one of five actions is random, and walls stop it."""
    return [_grid_episode(np.random.default_rng([2, seed, number]), number) for number in range(count)]


def _grid_episode(rng: np.random.Generator, number: int) -> Episode:
    color = str(rng.choice([*_COLORS]))
    at, goal = rng.integers(0, _SIDE, 2), rng.integers(0, _SIDE, 2)
    while np.abs(at - goal).sum() < 5:
        at, goal = rng.integers(0, _SIDE, 2), rng.integers(0, _SIDE, 2)
    places, actions, heading = [at], [], [int(rng.integers(4))]
    while (at != goal).any() and len(actions) < 60:
        far = goal - at
        axis = int(rng.random() < abs(far[1]) / np.abs(far).sum())
        action = int(rng.integers(4)) if rng.random() < 0.2 else 2 * axis + int(far[axis] > 0)
        at = np.clip(at + _MOVES[action], 0, _SIDE - 1)
        actions.append(action)
        places.append(at)
        heading.append(action)
    steps = len(places)
    cells = np.concatenate([np.array(places), np.tile(goal, (steps, 1)), np.array(heading)[:, None]], axis=1)
    images = np.full((steps, 4 * _SIDE, 4 * _SIDE, 3), 40, np.uint8)
    for step, (x, y) in enumerate(places):
        images[step, 4 * goal[0] : 4 * goal[0] + 4, 4 * goal[1] : 4 * goal[1] + 4] = _COLORS[color]
        images[step, 4 * x + 1 : 4 * x + 3, 4 * y + 1 : 4 * y + 3] = 230
    done = np.arange(steps) == steps - 2
    columns: dict[str, Any] = {
        "observation/cells": cells.astype(np.float32),
        "observation/image": images,
        "action": np.array([*actions, 0]),
        "reward": (done - 0.01).astype(np.float32),
        "discount": (~done).astype(np.float32),
        "language_instruction": np.full(steps, f"go to the {color} goal".encode(), object),
        **episode_flags(steps, last=True, terminal=True),
    }
    metadata = {"episode_id": np.int64(number), "num_steps": np.int64(steps)}
    return Episode(EpisodeKey("grid/1.0.0", "train", 0, number), columns, metadata)


def make_walker(count: int, seed: int) -> list[Episode]:
    """A walker with 6 joints that torques of a noisy gait drive, as in MuJoCo's half-cheetah.

    The state is 8 positions and 9 velocities; the body bounces on the ground, so a velocity jumps when it lands.
    """
    rng = np.random.default_rng([3, seed])
    lengths = rng.integers(100, 201, count)
    steps, dt = int(lengths.max()), 0.05
    joints, speeds = rng.normal(0, 0.1, (count, 6)), rng.normal(0, 0.1, (count, 6))
    body, falls = rng.uniform(0.1, 0.3, count), np.zeros(count)
    pitch, turns, forward = rng.normal(0, 0.1, count), np.zeros(count), np.zeros(count)
    pace, phase = rng.uniform(1.4, 1.8, count), rng.uniform(0, 2 * np.pi, (count, 1)) + np.arange(6)
    states, actions = np.zeros((count, steps, 17)), np.zeros((count, steps, 6))
    for step in range(steps):
        gait = 0.8 * np.sin(2 * np.pi * pace[:, None] * dt * step + phase) - 0.2 * joints
        action = np.clip(gait + rng.normal(0, 0.2, (count, 6)), -1, 1)
        states[:, step] = np.column_stack([body, pitch, joints, forward, falls, turns, speeds])
        actions[:, step] = action
        for _ in range(5):
            speeds += dt / 5 * (60 * action - 30 * joints - 4 * speeds)
            joints += dt / 5 * speeds
            turns += dt / 5 * (joints[:, 0] - joints[:, 3] - 8 * pitch - 2 * turns) * 4
            pitch += dt / 5 * turns
            forward += dt / 5 * (np.abs(speeds[:, :3]).sum(axis=1) * 0.3 - forward)
            falls -= dt / 5 * 9.8
            body += dt / 5 * falls
            landed = body < 0
            falls = np.where(landed, 0.5 * np.abs(falls) + 0.1 * np.abs(speeds[:, 0]), falls)
            body = np.where(landed, 0, body)
    return [_walker_episode(states[i, : lengths[i]], actions[i, : lengths[i]], i) for i in range(count)]


def _walker_episode(states: Array, actions: Array, number: int) -> Episode:
    steps = len(states)
    columns: dict[str, Any] = {
        "observation": states,
        "action": actions.astype(np.float32),
        "reward": states[:, 8] - 0.1 * np.square(actions).sum(axis=1),
        "discount": np.ones(steps, np.float32),
        "timestamp": np.arange(steps) * 0.05,
        **episode_flags(steps, last=True, terminal=False),
    }
    metadata = {"episode_id": np.int64(number), "num_steps": np.int64(steps)}
    return Episode(EpisodeKey("walker/1.0.0", "train", 0, number), columns, metadata)


KINDS = (
    Kind(
        "robot",
        make_robot,
        "observation/state",
        "action",
        "observation/images/front",
        "timestamp",
        "language_instruction",
        dict.fromkeys(("observation/state", "action"), example.JOINTS),
        moving=(0, 1),
        position=True,
    ),
    Kind(
        "grid",
        make_grid,
        "observation/cells",
        camera="observation/image",
        text="language_instruction",
        moving=(0, 1),
        discrete=True,
    ),
    Kind("walker", make_walker, "observation", "action", clock="timestamp", moving=tuple(range(17)), fps=20),
)
