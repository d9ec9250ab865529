"""The episodes of `rlds-beam example`: a point mass is pushed to a goal, or a planar arm puts a block on a tray.

Lengths of the arm are in meters, angles in radians; `x` points from its base to the right, `z` up from the table. A
parallel linkage keeps its hand upright, so two joints place the fingertips. Values are rounded before they are stored
or drawn, so machines whose sines differ in the last bit give the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.episodes.schema import episode_flags
from rlds_beam.images.codecs import encode_jpeg
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.reading.meaning import Meaning
from rlds_beam.typing import Array

POINT_MASS, POINT_MASS_CAMERA, PLANAR_ARM, VERSION = "point_mass", "point_mass_camera", "planar_arm", "1.0.0"
JOINTS = ("shoulder", "elbow", "gripper")
"""Values of `observation/state` and `action`: two angles, and the opening of the gripper from 0 (closed) to 1."""
MEANING = Meaning(10, PLANAR_ARM, {"observation/state": JOINTS, "action": JOINTS}, "real")

Point = tuple[float, float]
Color = tuple[int, int, int]


def make_episodes(
    count: int, *, broken: int = 0, seed: int = 0, camera: bool = False, robot: bool = False
) -> Iterator[Episode]:
    """Yields episodes of 5 to 25 steps, in which a noisy controller pushes a point mass to a goal; or of the arm.

    Those of the arm have 30 to 60 steps. Their fields are `observation/state` and `action` (float32 [3], named
    `JOINTS`; actions are absolute targets), `observation/images/front` and `observation/images/wrist` (JPEG, 128x128),
    `language_instruction`, and the episode's `success`. `reward` is 1 at the last transition of a success.

    Args:
      count: number of episodes.
      broken: number of episodes without a last step (`missing_is_last`), as if the recording was interrupted; they are
        spread evenly.
      seed: seeds the starts, the goals, and the noise.
      camera: add `observation/image` (JPEG), `language_instruction`, and up to 4 idle steps at the start.
      robot: an arm puts a block on a tray instead, or misses it.
    """
    interrupted = {count * i // broken for i in range(broken)}
    for i in range(count):
        rng = np.random.default_rng([seed, i])
        yield _move_block(rng, i, i in interrupted) if robot else _push_point(rng, i, i in interrupted, camera)


def _make_episode(
    name: str, number: int, columns: dict[str, Any], interrupted: bool, terminal: bool, text: str = "", **metadata: Any
) -> Episode:
    """An episode with the flags and the instruction; without rewards, the last transition of a terminal one has 1."""
    steps = len(columns["action"])
    done = terminal & (np.arange(steps) == steps - 2)
    instruction = {"language_instruction": np.full(steps, text.encode(), object)} if text else {}
    columns = {
        "reward": done.astype(np.float32),
        "discount": (~done).astype(np.float32),
        **columns,
        **instruction,
        **episode_flags(steps, last=not interrupted, terminal=terminal),
    }
    key = EpisodeKey(f"{name}/{VERSION}", "train", 0, number)
    return Episode(key, columns, {"episode_id": np.int64(number), **metadata})


class _Picture:
    """A picture to draw on with coordinates in pixels; edges are smooth, because it is drawn four times as large.

    Args:
      size: height and width.
      color: the background.
      zoom, left, top: magnifies the part that begins at (left, top).
    """

    def __init__(self, size: int, color: Color, zoom: float = 1, left: float = 0, top: float = 0):
        self._image = Image.new("RGB", (4 * size, 4 * size), color)
        self._draw, self._zoom, self._origin = ImageDraw.Draw(self._image), 4 * zoom, (left, top)

    def _place(self, x: float, y: float) -> tuple[int, int]:
        return round(self._zoom * (x - self._origin[0])), round(self._zoom * (y - self._origin[1]))

    def box(self, left: float, top: float, right: float, bottom: float, color: Color, radius: float = 1) -> None:
        """A box with round corners."""
        (x0, y0), (x1, y1) = self._place(left, top), self._place(right, bottom)
        if x1 > x0 and y1 > y0:
            self._draw.rounded_rectangle((x0, y0, x1 - 1, y1 - 1), round(self._zoom * radius), color)

    def line(self, start: Point, end: Point, radius: float, color: Color) -> None:
        """A line with round ends; a disc if the ends are the same."""
        ends = [self._place(*start), self._place(*end)]
        self._draw.line(ends, color, round(2 * self._zoom * radius))
        for end in ends:
            self._draw.circle(end, round(self._zoom * radius), color)

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


def _push_point(rng: np.random.Generator, number: int, interrupted: bool, camera: bool) -> Episode:
    position, velocity, goal = rng.uniform(-1, 1, 2), np.zeros(2), rng.uniform(-1, 1, 2)
    idle = number % (_MAX_IDLE_STEPS + 1) if camera else 0
    positions, velocities, actions = [position] * (idle + 1), [velocity] * (idle + 1), [np.zeros(2)] * idle
    moves = 0
    while moves < _MAX_STEPS and (np.linalg.norm(goal - position) > _NEAR or moves < 4):
        action = np.clip(4 * (goal - position) - 2.5 * velocity + rng.normal(0, 0.5, 2), -2, 2)
        velocity = velocity + _STEP_SECONDS * action
        position = position + _STEP_SECONDS * velocity
        positions.append(position)
        velocities.append(velocity)
        actions.append(action)
        moves += 1
    # In RLDS, the last step holds the last observation; its action, reward and discount are void.
    columns: dict[str, Any] = {
        "observation/position": np.array(positions, np.float32),
        "observation/velocity": np.array(velocities, np.float32),
        "observation/goal": np.tile(goal.astype(np.float32), (len(positions), 1)),
        "action": np.array([*actions, np.zeros(2)], np.float32),
        "reward": np.array([*(-np.linalg.norm(goal - at) for at in positions[1:]), 0], np.float32),
    }
    text = ""
    if camera:
        columns["observation/image"] = _encode([_draw_point(at, goal) for at in positions], 95)
        corner = f"{'top' if goal[1] > 0 else 'bottom'} {'right' if goal[0] > 0 else 'left'}"
        text = f"push the point to the goal at the {corner}"
    terminal = moves < _MAX_STEPS and not interrupted
    return _make_episode(POINT_MASS_CAMERA if camera else POINT_MASS, number, columns, interrupted, terminal, text)


def _draw_point(position: Array, goal: Array) -> Array:
    """The point and its goal from above, uint8 [96, 96, 3]."""
    picture = _Picture(_SIDE, (236, 239, 241))
    for place, radius, color in ((goal, 9, (76, 175, 80)), (position, 5, (26, 35, 126))):
        x, y = ((_SIDE - 1) / 2 * (1 + value / _HALF_WIDTH) + 0.5 for value in (place[0], -place[1]))
        picture.line((x, y), (x, y), radius, color)
    return picture.pixels()


_COLORS: dict[str, Color] = {
    "red": (214, 57, 52),
    "green": (58, 158, 92),
    "blue": (48, 108, 206),
    "yellow": (240, 190, 50),
}
_TRAYS = {"left tray": 0.14, "right tray": 0.475}  # tray -> its x
_SHOULDER_Z, _UPPER, _FORE, _HAND = 0.23, 0.26, 0.26, 0.09
_SERVO, _GRIPPER_SPEED = 0.8, 0.12  # the share of the way to its target that a joint moves in a step; the most it opens
_OPENING, _BLOCK, _TRAY_WIDTH, _TRAY_FLOOR = 0.09, 0.06, 0.13, 0.012
_SQUEEZE = 0.6  # the opening that closes the gripper on a block, which is 0.67 wide
_SENSOR_NOISE = 0.002
_MISSES = 0.2  # the share of episodes in which the gripper closes above the block


def _move_block(rng: np.random.Generator, number: int, interrupted: bool) -> Episode:
    arm = PlanarArm(rng)
    seen = [arm.observe()]
    for action in arm.plan[:-1]:
        arm.step(action)
        seen.append(arm.observe())
    if interrupted:
        seen = seen[: len(seen) * 3 // 5]
    columns = {
        "observation/state": np.array([one["state"] for one in seen]),
        **{f"observation/{name}": _encode([one[name] for one in seen], 90) for name in _CAMERAS},
        "action": arm.plan[: len(seen)].astype(np.float32),
    }
    success = arm.success and not interrupted
    metadata = {"success": np.bool_(success)}
    return _make_episode(PLANAR_ARM, number, columns, interrupted, success, arm.instruction, **metadata)


def forward(shoulder: float, elbow: float) -> Point:
    """Where the fingertips are for two joint angles."""
    x, z = _find_elbow(shoulder)
    return x + _FORE * math.cos(shoulder + elbow), z + _FORE * math.sin(shoulder + elbow) - _HAND


def _find_elbow(shoulder: float) -> Point:
    return _UPPER * math.cos(shoulder), _SHOULDER_Z + _UPPER * math.sin(shoulder)


def inverse(x: float, z: float) -> Point:
    """The joint angles that put the fingertips at a point, with the elbow up.

    A point out of reach gives the angles of the nearest point on the same ray from the shoulder.
    """
    dz = z + _HAND - _SHOULDER_Z
    cosine = (x * x + dz * dz - _UPPER * _UPPER - _FORE * _FORE) / (2 * _UPPER * _FORE)
    elbow = -math.acos(min(1.0, max(-1.0, cosine)))
    return math.atan2(dz, x) - math.atan2(_FORE * math.sin(elbow), _UPPER + _FORE * math.cos(elbow)), elbow


_SIZE = 128  # height and width of the arm's images
_TABLE_ROW, _BASE_COLUMN, _SCALE = 106, 17, 200
_WALL, _TABLE, _TRAY = (205, 215, 226), (214, 178, 134), (92, 104, 120)
_METAL, _DARK, _ARM = (206, 212, 220), (52, 58, 68), (240, 133, 40)
_CAMERAS = ("images/front", "images/wrist")


class PlanarArm:
    """The arm, in a loop with a policy or with its own plan, which misses the block in one of five scenes.

    Args:
      seed: seeds the scene, the plan, and the noise of the sensors.

    Attributes:
      plan: targets of the joints that put the block on its tray [T, 3]; the arm starts at the first.
    """

    def __init__(self, seed: int | np.random.Generator):
        self._rng = np.random.default_rng(seed)
        self._color, self._other = map(str, self._rng.permutation(list(_COLORS))[:2])
        self._tray = str(self._rng.choice(list(_TRAYS)))
        spots = self._rng.permutation((0.25, 0.36))
        x, self._other_x = (round(float(spot + self._rng.uniform(-0.012, 0.012)), 4) for spot in spots)
        self._block = (x, _BLOCK / 2)
        self._offset: float | None = None  # the height of the fingertips above the center of the block that they hold
        self.plan = self._plan_motion(missed=self._rng.uniform() < _MISSES)
        self._state = self.plan[0]

    def _plan_motion(self, missed: bool) -> Array:
        """Minimum-jerk motions of the fingertips, with noise, rounded to a microradian."""
        rng = self._rng
        grasp = _BLOCK / 2 + (rng.uniform(0.04, 0.05) if missed else rng.uniform(-0.006, 0.008))
        above, carry, away = rng.uniform((0.1, 0.13, 0.11), (0.14, 0.17, 0.15)).tolist()
        drop = _TRAY_FLOOR + grasp + rng.uniform(0.003, 0.008)
        x, release = self._block[0] + rng.uniform(-0.006, 0.006), _TRAYS[self._tray] + rng.uniform(-0.016, 0.016)
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

    def step(self, action: Array) -> None:
        """Moves the arm toward the targets [3] for a tenth of a second, with the block if the gripper holds it."""
        action = np.asarray(action, np.float64)
        before, move = self._state, _SERVO * (action - self._state)
        move[2] = np.clip(action[2] - before[2], -_GRIPPER_SPEED, _GRIPPER_SPEED)
        self._state = before + move
        x, z = forward(self._state[0], self._state[1])
        width = _BLOCK / _OPENING
        near = abs(x - self._block[0]) < (_OPENING - _BLOCK) / 2 and abs(z - self._block[1]) < _BLOCK / 2
        if self._offset is None and self._state[2] <= width < before[2] and near:
            self._offset = z - self._block[1]
        if self._offset is not None and action[2] > width:
            on_tray = any(abs(self._block[0] - tray) < _TRAY_WIDTH / 2 for tray in _TRAYS.values())
            self._offset, self._block = None, (self._block[0], _TRAY_FLOOR * on_tray + _BLOCK / 2)
        if self._offset is not None:
            self._state[2], self._block = max(self._state[2], width), (x, z - self._offset)

    @property
    def instruction(self) -> str:
        return f"put the {self._color} block on the {self._tray}"

    @property
    def success(self) -> bool:
        """Whether the block is on the tray, and released."""
        return self._offset is None and abs(self._block[0] - _TRAYS[self._tray]) < _TRAY_WIDTH / 2

    def observe(self) -> dict[str, Any]:
        """The fields of an example episode without `observation/`: `state`, `images/front`, and `images/wrist`."""
        state = self._state.round(6)
        measured = (state + self._rng.uniform(-_SENSOR_NOISE, _SENSOR_NOISE, 3)).round(6)
        measured[2] = measured[2].clip(0, 1)
        x, z = forward(state[0], state[1])
        left, top = _BASE_COLUMN + _SCALE * x - _SIZE / 4, _TABLE_ROW - _SCALE * z - _SIZE / 4
        views = (_Picture(_SIZE, _WALL), _Picture(_SIZE, _WALL, 2, left, top))  # the second moves with the hand
        for picture in views:
            self._draw(picture, state.tolist())
        images = zip(_CAMERAS, (picture.pixels() for picture in views), strict=True)
        return {"state": measured.astype(np.float32), **dict(images)}

    def _draw(self, picture: _Picture, state: Sequence[float]) -> None:
        """Draws what the camera in front of the table sees."""

        def at(point: Sequence[float]) -> Point:
            return _BASE_COLUMN + _SCALE * point[0], _TABLE_ROW - _SCALE * point[1]

        picture.box(-_SIZE, 94, 2 * _SIZE, 2 * _SIZE, _TABLE)
        half = _SCALE * _BLOCK / 2
        blocks = {self._other: (self._other_x, _BLOCK / 2), self._color: self._block}
        for color, center in blocks.items():
            x, y = at([round(value, 6) for value in center])
            picture.box(x - half, y - half, x + half, y + half, _COLORS[color])
        fingers = forward(state[0], state[1])
        joints = [at((0, _SHOULDER_Z)), at(_find_elbow(state[0])), at((fingers[0], fingers[1] + _HAND))]
        picture.box(_BASE_COLUMN - 9, joints[0][1], _BASE_COLUMN + 9, _TABLE_ROW + 4, _DARK, 2)
        x, top = joints[2]
        tip, opening = top + _SCALE * _HAND + 2, _SCALE * _OPENING / 2 * state[2]
        picture.box(x - 13, top + 4, x + 13, top + 9, _DARK, 1.5)
        for left in (x - opening - 3.5, x + opening):
            picture.box(left, top + 7, left + 3.5, tip, _DARK)
        for start, end in (joints[1:], joints[:2]):
            picture.line(start, end, 5, _ARM)
        for joint in joints:
            picture.line(joint, joint, 4, _METAL)
        for tray in _TRAYS.values():
            x, y = at((tray, 0))
            picture.box(x - 14, y, x + 14, y + 4, _TRAY, 1.5)
