"""The episodes of `rlds-beam example`: a point mass is pushed to a goal, or a planar arm puts a block on a tray.

Lengths of the arm are in meters, angles in radians; `x` points from its base to the right, `z` up from the table. A
parallel linkage keeps its hand upright, so two joints place the fingertips. Values are rounded before they are stored
or drawn, so machines whose sines differ in the last bit give the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.episodes.schema import episode_flags
from rlds_beam.images.codecs import encode_jpeg
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.reading.meaning import Meaning
from rlds_beam.typing import Array

POINT_MASS, POINT_MASS_CAMERA, PLANAR_ARM, VERSION = "point_mass", "point_mass_camera", "planar_arm", "1.0.0"

Point = tuple[float, float]
Color = tuple[int, int, int]


class _Picture:
    """A picture to draw on with coordinates in pixels; edges are smooth, because it is drawn four times as large."""

    def __init__(self, size: int, color: Color):
        self._image = Image.new("RGB", (4 * size, 4 * size), color)
        self._draw = ImageDraw.Draw(self._image)

    def box(self, left: float, top: float, right: float, bottom: float, color: Color, radius: float = 1) -> None:
        """A box with round corners."""
        x0, y0, x1, y1 = (round(4 * value) for value in (left, top, right, bottom))
        if x1 > x0 and y1 > y0:
            self._draw.rounded_rectangle((x0, y0, x1 - 1, y1 - 1), round(4 * radius), color)

    def line(self, start: Point, end: Point, radius: float, color: Color) -> None:
        """A line with round ends; a disc if the ends are the same."""
        ends = [(round(4 * x), round(4 * y)) for x, y in (start, end)]
        self._draw.line(ends, color, round(8 * radius))
        for end in ends:
            self._draw.circle(end, round(4 * radius), color)

    def pixels(self) -> Array:
        """The picture as uint8 [size, size, 3]."""
        return np.asarray(self._image.reduce(4))


def _encode(images: Sequence[Array], quality: int) -> EncodedImages:
    jpegs = np.array([*encode_jpeg(np.stack(images), quality), None], object)[:-1]
    return EncodedImages(jpegs, images[0].shape)


_STEP_SECONDS, _MAX_STEPS = 0.1, 24  # an episode of that many steps is truncated: it ends, but is not terminal
_NEAR = 0.05  # distance to the goal at which an episode ends in a terminal state
_MAX_IDLE_STEPS = 4
_SIDE, _HALF_WIDTH = 96, 1.25  # the camera sees -1.25 to 1.25 on both axes; y points up


def make_episodes(count: int, *, broken: int = 0, seed: int = 0, camera: bool = False) -> Iterator[Episode]:
    """Yields episodes of 5 to 25 steps, in which a noisy controller pushes a point mass to a goal.

    Args:
      count: number of episodes.
      broken: number of episodes without a last step (`missing_is_last`), as if the recording was interrupted; they are
        spread evenly.
      seed: seeds the starts, the goals, and the noise.
      camera: add `observation/image` (JPEG), `language_instruction`, and up to 4 idle steps at the start.
    """
    without_end = {count * i // broken for i in range(broken)}
    for i in range(count):
        yield _push_point(np.random.default_rng([seed, i]), i, i not in without_end, camera)


def _push_point(rng: np.random.Generator, number: int, ends: bool, camera: bool) -> Episode:
    position, velocity = rng.uniform(-1, 1, 2), np.zeros(2)
    goal = rng.uniform(-1, 1, 2)
    idle = number % (_MAX_IDLE_STEPS + 1) if camera else 0
    positions, velocities = [position] * (idle + 1), [velocity] * (idle + 1)
    actions: list[Any] = [np.zeros(2)] * idle
    rewards: list[Any] = [-np.linalg.norm(goal - position)] * idle
    moves = 0
    while moves < _MAX_STEPS and (np.linalg.norm(goal - position) > _NEAR or moves < 4):
        action = np.clip(4 * (goal - position) - 2.5 * velocity + rng.normal(0, 0.5, 2), -2, 2)
        velocity = velocity + _STEP_SECONDS * action
        position = position + _STEP_SECONDS * velocity
        positions.append(position)
        velocities.append(velocity)
        actions.append(action)
        rewards.append(-np.linalg.norm(goal - position))
        moves += 1
    steps, terminal = len(positions), moves < _MAX_STEPS and ends
    # In RLDS, the last step holds the last observation; its action, reward and discount are void.
    columns: dict[str, Any] = {
        "observation/position": np.array(positions, np.float32),
        "observation/velocity": np.array(velocities, np.float32),
        "observation/goal": np.tile(goal.astype(np.float32), (steps, 1)),
        "action": np.array([*actions, np.zeros(2)], np.float32),
        "reward": np.array([*rewards, 0], np.float32),
        "discount": np.where(terminal & (np.arange(steps) == steps - 2), 0, 1).astype(np.float32),
        **episode_flags(steps, last=ends, terminal=terminal),
    }
    if camera:
        columns["observation/image"] = _encode([_draw_point(at, goal) for at in positions], 95)
        text = f"push the point to the goal at the {'top' if goal[1] > 0 else 'bottom'} "
        text += "right" if goal[0] > 0 else "left"
        columns["language_instruction"] = np.full(steps, text.encode(), object)
    name = POINT_MASS_CAMERA if camera else POINT_MASS
    return Episode(EpisodeKey(f"{name}/{VERSION}", "train", 0, number), columns, {"episode_id": np.int64(number)})


def _draw_point(position: Array, goal: Array) -> Array:
    """The point and its goal from above, uint8 [96, 96, 3]."""
    picture = _Picture(_SIDE, (236, 239, 241))
    for place, radius, color in ((goal, 9, (76, 175, 80)), (position, 5, (26, 35, 126))):
        center = [(_SIDE - 1) / 2 * (1 + value / _HALF_WIDTH) + 0.5 for value in (place[0], -place[1])]
        picture.line((center[0], center[1]), (center[0], center[1]), radius, color)
    return picture.pixels()


JOINTS = ("shoulder", "elbow", "gripper")
"""Values of `observation/state` and `action`: two angles, and the opening of the gripper from 0 (closed) to 1."""
MEANING = Meaning(10, PLANAR_ARM, {"observation/state": JOINTS, "action": JOINTS}, "real")

_COLORS: dict[str, Color] = {
    "red": (214, 57, 52),
    "green": (58, 158, 92),
    "blue": (48, 108, 206),
    "yellow": (240, 190, 50),
}
TRAYS = {"left tray": 0.14, "right tray": 0.475}
"""Tray -> its x."""
_SHOULDER_Z, _UPPER, _FORE, _HAND = 0.23, 0.26, 0.26, 0.09
_SERVO, _GRIPPER_SPEED = 0.8, 0.12  # the share of the way to its target that a joint moves in a step; the most it opens
_OPENING, _BLOCK, _TRAY_WIDTH, _TRAY_FLOOR = 0.09, 0.06, 0.13, 0.012
_SQUEEZE = 0.6  # the opening that closes the gripper on a block, which is 0.67 wide
_SENSOR_NOISE = 0.002
_MISSES = 0.2  # the share of episodes in which the gripper closes above the block


class _Scene(NamedTuple):
    """The colors and the x of the block to move and of the other block, and the tray."""

    color: str
    block: float
    other: tuple[str, float]
    tray: str

    @property
    def instruction(self) -> str:
        return f"put the {self.color} block on the {self.tray}"

    def is_solved(self, block: float) -> bool:
        """Whether a block at this x is on the tray."""
        return abs(block - TRAYS[self.tray]) < _TRAY_WIDTH / 2


def _choose_scene(rng: np.random.Generator) -> _Scene:
    color, other = (str(color) for color in rng.permutation(list(_COLORS))[:2])
    tray = str(rng.choice(list(TRAYS)))
    spots = [round(float(spot + rng.uniform(-0.012, 0.012)), 4) for spot in rng.permutation((0.25, 0.36))]
    return _Scene(color, spots[0], (other, spots[1]), tray)


def make_robot_episodes(count: int, *, broken: int = 0, seed: int = 0) -> Iterator[Episode]:
    """Yields episodes of 30 to 60 steps, in which the arm puts a block on a tray, or misses it.

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
        yield _move_block(np.random.default_rng([seed, i]), i, i in interrupted)


