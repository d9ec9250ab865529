"""Example episodes as a robot records them: with a camera, an instruction, and idle steps before it moves."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.flags import episode_flags
from rlds_beam.episodes.keys import EpisodeKey
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.images.encoding import encode_jpeg

NAME = "point_mass_camera"

SIZE = 96
"""Height and width of an image, in pixels."""

_HALF_WIDTH = 1.25
"""The camera sees -1.25 to 1.25 on both axes; y points up."""

_BACKGROUND, _GOAL, _POINT = (236, 239, 241), (76, 175, 80), (26, 35, 126)
_GOAL_RADIUS, _POINT_RADIUS = 9.0, 5.0

_MOST_IDLE = 4


def with_camera(episode: Episode) -> Episode:
    """Adds `observation/image` (JPEG), `language_instruction`, and 0 to 4 idle steps at the start."""
    number = episode.key.position
    idle = number % (_MOST_IDLE + 1)
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
    return Episode(EpisodeKey(f"{NAME}/1.0.0", "train", 0, number), steps, episode.metadata)


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
