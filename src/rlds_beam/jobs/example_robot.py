"""Example episodes of a robot: a planar arm with a gripper puts a block on a tray, seen by two cameras.

A parallel linkage keeps the hand upright, so two joints place the fingertips. Lengths are in meters, angles in radians;
`x` points from the base to the right, `z` up from the table. Values are rounded before they are stored or drawn, so
machines whose sines differ in the last bit give the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.episodes.schema import episode_flags
from rlds_beam.images.codecs import encode_jpeg
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.jobs.canvas import SIZE, Canvas, Color, Point
from rlds_beam.reading.meaning import Meaning
from rlds_beam.typing import Array

NAME = "planar_arm"
JOINTS = ("shoulder", "elbow", "gripper")
"""Values of `observation/state` and `action`: two angles, and the opening of the gripper from 0 (closed) to 1."""
MEANING = Meaning(10, NAME, {"observation/state": JOINTS, "action": JOINTS}, "real")

COLORS = {"red": (214, 57, 52), "green": (58, 158, 92), "blue": (48, 108, 206), "yellow": (240, 190, 50)}
PLACES = {"left tray": 0.14, "right tray": 0.475}
"""Place -> its x."""

_SHOULDER_Z, _UPPER, _FORE, _HAND = 0.23, 0.26, 0.26, 0.09
_SERVO, _GRIPPER_SPEED = 0.8, 0.12
"""A joint moves this part of the way to its target in a step; the gripper opens and closes by at most this."""
_OPENING, _BLOCK, _TRAY_WIDTH, _TRAY_FLOOR = 0.09, 0.06, 0.13, 0.012
_SQUEEZE = 0.6
"""The opening that closes the gripper on a block, which is 0.67 wide."""
_SENSOR_NOISE = 0.002
_BLOCK_PLACES = (0.25, 0.36)
_MISSES = 0.2
"""The share of episodes in which the gripper closes above the block."""


def make_episodes(count: int, *, broken: int = 0, seed: int = 0) -> Iterator[Episode]:
    """Yields episodes of 30 to 60 steps, the same ones for the same arguments.

    Their fields are `observation/state` and `action` (float32 [3], named `JOINTS`; actions are absolute targets),
    `observation/images/front` and `observation/images/wrist` (JPEG, 128x128), `language_instruction`, and the episode's
    `success`. `reward` is 1 at the last transition of a success.

    Args:
      count: number of episodes.
      broken: number of episodes that end in the middle, without a last step (`missing_is_last`), as if the recording
        was interrupted; they are spread evenly.
      seed: seeds the scenes, the motion, and the noise.
    """
    interrupted = {count * i // broken for i in range(broken)}
    for i in range(count):
        yield _episode(np.random.default_rng([seed, i]), i, i in interrupted)


def forward(shoulder: float, elbow: float) -> Point:
    """Where the fingertips are for two joint angles."""
    (_, _), (x, z) = _elbow_and_wrist(shoulder, elbow)
    return x, z - _HAND


def inverse(x: float, z: float) -> Point:
    """The joint angles that put the fingertips at a point, with the elbow up.

    A point out of reach gives the angles of the nearest point on the same ray from the shoulder.
    """
    dz = z + _HAND - _SHOULDER_Z
    cosine = (x * x + dz * dz - _UPPER * _UPPER - _FORE * _FORE) / (2 * _UPPER * _FORE)
    elbow = -math.acos(min(1.0, max(-1.0, cosine)))
    return math.atan2(dz, x) - math.atan2(_FORE * math.sin(elbow), _UPPER + _FORE * math.cos(elbow)), elbow


def _elbow_and_wrist(shoulder: float, elbow: float) -> tuple[Point, Point]:
    x, z = _UPPER * math.cos(shoulder), _SHOULDER_Z + _UPPER * math.sin(shoulder)
    return (x, z), (x + _FORE * math.cos(shoulder + elbow), z + _FORE * math.sin(shoulder + elbow))


class _Scene(NamedTuple):
    """The colors and the x of the block to move and of the other block, and the name of the tray."""

    color: str
    block: float
    other: tuple[str, float]
    place: str

    @property
    def instruction(self) -> str:
        return f"put the {self.color} block on the {self.place}"

    def is_solved(self, block: float) -> bool:
        """Whether a block at this x is on the tray."""
        return abs(block - PLACES[self.place]) < _TRAY_WIDTH / 2


def _draw_scene(rng: np.random.Generator) -> _Scene:
    color, other = (str(color) for color in rng.permutation(list(COLORS))[:2])
    place = str(rng.choice(list(PLACES)))
    spots = [round(float(spot + rng.uniform(-0.012, 0.012)), 4) for spot in rng.permutation(_BLOCK_PLACES)]
    return _Scene(color, spots[0], (other, spots[1]), place)


def _episode(rng: np.random.Generator, number: int, interrupted: bool) -> Episode:
    scene = _draw_scene(rng)
    missed = bool(rng.uniform() < _MISSES)
    actions = _plan(rng, scene.block, PLACES[scene.place], missed)
    states, blocks = simulate(actions, scene.block)
    success = bool(scene.is_solved(blocks[-1][0]))
    steps = len(actions) * 3 // 5 if interrupted else len(actions)
    done = success & (np.arange(steps) == len(actions) - 2)
    measured = _measure(rng, states)
    drawn = states[:steps], blocks[:steps], scene.color, scene.other
    columns: dict[str, Any] = {
        "observation/state": measured[:steps].astype(np.float32),
        "observation/images/front": _encode(draw_front(*drawn)),
        "observation/images/wrist": _encode(draw_wrist(*drawn)),
        "action": actions[:steps].astype(np.float32),
        "reward": done.astype(np.float32),
        "discount": (~done).astype(np.float32),
        "language_instruction": np.full(steps, scene.instruction.encode(), object),
        **episode_flags(steps, last=not interrupted, terminal=success and not interrupted),
    }
    metadata = {"episode_id": np.int64(number), "success": np.bool_(success and not interrupted)}
    return Episode(EpisodeKey(f"{NAME}/1.0.0", "train", 0, number), columns, metadata)


def _measure(rng: np.random.Generator, states: Array) -> Array:
    """The states [..., 3] with the noise of the sensors."""
    measured: Array = (states + rng.uniform(-_SENSOR_NOISE, _SENSOR_NOISE, states.shape)).round(6)
    measured[..., 2] = measured[..., 2].clip(0, 1)
    return measured


class PlanarArm:
    """The arm of the example episodes in a loop with a policy, in scenes that the episodes do not show.

    Args:
      seed: seeds the scene, the start of the arm, and the noise of its sensors.
    """

    def __init__(self, seed: int):
        self._rng = np.random.default_rng([seed])
        self._scene = _draw_scene(self._rng)
        start = inverse(self._rng.uniform(0.2, 0.42), self._rng.uniform(0.14, 0.2))
        self._motion = _Motion(np.array([*start, 1.0]).round(6), self._scene.block)

    def observe(self) -> dict[str, Any]:
        """The fields of an example episode without `observation/`: `state`, `images/front`, and `images/wrist`."""
        state, block = self._motion.state.round(6), np.array(self._motion.block).round(6)
        drawn = state[None], block[None], self._scene.color, self._scene.other
        return {
            "state": _measure(self._rng, state).astype(np.float32),
            "images/front": draw_front(*drawn)[0],
            "images/wrist": draw_wrist(*drawn)[0],
        }

    def step(self, action: Array) -> None:
        """Moves the arm toward the targets [3] for a tenth of a second."""
        self._motion.step(np.asarray(action, np.float64))

    @property
    def instruction(self) -> str:
        return self._scene.instruction

    @property
    def success(self) -> bool:
        """Whether the block is on the tray, and released."""
        return self._motion.offset is None and self._scene.is_solved(self._motion.block[0])


def _plan(rng: np.random.Generator, block: float, place: float, missed: bool) -> Array:
    """The targets of the joints [T, 3], rounded to a microradian: minimum-jerk motions of the fingertips, and noise."""
    grasp = _BLOCK / 2 + (rng.uniform(0.04, 0.05) if missed else rng.uniform(-0.006, 0.008))
    above, carry, away = rng.uniform((0.1, 0.13, 0.11), (0.14, 0.17, 0.15)).tolist()
    drop = _TRAY_FLOOR + grasp + rng.uniform(0.003, 0.008)
    x, release = block + rng.uniform(-0.006, 0.006), place + rng.uniform(-0.016, 0.016)
    at = (rng.uniform(0.2, 0.42), rng.uniform(0.14, 0.2))
    way = [(x, above, 1.0), (x, grasp, 1.0), (x, grasp, _SQUEEZE), (x, carry, _SQUEEZE)]
    way += [(release, carry, _SQUEEZE), (release, drop, _SQUEEZE), (release, drop, 1.0), (release, away, 1.0)]
    path = [(*at, 1.0)]
    for *to, gripper in way:
        seconds = 0.35 + 1.8 * math.sqrt((to[0] - at[0]) ** 2 + (to[1] - at[1]) ** 2) + rng.uniform(0, 0.15)
        time = np.arange(1, round(10 * seconds) + 1)[:, None] / round(10 * seconds)
        points = np.array(at) + time**3 * (10 - 15 * time + 6 * time**2) * (np.array(to) - at)
        path += [(x, z, gripper) for x, z in points.tolist()]
        at = (to[0], to[1])
    targets = np.array([(*inverse(x, z), gripper) for x, z, gripper in path])
    targets[:, :2] += rng.normal(0, 0.003, (len(targets), 2))
    return targets.round(6)


def simulate(actions: Array, block: float) -> tuple[Array, Array]:
    """Moves the arm to targets, and the block with it while the gripper holds it.

    Args:
      actions: the targets [T, 3]; the arm starts at the first one.
      block: the x of the block on the table.

    Returns:
      The states [T, 3], and the centers of the block [T, 2], in meters; the last action has no effect.
    """
    motion = _Motion(np.array(actions[0], np.float64), block)
    states, centers = [motion.state], [motion.block]
    for action in actions[:-1]:
        motion.step(action)
        states.append(motion.state)
        centers.append(motion.block)
    return np.array(states).round(6), np.array(centers).round(6)


class _Motion:
    """The arm and the block.

    Attributes:
      state: the joints [3].
      block: the center of the block.
      offset: the height of the fingertips above that center while the gripper holds the block, else None.
    """

    def __init__(self, state: Array, block: float):
        self.state, self.block = state, (block, _BLOCK / 2)
        self.offset: float | None = None

    def step(self, action: Array) -> None:
        before, move = self.state, _SERVO * (action - self.state)
        move[2] = np.clip(action[2] - before[2], -_GRIPPER_SPEED, _GRIPPER_SPEED)
        self.state = before + move
        x, z = forward(self.state[0], self.state[1])
        width = _BLOCK / _OPENING
        near = abs(x - self.block[0]) < (_OPENING - _BLOCK) / 2 and abs(z - self.block[1]) < _BLOCK / 2
        if self.offset is None and self.state[2] <= width < before[2] and near:
            self.offset = z - self.block[1]
        if self.offset is not None and action[2] > width:
            self.offset, self.block = None, (self.block[0], _height_below(self.block[0]) + _BLOCK / 2)
        if self.offset is not None:
            self.state[2], self.block = max(self.state[2], width), (x, z - self.offset)


def _height_below(x: float) -> float:
    return _TRAY_FLOOR if any(abs(x - place) < _TRAY_WIDTH / 2 for place in PLACES.values()) else 0.0


_TABLE_ROW, _BASE_COLUMN, _SCALE = 106, 17, 200
_WALL, _TABLE, _EDGE = (205, 215, 226), (214, 178, 134), (170, 132, 92)
_TRAY, _TRAY_INSIDE, _METAL, _DARK = (92, 104, 120), (70, 80, 95), (206, 212, 220), (52, 58, 68)
_ARM, _ARM_DARK, _ARM_LIGHT = (240, 133, 40), (176, 88, 18), (255, 178, 102)


def _encode(images: Array) -> EncodedImages:
    return EncodedImages(np.array([*encode_jpeg(images, 90), None], object)[:-1], (SIZE, SIZE, 3))


def _shade(color: Color, factor: float) -> Color:
    return [min(255, value * factor) for value in color]


def _at(point: Sequence[float]) -> Point:
    """Where the front camera sees a point."""
    return _BASE_COLUMN + _SCALE * point[0], _TABLE_ROW - _SCALE * point[1]


def draw_front(states: Array, blocks: Array, color: str, other: tuple[str, float]) -> Array:
    """The images of the camera in front of the table, uint8 [T, 128, 128, 3].

    Args:
      states: the states [T, 3].
      blocks: the centers of the block that is moved [T, 2].
      color: its color.
      other: the color and the x of the block that stays.
    """
    wall = np.array(_WALL, np.float32) + np.linspace(14, -16, SIZE, dtype=np.float32)[:, None, None]
    scene = Canvas(np.broadcast_to(wall, (SIZE, SIZE, 3)))
    scene.box(-4, 94, SIZE + 4, SIZE + 4, _TABLE)
    for row in (94, 101, 110):
        scene.box(-4, row, SIZE + 4, row + 1, _shade(_TABLE, 0.94), 0.5)
    scene.box(-4, 121, SIZE + 4, SIZE + 4, _EDGE)
    trays = [_at((x, 0)) for x in PLACES.values()]
    for x, y in trays:
        scene.shadow((x, y + 3), 17, 5, 0.45)
        scene.box(x - 13.5, y - 6, x + 13.5, y + 2, _TRAY, 2)
        scene.box(x - 12, y - 4.5, x + 12, y + 2, _TRAY_INSIDE, 1.5)
    scene.shadow((_BASE_COLUMN, _TABLE_ROW + 2), 19, 6, 0.5)
    _draw_block(scene, (other[1], _BLOCK / 2), COLORS[other[0]])
    images = []
    for state, block in zip(states.tolist(), blocks.tolist(), strict=True):
        canvas = Canvas(scene.pixels)
        _draw_block(canvas, block, COLORS[color])
        _draw_arm(canvas, state)
        for x, y in trays:
            canvas.box(x - 14, y + 0.5, x + 14, y + 4, _shade(_TRAY, 1.25), 1.5)
        images.append(canvas.finish())
    return np.stack(images)


def _draw_block(canvas: Canvas, block: Sequence[float], color: Color) -> None:
    column, row = _at(block)
    half = _SCALE * _BLOCK / 2
    height = block[1] - _BLOCK / 2
    canvas.shadow((column + 1, _TABLE_ROW + 2), half + 4, 3.5, 0.5 - 1.5 * min(height, 0.2))
    canvas.box(column - half, row - half - 2, column + half, row + half, _shade(color, 0.72), 1.5)
    canvas.box(column - half + 0.7, row - half - 1.3, column + half - 0.7, row - half + 1.5, _shade(color, 1.3), 1)
    canvas.box(column - half + 0.7, row - half + 1.2, column + half - 0.7, row + half - 0.7, color, 1)


def _draw_arm(canvas: Canvas, state: Sequence[float]) -> None:
    elbow, wrist = _elbow_and_wrist(state[0], state[1])
    shoulder, elbow, wrist = _at((0, _SHOULDER_Z)), _at(elbow), _at(wrist)
    canvas.shadow((wrist[0], _TABLE_ROW + 2), 11, 3.5, 0.22)
    canvas.box(_BASE_COLUMN - 12, _TABLE_ROW - 6, _BASE_COLUMN + 12, _TABLE_ROW + 4, _DARK, 2)
    canvas.box(_BASE_COLUMN - 7, shoulder[1], _BASE_COLUMN + 7, _TABLE_ROW - 5, _ARM_DARK, 2)
    canvas.box(_BASE_COLUMN - 6, shoulder[1], _BASE_COLUMN + 4, _TABLE_ROW - 5, _ARM, 2)
    _draw_hand(canvas, wrist, state[2])
    for start, end, radius in ((elbow, wrist, 4.2), (shoulder, elbow, 5.2)):
        canvas.capsule(start, end, radius, _ARM_DARK)
        canvas.capsule(start, end, radius - 1, _ARM)
        canvas.capsule((start[0] - 0.5, start[1] - 1.5), (end[0] - 0.5, end[1] - 1.5), 0.8, _ARM_LIGHT)
    for joint, radius in ((shoulder, 6.5), (elbow, 5.5), (wrist, 4.5)):
        canvas.capsule(joint, joint, radius, _DARK)
        canvas.capsule(joint, joint, radius - 2, _METAL)
        canvas.capsule(joint, joint, radius - 3.5, _DARK)


def _draw_hand(canvas: Canvas, wrist: Point, gripper: float) -> None:
    x, top = wrist
    tip = top + _SCALE * _HAND + 2
    half = _SCALE * _OPENING / 2 * gripper
    canvas.box(x - 2.5, top, x + 2.5, top + 7, _METAL, 1)
    canvas.box(x - 13, top + 5, x + 13, top + 9, _DARK, 1.5)
    for left, pad in ((x - half - 3.5, x - half - 1), (x + half, x + half)):
        canvas.box(left, top + 7, left + 3.5, tip, _shade(_DARK, 1.6), 1)
        canvas.box(pad, tip - 5, pad + 1, tip - 0.5, _METAL, 0.5)


_CAMERA, _FOCAL = 0.13, 100.0
"""The height of the hand's camera above the fingertips, and its focal length in pixels."""