def _move_block(rng: np.random.Generator, number: int, interrupted: bool) -> Episode:
    scene = _choose_scene(rng)
    missed = bool(rng.uniform() < _MISSES)
    actions = plan_motion(rng, scene.block, TRAYS[scene.tray], missed)
    states, blocks = simulate(actions, scene.block)
    success = bool(scene.is_solved(blocks[-1][0]))
    steps = len(actions) * 3 // 5 if interrupted else len(actions)
    done = success & (np.arange(steps) == len(actions) - 2)
    measured = _measure(rng, states)
    seen = list(zip(states[:steps].tolist(), blocks[:steps].tolist(), strict=True))
    columns: dict[str, Any] = {
        "observation/state": measured[:steps].astype(np.float32),
        "observation/images/front": _encode([_draw_front(*at, scene) for at in seen], 90),
        "observation/images/wrist": _encode([_draw_wrist(*at, scene) for at in seen], 90),
        "action": actions[:steps].astype(np.float32),
        "reward": done.astype(np.float32),
        "discount": (~done).astype(np.float32),
        "language_instruction": np.full(steps, scene.instruction.encode(), object),
        **episode_flags(steps, last=not interrupted, terminal=success and not interrupted),
    }
    metadata = {"episode_id": np.int64(number), "success": np.bool_(success and not interrupted)}
    return Episode(EpisodeKey(f"{PLANAR_ARM}/{VERSION}", "train", 0, number), columns, metadata)


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
        self._scene = _choose_scene(self._rng)
        start = inverse(self._rng.uniform(0.2, 0.42), self._rng.uniform(0.14, 0.2))
        self._motion = _Motion(np.array([*start, 1.0]).round(6), self._scene.block)

    def observe(self) -> dict[str, Any]:
        """The fields of an example episode without `observation/`: `state`, `images/front`, and `images/wrist`."""
        state, block = self._motion.state.round(6), np.array(self._motion.block).round(6).tolist()
        return {
            "state": _measure(self._rng, state).astype(np.float32),
            "images/front": _draw_front(state.tolist(), block, self._scene),
            "images/wrist": _draw_wrist(state.tolist(), block, self._scene),
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


def plan_motion(rng: np.random.Generator, block: float, tray: float, missed: bool) -> Array:
    """The targets of the joints [T, 3], rounded to a microradian: minimum-jerk motions of the fingertips, and noise."""
    grasp = _BLOCK / 2 + (rng.uniform(0.04, 0.05) if missed else rng.uniform(-0.006, 0.008))
    above, carry, away = rng.uniform((0.1, 0.13, 0.11), (0.14, 0.17, 0.15)).tolist()
    drop = _TRAY_FLOOR + grasp + rng.uniform(0.003, 0.008)
    x, release = block + rng.uniform(-0.006, 0.006), tray + rng.uniform(-0.016, 0.016)
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
            on_tray = any(abs(self.block[0] - tray) < _TRAY_WIDTH / 2 for tray in TRAYS.values())
            self.offset, self.block = None, (self.block[0], _TRAY_FLOOR * on_tray + _BLOCK / 2)
        if self.offset is not None:
            self.state[2], self.block = max(self.state[2], width), (x, z - self.offset)


def forward(shoulder: float, elbow: float) -> Point:
    """Where the fingertips are for two joint angles."""
    _, (x, z) = _elbow_and_wrist(shoulder, elbow)
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


_SIZE = 128  # height and width of the arm's images
_TABLE_ROW, _BASE_COLUMN, _SCALE = 106, 17, 200
_WALL, _TABLE, _TRAY, _TRAY_INSIDE = (205, 215, 226), (214, 178, 134), (92, 104, 120), (70, 80, 95)
_METAL, _DARK, _ARM = (206, 212, 220), (52, 58, 68), (240, 133, 40)


def _draw_front(state: Sequence[float], block: Sequence[float], scene: _Scene) -> Array:
    """The image of the camera in front of the table, uint8 [128, 128, 3], for the state [3] and the block's center."""

    def at(point: Sequence[float]) -> Point:
        return _BASE_COLUMN + _SCALE * point[0], _TABLE_ROW - _SCALE * point[1]

    picture = _Picture(_SIZE, _WALL)
    picture.box(-4, 94, _SIZE + 4, _SIZE + 4, _TABLE)
    half = _SCALE * _BLOCK / 2
    for center, name in (((scene.other[1], _BLOCK / 2), scene.other[0]), (block, scene.color)):
        x, y = at(center)
        picture.box(x - half, y - half, x + half, y + half, _COLORS[name])
    shoulder, elbow, wrist = map(at, ((0, _SHOULDER_Z), *_elbow_and_wrist(state[0], state[1])))
    picture.box(_BASE_COLUMN - 9, shoulder[1], _BASE_COLUMN + 9, _TABLE_ROW + 4, _DARK, 2)
    x, top = wrist
    tip, opening = top + _SCALE * _HAND + 2, _SCALE * _OPENING / 2 * state[2]
    picture.box(x - 13, top + 4, x + 13, top + 9, _DARK, 1.5)
    for left in (x - opening - 3.5, x + opening):
        picture.box(left, top + 7, left + 3.5, tip, _DARK)
    for start, end in ((elbow, wrist), (shoulder, elbow)):
        picture.line(start, end, 5, _ARM)
    for joint in (shoulder, elbow, wrist):
        picture.line(joint, joint, 4, _METAL)
    for x, y in (at((x, 0)) for x in TRAYS.values()):
        picture.box(x - 14, y, x + 14, y + 4, _TRAY, 1.5)
    return picture.pixels()


_CAMERA, _FOCAL = 0.13, 100.0
"""The height of the hand's camera above the fingertips, and its focal length in pixels."""


def _draw_wrist(state: Sequence[float], block: Sequence[float], scene: _Scene) -> Array:
    """The image of the camera in the hand, which looks down; its columns are along x. See `_draw_front`."""
    tip_x, tip_z = forward(state[0], state[1])
    picture = _Picture(_SIZE, _TABLE)

    def rectangle(left: float, right: float, half: float, height: float, color: Color) -> None:
        """A horizontal rectangle at a height; its other side is 2 * `half`."""
        scale, middle = _FOCAL / max(tip_z + _CAMERA - height, 0.02), _SIZE / 2
        x0, x1 = (middle + scale * (x - tip_x) for x in (left, right))
        picture.box(x0, middle - scale * half, x1, middle + scale * half, color, 2)

    for tray in TRAYS.values():
        left, right = tray - _TRAY_WIDTH / 2, tray + _TRAY_WIDTH / 2
        rectangle(left - 0.004, right + 0.004, 0.084, 0.025, _TRAY)
        rectangle(left + 0.004, right - 0.004, 0.076, _TRAY_FLOOR, _TRAY_INSIDE)
    half = _BLOCK / 2
    for (center, height), name in (((scene.other[1], half), scene.other[0]), (block, scene.color)):
        rectangle(center - half, center + half, half, height + half, _COLORS[name])
    for side in (-1, 1):
        tip = _SIZE / 2 + side * (6 + _FOCAL / _CAMERA * _OPENING / 2 * state[2])
        picture.line((tip, 68), (tip + side * 9, 140), 7, _DARK)
    return picture.pixels()
