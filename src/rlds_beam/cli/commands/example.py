"""`rlds-beam example`: writes a small RLDS dataset to try the other commands on.

A point mass is pushed to a goal, or a planar arm puts a block on a tray. Lengths are in meters, angles in radians. A
point of the arm's plane is a complex number: from the arm's base, the real part points to the right, the imaginary part
up. A parallel linkage keeps the hand upright, so two joints place the fingertips. Values are rounded before they are
stored or drawn, so all machines give the same bytes.
"""

from __future__ import annotations

import cmath
import dataclasses
import math
import os
import shlex
from collections.abc import Iterator
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from rlds_beam import storage, text
from rlds_beam.encoding.metadata import encode
from rlds_beam.encoding.tfds.rlds_dataset import write_dataset
from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.episodes.schema import episode_flags
from rlds_beam.errors import UsageError
from rlds_beam.images.codecs import encode_jpeg
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.options import Options, option
from rlds_beam.reading import meaning
from rlds_beam.typing import Array

__all__ = ["JOINTS", "ExampleConfig", "PlanarArm", "example", "make_episodes"]

USAGE = "DIRECTORY"
EXAMPLES = """
    rlds-beam example data
    rlds-beam example data --robot --broken=3
"""

JOINTS = ("shoulder", "elbow", "gripper")
"""Values of `observation/state` and `action`: two angles, and the opening of the gripper from 0 (closed) to 1."""

_POINT_MASS, _PLANAR_ARM, _VERSION = "point_mass", "planar_arm", "1.0.0"
_STEP_SECONDS, _MAX_STEPS = 0.1, 24  # of the point; an episode of that many steps ends, but is not terminal
_COLORS = {"red": "#d63934", "green": "#3a9e5c", "blue": "#306cce", "yellow": "#f0be32"}
_TRAYS = {"left tray": 0.14, "right tray": 0.475}  # tray -> its place from the base
_SHOULDER, _UPPER, _FORE, _HAND = 0.23j, 0.26, 0.26, 0.09j
_SERVO, _GRIPPER_SPEED = 0.8, 0.12  # the share of the way to its target that a joint moves in a step; the most it opens
_OPENING, _BLOCK, _TRAY_WIDTH, _TRAY_FLOOR = 0.09, 0.06, 0.13, 0.012
_SQUEEZE = 0.6  # the opening that closes the gripper on a block, which is 0.67 wide
_SIZE, _ZOOM = 128, 6  # height and width of the images; how much larger the scene is drawn, so that edges are smooth
_PIXELS, _CANVAS, _CORNER = 200 * _ZOOM, 208 * _ZOOM, -0.285 + 0.73j  # per meter; of the scene; its upper left corner
_DARK, _ORANGE = "#343a44", "#f08528"


@dataclasses.dataclass(frozen=True)
class ExampleConfig(Options):
    """Write a small RLDS dataset in TFDS layout: simulated episodes of a point mass pushed to a goal, or of an arm."""

    directory: str = option(dataclasses.MISSING, "directory to write to", positional=True)
    _: dataclasses.KW_ONLY
    episodes: int = option(32, "number of episodes", least=1)
    broken: int = option(0, "number of episodes without a last step, as if the recording was interrupted", least=0)
    robot: bool = option(False, "simulate an arm with two cameras, which puts blocks on trays, instead of a point mass")


def main(config: ExampleConfig) -> int:
    """Writes the dataset, prints the next command to try, and returns the exit code."""
    path = example(config)
    print(f"wrote     {path}: {text.count(config.episodes, 'episode')} in 2 shards")
    print(f"next      rlds-beam inspect {shlex.quote(path)}")
    return 0


