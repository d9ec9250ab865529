"""Clean episodes as a robot arm records them, and defects to put into them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rlds_beam.episodes.episode import Episode
from rlds_beam.images.codecs import encode_jpeg
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.testing import make_episode
from rlds_beam.typing import Array

Defect = Callable[[Episode, np.random.Generator], Episode]

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


def decoded(episode: Episode) -> Array:
    """The camera's images [T, 48, 48, 3]."""
    column = episode.steps[CAMERA]
    assert isinstance(column, EncodedImages)
    return column.decode()


def changed(episode: Episode, path: str, change: Callable[[Array], Any]) -> Episode:
    """The episode with a column changed by a function of its copy."""
    values = np.array(episode.steps[path])
    result = change(values)
    return episode.with_columns({path: values if result is None else result})


def part(episode: Episode, rng: np.random.Generator, share: float) -> slice:
    """A random part of the steps, before the last one."""
    size = max(2, int(share * len(episode)))
    start = int(rng.integers(3, len(episode) - size - 1))
    return slice(start, start + size)


def _frozen(episode: Episode, rng: np.random.Generator) -> Episode:
    column, where = episode.steps[CAMERA], part(episode, rng, 0.4)
    assert isinstance(column, EncodedImages)
    data = column.data.copy()
    data[where] = [data[where.start]] * (where.stop - where.start)
    return episode.with_columns({CAMERA: column.with_data(data)})


def _pictures(change: Callable[[Array], Array]) -> Defect:
    def defect(episode: Episode, rng: np.random.Generator) -> Episode:
        images = np.clip(change(decoded(episode).astype(np.float64)), 0, 255).astype(np.uint8)
        return episode.with_columns({CAMERA: stored(images)})

    return defect


def blurred(images: Array) -> Array:
    for axis in (1, 2):
        for shift in (1, 2, 4):
            images = (np.roll(images, shift, axis) + images + np.roll(images, -shift, axis)) / 3
    return images


def _jump(path: str) -> Defect:
    def defect(episode: Episode, rng: np.random.Generator) -> Episode:
        def change(values: Array) -> None:
            values[rng.integers(5, len(values) - 5), rng.integers(0, 6)] += rng.choice([-1, 1]) * 2.5

        return changed(episode, path, change)

    return defect


