"""Example episodes: a noisy controller pushes a point mass to a goal, perhaps with a camera above."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.episodes.schema import episode_flags
from rlds_beam.images.codecs import encode_jpeg
from rlds_beam.images.encoded_images import EncodedImages

NAME, VERSION = "point_mass", "1.0.0"

_STEP_SECONDS = 0.1
_MAX_STEPS = 24
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
    while len(actions) < _MAX_STEPS and (np.linalg.norm(goal - position) > _NEAR or len(actions) < 4):
        action = np.clip(4 * (goal - position) - 2.5 * velocity + rng.normal(0, 0.5, 2), -2, 2)
        velocity = velocity + _STEP_SECONDS * action
        position = position + _STEP_SECONDS * velocity
        positions.append(position)
        velocities.append(velocity)
        actions.append(action)
        rewards.append(-np.linalg.norm(goal - position))
    steps = len(positions)
    terminal = len(actions) < _MAX_STEPS and ends
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


CAMERA_NAME = "point_mass_camera"

SIZE = 96
"""Height and width of an image, in pixels."""

_HALF_WIDTH = 1.25
"""The camera sees -1.25 to 1.25 on both axes; y points up."""

_BACKGROUND, _GOAL, _POINT = (236, 239, 241), (76, 175, 80), (26, 35, 126)
_GOAL_RADIUS, _POINT_RADIUS = 9.0, 5.0

_MAX_IDLE_STEPS = 4


def with_camera(episode: Episode) -> Episode:
    """Adds `observation/image` (JPEG), `language_instruction`, and 0 to 4 idle steps at the start."""
    number = episode.key.position
    idle = number % (_MAX_IDLE_STEPS + 1)
    was = np.maximum(np.arange(-idle, len(episode)), 0)
    steps: dict[str, Any] = {path: column[was] for path, column in episode.steps.items()}
    start, goal = steps["observation/position"][0], steps["observation/goal"][0]
    steps["action"][:idle] = 0
    steps["reward"][:idle] = -np.linalg.norm(goal - start)
    steps["discount"][:idle] = 1
    last, terminal = (bool(steps[flag][-1]) for flag in ("is_last", "is_terminal"))
    steps |= episode_flags(len(was), last=last, terminal=terminal)
    jpegs = np.array([*encode_jpeg(draw(steps["observation/position"], steps["observation/goal"])), None], object)[:-1]
    steps["observation/image"] = EncodedImages(jpegs, (SIZE, SIZE, 3))
    steps["language_instruction"] = np.full(len(was), instruction(goal).encode(), object)
    return Episode(EpisodeKey(f"{CAMERA_NAME}/1.0.0", "train", 0, number), steps, episode.metadata)


def instruction(goal: Any) -> str:
    """The task, by the quarter of the plane that the goal is in."""
    height, side = "top" if goal[1] > 0 else "bottom", "right" if goal[0] > 0 else "left"
    return f"push the point to the goal at the {height} {side}"


def draw(positions: Any, goals: Any) -> np.ndarray[Any, Any]:
    """Images of the point and its goal: [T, 2] and [T, 2] to uint8 [T, 96, 96, 3]."""
    images = np.full((len(positions), SIZE, SIZE, 3), _BACKGROUND, np.float64)
    row, column = np.mgrid[0:SIZE, 0:SIZE]
    for centers, radius, color in ((goals, _GOAL_RADIUS, _GOAL), (positions, _POINT_RADIUS, _POINT)):
        x, y = (np.asarray(centers, np.float64).T / _HALF_WIDTH + 1) * (SIZE - 1) / 2
        distance = np.hypot(column - x[:, None, None], SIZE - 1 - row - y[:, None, None])
        cover = np.clip(radius + 0.5 - distance, 0, 1)[..., None]
        images += cover * (np.array(color) - images)
    return np.rint(images).astype(np.uint8)