def example(config: ExampleConfig) -> str:
    """Writes the dataset, without TensorFlow, and returns its directory: DIRECTORY/point_mass/1.0.0, or planar_arm.

    Raises:
      UsageError: the dataset already exists.
    """
    name = _PLANAR_ARM if config.robot else _POINT_MASS
    path = os.path.join(config.directory, name, _VERSION)
    if os.path.exists(path):
        raise UsageError(f"{path} already exists: remove it, or name another directory")
    episodes = make_episodes(config.episodes, broken=config.broken, robot=config.robot)
    write_dataset(config.directory, episodes, name=name, version=_VERSION, shards=2)
    if config.robot:
        known = meaning.Meaning(10, _PLANAR_ARM, {"observation/state": JOINTS, "action": JOINTS}, "real")
        storage.write_text(storage.join(path, meaning.MEANING), encode(known.to_json()))
    return path


def make_episodes(count: int, *, broken: int = 0, seed: int = 0, robot: bool = False) -> Iterator[Episode]:
    """Yields episodes of 5 to 25 steps, in which a noisy controller pushes a point mass to a goal; or of the arm.

    Args:
      broken: number of episodes without a last step (`missing_is_last`), spread evenly.
      robot: 30 to 60 steps of the arm instead, which misses some blocks: targets of the joints, two cameras (JPEG,
        128x128), an instruction, and the episode's `success`.
    """
    name, simulate = (_PLANAR_ARM, _move_block) if robot else (_POINT_MASS, _push_point)
    interrupted = {count * i // broken for i in range(broken)}
    for i in range(count):
        whole = i not in interrupted
        columns, success = simulate(np.random.default_rng([seed, i]), whole)
        steps = len(columns["action"])
        done = success & (np.arange(steps) == steps - 2)
        rewards = {"reward": done.astype(np.float32), "discount": (~done).astype(np.float32)}
        columns = {**rewards, **columns, **episode_flags(steps, last=whole, terminal=success)}
        metadata: dict[str, Any] = {"episode_id": np.int64(i)}
        if robot:
            metadata["success"] = np.bool_(success)
        yield Episode(EpisodeKey(f"{name}/{_VERSION}", "train", 0, i), columns, metadata)


def _push_point(rng: np.random.Generator, whole: bool) -> tuple[dict[str, Any], bool]:
    """The columns of an episode, and whether it is whole and the point reached the goal."""
    position, velocity, goal = rng.uniform(-1, 1, 2), np.zeros(2), rng.uniform(-1, 1, 2)
    positions, velocities, actions = [position], [velocity], list[Array]()
    while len(actions) < _MAX_STEPS and (np.linalg.norm(goal - position) > 0.05 or len(actions) < 4):
        action = np.clip(4 * (goal - position) - 2.5 * velocity + rng.normal(0, 0.5, 2), -2, 2)
        velocity = velocity + _STEP_SECONDS * action
        position = position + _STEP_SECONDS * velocity
        positions.append(position)
        velocities.append(velocity)
        actions.append(action)
    # In RLDS, the last step holds the last observation; its action, reward and discount are void.
    columns = {
        "observation/position": np.array(positions, np.float32),
        "observation/velocity": np.array(velocities, np.float32),
        "observation/goal": np.tile(goal.astype(np.float32), (len(positions), 1)),
        "action": np.array([*actions, np.zeros(2)], np.float32),
        "reward": np.array([*(-np.linalg.norm(goal - at) for at in positions[1:]), 0], np.float32),
    }
    return columns, whole and len(actions) < _MAX_STEPS


def _move_block(rng: np.random.Generator, whole: bool) -> tuple[dict[str, Any], bool]:
    """The columns of an episode, or of its first part, and whether it is whole and the block is on its tray."""
    arm, seen = PlanarArm(rng), list[dict[str, Any]]()
    actions = arm.plan if whole else arm.plan[: len(arm.plan) * 3 // 5]
    for action in actions:
        seen.append(arm.observe())
        arm.step(action)
    columns: dict[str, Any] = {
        "action": actions.astype(np.float32),
        "language_instruction": np.full(len(actions), arm.instruction.encode(), object),
        "observation/state": np.stack([observation["state"] for observation in seen]),
    }
    for camera in ("images/front", "images/wrist"):
        images = np.stack([observation[camera] for observation in seen])
        encoded = np.array(encode_jpeg(images, 90), object)
        columns[f"observation/{camera}"] = EncodedImages(encoded, images.shape[1:])
    return columns, whole and arm.success


def forward(shoulder: float, elbow: float) -> complex:
    """Where the fingertips are for two joint angles."""
    return _SHOULDER + cmath.rect(_UPPER, shoulder) + cmath.rect(_FORE, shoulder + elbow) - _HAND


def inverse(tip: complex) -> tuple[float, float]:
    """The joint angles that put the fingertips at a point in reach, with the elbow up."""
    wrist = tip + _HAND - _SHOULDER
    elbow = -math.acos((abs(wrist) ** 2 - _UPPER**2 - _FORE**2) / (2 * _UPPER * _FORE))
    return cmath.phase(wrist) - cmath.phase(_UPPER + cmath.rect(_FORE, elbow)), elbow


def _find_pixel(point: complex) -> tuple[int, int]:
    return round(_PIXELS * (point - _CORNER).real), round(-_PIXELS * (point - _CORNER).imag)


class PlanarArm:
    """The arm, in a loop with a policy or with its own plan, which misses the block in one of five scenes.

    Attributes:
      instruction: the task.
      plan: targets of the joints that put the block on its tray [T, 3]; the arm starts at the first.
    """

    def __init__(self, seed: int | np.random.Generator):
        self._rng = rng = np.random.default_rng(seed)
        self._color, self._other = rng.permutation(list(_COLORS))[:2].tolist()
        tray = str(rng.choice(list(_TRAYS)))
        self.instruction, self._tray = f"put the {self._color} block on the {tray}", _TRAYS[tray]
        spots = [round(float(spot + rng.uniform(-0.012, 0.012)), 4) for spot in rng.permutation((0.25, 0.36))]
        self._block, self._other_block = (complex(spot, _BLOCK / 2) for spot in spots)
        self._offset: complex | None = None  # of the block from the fingertips that hold it
        self.plan = self._plan_motion(rng)
        self._state = self.plan[0]

    def _plan_motion(self, rng: np.random.Generator) -> Array:
        """Minimum-jerk motions of the fingertips, with noise, rounded to a microradian; some close above the block."""
        grasp = _BLOCK / 2 + (rng.uniform(0.04, 0.05) if rng.uniform() < 0.2 else rng.uniform(-0.006, 0.008))
        above, carry, away = rng.uniform((0.1, 0.13, 0.11), (0.14, 0.17, 0.15)).tolist()
        drop = _TRAY_FLOOR + grasp + rng.uniform(0.003, 0.008)
        x, release = self._block.real + rng.uniform(-0.006, 0.006), self._tray + rng.uniform(-0.016, 0.016)
        at = complex(rng.uniform(0.2, 0.42), rng.uniform(0.14, 0.2))
        way = [(x, above, 1.0), (x, grasp, 1.0), (x, grasp, _SQUEEZE), (x, carry, _SQUEEZE)]
        way += [(release, carry, _SQUEEZE), (release, drop, _SQUEEZE), (release, drop, 1.0), (release, away, 1.0)]
        targets = [(*inverse(at), 1.0)]
        for right, up, gripper in way:
            start, at = at, complex(right, up)
            steps = round(10 * (0.35 + 1.8 * abs(at - start) + rng.uniform(0, 0.15)))
            for time in (np.arange(1, steps + 1) / steps).tolist():
                point = start + time**3 * (10 - 15 * time + 6 * time**2) * (at - start)
                targets.append((*inverse(point), gripper))
        plan = np.array(targets)
        plan[:, :2] += rng.normal(0, 0.003, (len(plan), 2))
        return plan.round(6)

    def step(self, action: Array) -> None:
        """Moves the arm toward the targets [3] for a tenth of a second, with the block if the gripper holds it."""
        before, move = self._state, _SERVO * (np.asarray(action, np.float64) - self._state)
        move[2] = np.clip(action[2] - before[2], -_GRIPPER_SPEED, _GRIPPER_SPEED)
        self._state = before + move
        tip, width = forward(*self._state[:2]), _BLOCK / _OPENING
        away = tip - self._block
        near = abs(away.real) < (_OPENING - _BLOCK) / 2 and abs(away.imag) < _BLOCK / 2
        if self._offset is None and self._state[2] <= width < before[2] and near:
            self._offset = away.imag * 1j
        if self._offset is not None and action[2] > width:
            on_tray = any(abs(self._block.real - tray) < _TRAY_WIDTH / 2 for tray in _TRAYS.values())
            self._offset, self._block = None, complex(self._block.real, _TRAY_FLOOR * on_tray + _BLOCK / 2)
        if self._offset is not None:
            self._state[2], self._block = max(self._state[2], width), tip - self._offset

    @property
    def success(self) -> bool:
        """Whether the block is on the tray, and released."""
        return self._offset is None and abs(self._block.real - self._tray) < _TRAY_WIDTH / 2

    def observe(self) -> dict[str, Any]:
        """The fields of an example episode without `observation/`: `state`, `images/front`, and `images/wrist`."""
        state = self._state.round(6)
        measured = (state + self._rng.uniform(-0.002, 0.002, 3)).round(6)
        measured[2] = measured[2].clip(0, 1)
        observation = {"state": measured.astype(np.float32)}
        shoulder, elbow, opening = state.tolist()
        tip = forward(shoulder, elbow)
        wrist = tip + _HAND
        scene = Image.new("RGB", (_CANVAS, _CANVAS), "#cdd7e2")
        draw = ImageDraw.Draw(scene)

        def box(corner: complex, opposite: complex, color: str, radius: float = 0.005) -> None:
            column, row = _find_pixel(opposite)
            draw.rounded_rectangle((*_find_pixel(corner), column - 1, row - 1), _PIXELS * radius, color)

        draw.rectangle((0, _find_pixel(0.06j)[1], _CANVAS, _CANVAS), "#d6b286")
        half = complex(_BLOCK, -_BLOCK) / 2
        for color, block in ((self._other, self._other_block), (self._color, self._block)):
            block = complex(round(block.real, 6), round(block.imag, 6))
            box(block - half, block + half, _COLORS[color])
        box(_SHOULDER - 0.045, 0.045 - 0.02j, _DARK, 0.01)
        box(wrist - (0.065 + 0.02j), wrist + (0.065 - 0.045j), _DARK, 0.0075)
        for side in (-_OPENING / 2 * opening - 0.0175, _OPENING / 2 * opening):
            box(wrist + side - 0.035j, tip + side + (0.0175 - 0.01j), _DARK)
        joints = [_find_pixel(joint) for joint in (_SHOULDER, _SHOULDER + cmath.rect(_UPPER, shoulder), wrist)]
        draw.line(joints, _ORANGE, _PIXELS // 20)
        for color, radius in ((_ORANGE, 0.025), ("#ced4dc", 0.02)):
            for pixel in joints:
                draw.circle(pixel, _PIXELS * radius, color)
        for tray in _TRAYS.values():
            box(tray - 0.07, tray + (0.07 - 0.02j), "#5c6878", 0.0075)
        for name, corner, zoom in (("front", -0.085 + 0.53j, _ZOOM), ("wrist", tip + (-0.16 + 0.16j), _ZOOM // 2)):
            column, row = _find_pixel(corner)
            view = scene.crop((column, row, column + zoom * _SIZE, row + zoom * _SIZE))
            observation[f"images/{name}"] = np.asarray(view.reduce(zoom))
        return observation