def _stuck(episode: Episode, rng: np.random.Generator) -> Episode:
    def change(values: Array) -> None:
        values[len(values) // 5 :, rng.integers(0, 6)] = 0.1

    return changed(episode, STATE, change)


def _saturated(episode: Episode, rng: np.random.Generator) -> Episode:
    return changed(
        episode, "action", lambda values: values.__setitem__(slice(0, -1), np.clip(values[:-1], -0.25, 0.25))
    )


def _idle(episode: Episode, rng: np.random.Generator) -> Episode:
    was = np.concatenate([np.arange(8), np.full(len(episode) - 9, 8), [len(episode) - 1]])
    return changed(changed(episode, "action", lambda values: values[was]), STATE, lambda values: values[was])


def _chatter(episode: Episode, rng: np.random.Generator) -> Episode:
    def change(values: Array) -> None:
        values[5:35, 6] = np.arange(30) % 2

    return changed(episode, "action", change)


def _unused_gripper(episode: Episode, rng: np.random.Generator) -> Episode:
    return changed(episode, "action", lambda values: values.__setitem__((slice(None), 6), 0))


def _late(episode: Episode, rng: np.random.Generator) -> Episode:
    return changed(episode, "action", lambda values: values[np.minimum(np.arange(len(values)) + 6, len(values) - 2)])


def _offset(episode: Episode, rng: np.random.Generator) -> Episode:
    return changed(episode, "action", lambda values: values.__setitem__((slice(0, -1), 2), values[:-1, 2] + 0.4))


def _noisy(episode: Episode, rng: np.random.Generator) -> Episode:
    return changed(
        episode, STATE, lambda v: v.__setitem__((..., slice(0, 6)), v[:, :6] + rng.normal(0, 0.1, (len(v), 6)))
    )


def _dropped(episode: Episode, rng: np.random.Generator) -> Episode:
    kept = np.setdiff1d(np.arange(len(episode)), rng.integers(5, len(episode) - 5) + np.arange(rng.integers(1, 4)))
    steps: dict[str, Any] = {path: column[kept] for path, column in episode.steps.items()}
    return episode.replace(steps=steps, metadata={**episode.metadata, "num_steps": np.int64(len(kept))})


def _clock(change: Callable[[Array, np.random.Generator], Any]) -> Defect:
    return lambda episode, rng: changed(episode, CLOCK, lambda values: change(values, rng))


def _swapped_times(times: Array, rng: np.random.Generator) -> None:
    at = rng.integers(5, len(times) - 5)
    times[[at, at + 1]] = times[[at + 1, at]]


def _text(*values: bytes) -> Defect:
    def defect(episode: Episode, rng: np.random.Generator) -> Episode:
        texts = [values[min(t * len(values) // len(episode), len(values) - 1)] for t in range(len(episode))]
        return episode.with_columns({TEXT: np.array([*texts, None], object)[:-1]})

    return defect


def _metadata(**values: Any) -> Defect:
    return lambda episode, rng: episode.replace(metadata={**episode.metadata, **values})


def _scaled(episode: Episode, rng: np.random.Generator) -> Episode:
    return changed(episode, STATE, lambda values: values * 57.3)


def _far(episode: Episode, rng: np.random.Generator) -> Episode:
    steps = len(episode)
    return changed(episode, STATE, lambda v: v + np.linspace(0, 1, steps)[:, None] * [0, 0, 6, 0, 0, 0, 0])


@dataclasses.dataclass(frozen=True)
class Injection:
    """A defect, and the signal that must find it."""

    signal: str
    defect: Defect
    replaces: Mapping[str, Any] = dataclasses.field(default_factory=dict)


DEFECTS = {
    "frozen camera": Injection("frozen_camera", _frozen),
    "repeated images": Injection("repeated_images", _frozen),
    "black images": Injection("black_images", _pictures(lambda images: images * 0.03)),
    "overexposed images": Injection("overexposed_images", _pictures(lambda images: images * 3)),
    "blurred images": Injection("blurred_images", _pictures(blurred)),
    "BGR images": Injection("swapped_channels", _pictures(lambda images: images[..., ::-1])),
    "dropped frames": Injection("dropped_frames", _dropped),
    "jitter": Injection("jitter", _clock(lambda times, rng: times + rng.uniform(-0.03, 0.03, len(times)))),
    "time going back": Injection("time_reversals", _clock(_swapped_times)),
    "wrong rate": Injection("rate_mismatch", _clock(lambda times, rng: times * 1.5)),
    "jump of the state": Injection("jump", _jump(STATE)),
    "jump of the action": Injection("jump", _jump("action")),
    "stuck joint": Injection("stuck", _stuck),
    "saturated action": Injection("saturation", _saturated),
    "idle robot": Injection("idle_share", _idle),
    "gripper chatter": Injection("gripper_chatter", _chatter),
    "unused gripper": Injection("gripper_range", _unused_gripper),
    "late state": Injection("lag", _late),
    "offset": Injection("offset", _offset),
    "jerky state": Injection("outlier_jerk", _noisy),
    "other end pose": Injection("outlier_end_pose", _far),
    "missing instruction": Injection("missing_instruction", _text(b"")),
    "generic instruction": Injection("generic_instruction", _text(b"Do something.")),
    "several instructions": Injection("instruction_changes", _text(*(task.encode() for task in TASKS[:2]))),
    "wrong length in metadata": Injection("wrong_metadata", _metadata(num_steps=np.int64(7))),
    "NaN in metadata": Injection("wrong_metadata", _metadata(mass=np.float32("nan"))),
    "degrees for radians": Injection("jump", _scaled),
}
"""Defects by name. Each is put into few episodes of a clean dataset."""
