"""Clean episodes as a robot arm records them, and functions that change them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rlds_beam.episodes.episode import Episode
from rlds_beam.images.codecs import encode_jpeg
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.testing import make_episode
from rlds_beam.typing import Array

STATE, CAMERA, CLOCK, TEXT = "observation/state", "observation/image", "timestamp", "language_instruction"
TASKS = ("pick up the red cup", "open the top drawer", "put the spoon into the bowl")


def robot_episode(seed: int, *, steps: int | None = None) -> Episode:
    """An episode of 7 joint positions (the last is the gripper) at 10 Hz, with a camera that shows them."""
    rng = np.random.default_rng([7, seed])
    length = steps or int(rng.integers(40, 90))
    time = np.linspace(0, 1, length)[:, None]
    amplitude, phase = rng.uniform(0.3, 0.6, 6), rng.uniform(-0.3, 0.3, 6)
    joints = amplitude * np.sin(2 * np.pi * (1 + 0.2 * np.arange(6)) * time + phase)
    closed = (time[:, 0] > rng.uniform(0.3, 0.4)) & (time[:, 0] < rng.uniform(0.6, 0.8))
    state = np.concatenate([joints, closed[:, None] * 1.0], axis=1)
    state[:, :6] += rng.normal(0, 0.002, (length, 6))
    action = np.concatenate([state[1:], state[-1:]])
    action[:, :6] += rng.normal(0, 0.002, (length, 6))
    columns: dict[str, Any] = {
        STATE: state.astype(np.float32),
        "action": action.astype(np.float32),
        CLOCK: np.arange(length) * 0.1 + rng.normal(0, 0.002, length),
        TEXT: np.full(length, TASKS[seed % 3].encode(), object),
        CAMERA: stored(pictures(state, rng)),
    }
    about = {"episode_id": np.int64(seed), "robot": b"arm", "num_steps": np.int64(length)}
    episode = make_episode(length, seed=seed, columns=columns, metadata=about)
    columns["action"][-1] = 0  # void in RLDS
    return episode.replace(steps={p: c for p, c in episode.steps.items() if p != "observation"} | columns)


def pictures(state: Array, rng: np.random.Generator) -> Array:
    """Images [T, 48, 48, 3] of a reddish table with a bar for each joint."""
    images = np.full((len(state), 48, 48, 3), (190, 150, 110), np.float64)
    images[:, ::6] -= 60
    for joint in range(6):
        for step, value in enumerate(state[:, joint]):
            x = round(20 + 18 * float(np.clip(value, -1, 1)))
            images[step, 4 + 7 * joint : 8 + 7 * joint, x : x + 6] = (40, 90, 160)
    return np.clip(images + rng.normal(0, 3, images.shape), 0, 255).astype(np.uint8)


def stored(images: Array) -> EncodedImages:
    """Images as JPEG."""
    return EncodedImages(np.array([*encode_jpeg(images), None], object)[:-1], images.shape[1:])


def changed(episode: Episode, path: str, change: Callable[[Array], Any]) -> Episode:
    """The episode with a column changed by a function of its copy."""
    values = np.array(episode.steps[path])
    result = change(values)
    return episode.with_columns({path: values if result is None else result})


def blurred(images: Array) -> Array:
    for axis in (1, 2):
        for shift in (1, 2, 4):
            images = (np.roll(images, shift, axis) + images + np.roll(images, -shift, axis)) / 3
    return images