class _ViewDown(Canvas):
    """The table, seen from above the fingertips."""

    def __init__(self, x: float, z: float):
        super().__init__(np.broadcast_to(np.array(_TABLE, np.float32), (SIZE, SIZE, 3)))
        self._x, self._z = x, z + _CAMERA

    def rectangle(self, left: float, right: float, half: float, height: float, color: Color, radius: float = 2) -> None:
        """A horizontal rectangle from `left` to `right`, at a height; its other side is 2 * `half`."""
        scale, middle = _FOCAL / max(self._z - height, 0.02), SIZE / 2
        x0, x1 = middle + scale * (left - self._x), middle + scale * (right - self._x)
        self.box(x0, middle - scale * half, x1, middle + scale * half, color, radius)


def draw_wrist(states: Array, blocks: Array, color: str, other: tuple[str, float]) -> Array:
    """The images of the camera in the hand, which looks down; its columns are along x. See `draw_front`."""
    images = []
    for state, block in zip(states.tolist(), blocks.tolist(), strict=True):
        view = _ViewDown(*forward(state[0], state[1]))
        for plank in range(-3, 12):
            view.rectangle(plank * 0.09 - 0.001, plank * 0.09 + 0.001, 1, 0, _shade(_TABLE, 0.9), 0)
        for place in PLACES.values():
            left, right = place - _TRAY_WIDTH / 2, place + _TRAY_WIDTH / 2
            view.rectangle(left - 0.004, right + 0.014, 0.088, 0, _shade(_TABLE, 0.8), 3)
            view.rectangle(left - 0.004, right + 0.004, 0.084, 0.025, _TRAY, 3)
            view.rectangle(left + 0.004, right - 0.004, 0.076, _TRAY_FLOOR, _TRAY_INSIDE)
        for (center, height), name in (((other[1], _BLOCK / 2), other[0]), (block, color)):
            half = _BLOCK / 2
            left, right, face = center - half, center + half, COLORS[name]
            view.rectangle(left, right + 0.008, half + 0.004, _height_below(center), _shade(_TABLE, 0.72), 3)
            for level in (-1, -0.5, 0, 0.5):
                view.rectangle(left, right, half, height + level * half, _shade(face, 0.7))
            view.rectangle(left, right, half, height + half, _shade(face, 1.3))
            view.rectangle(left + 0.002, right - 0.002, half - 0.002, height + half, face)
        for side in (-1, 1):
            tip = SIZE / 2 + side * (6 + _FOCAL / _CAMERA * _OPENING / 2 * state[2])
            for inset, finger in ((0, _DARK), (1.2, _shade(_DARK, 1.6))):
                view.capsule((tip, 68), (tip + side * 9, 140), 7 - inset, finger)
            view.box(tip - side * 4 - 2, 63, tip - side * 4 + 2, 82, _METAL, 1.5)
        images.append(view.finish())
    return np.stack(images)
