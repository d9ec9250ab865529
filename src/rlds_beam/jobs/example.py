"""The episodes of `rlds-beam example`: a point mass is pushed to a goal, or a planar arm puts a block on a tray.

Lengths are in meters, angles in radians; `x` points from the arm's base to the right, `z` up from the table. A parallel
linkage keeps its hand upright, so two joints place the fingertips. Values are rounded before they are stored or drawn,
so machines whose sines differ in the last bit give the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from rlds_beam.encoding.example.row_decoder import objects
from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.episodes.schema import episode_flags
from rlds_beam.images.codecs import encode_jpeg
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.reading.meaning import Meaning
from rlds_beam.typing import Array

POINT_MASS, PLANAR_ARM, VERSION = "point_mass", "planar_arm", "1.0.0"
JOINTS = ("shoulder", "elbow", "gripper")
"""Values of `observation/state` and `action`: two angles, and the opening of the gripper from 0 (closed) to 1."""
MEANING = Meaning(10, PLANAR_ARM, {"observation/state": JOINTS, "action": JOINTS}, "real")

Point = tuple[float, float]
Color = tuple[int, int, int]


def make_episodes(count: int, *, broken: int = 0, seed: int = 0, robot: bool = False) -> Iterator[Episode]:
    """Yields episodes of 5 to 25 steps, in which a noisy controller pushes a point mass to a goal; or of the arm.

    Those of the arm have 30 to 60 steps. Their fields are `observation/state` and `action` (float32 [3], named
    `JOINTS`; actions are absolute targets), `observation/images/front` and `observation/images/wrist` (JPEG, 128x128),
    `language_instruction`, and the episode's `success`. `reward` is 1 at the last transition of a success.

    Args:
      count: number of episodes.
      broken: number of episodes without a last step (`missing_is_last`), as if the recording was interrupted; they are
        spread evenly.
      seed: seeds the starts, the goals, and the noise.
      robot: an arm puts a block on a tray instead, or misses it.
    """
    interrupted = {count * i // broken for i in range(broken)}
    for i in range(count):
        rng, whole = np.random.default_rng([seed, i]), i not in interrupted
        columns, success = _move_block(rng, whole) if robot else _push_point(rng)
        success = success and whole
        steps = len(columns["action"])
        done = success & (np.arange(steps) == steps - 2)
        columns = {
            "reward": done.astype(np.float32),
            "discount": (~done).astype(np.float32),
            **columns,
            **episode_flags(steps, last=whole, terminal=success),
        }
        metadata: dict[str, Any] = {"episode_id": np.int64(i)}
        if robot:
            metadata["success"] = np.bool_(success)
        key = EpisodeKey(f"{PLANAR_ARM if robot else POINT_MASS}/{VERSION}", "train", 0, i)
        yield Episode(key, columns, metadata)


_STEP_SECONDS, _MAX_STEPS = 0.1, 24  # an episode of that many steps is truncated: it ends, but is not terminal
_NEAR = 0.05  # distance to the goal at which an episode ends in a terminal state


def _push_point(rng: np.random.Generator) -> tuple[dict[str, Any], bool]:
    """The columns of an episode, and whether the point reached the goal."""
    position, velocity, goal = rng.uniform(-1, 1, 2), np.zeros(2), rng.uniform(-1, 1, 2)
    positions, velocities, actions = [position], [velocity], list[Array]()
    while len(actions) < _MAX_STEPS and (np.linalg.norm(goal - position) > _NEAR or len(actions) < 4):
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
    return columns, len(actions) < _MAX_STEPS


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


def _move_block(rng: np.random.Generator, whole: bool) -> tuple[dict[str, Any], bool]:
    """The columns of an episode, or of its first part, and whether the block is on its tray at the end."""
    arm = PlanarArm(rng)
    seen = [arm.observe()]
    for action in arm.plan[:-1]:
        arm.step(action)
        seen.append(arm.observe())
    if not whole:
        seen = seen[: len(seen) * 3 // 5]
    columns = {f"observation/{name}": np.stack([one[name] for one in seen]) for name in seen[0]}
    for name in ("front", "wrist"):
        images = columns[f"observation/images/{name}"]
        columns[f"observation/images/{name}"] = EncodedImages(objects(encode_jpeg(images, 90)), images.shape[1:])
    columns["action"] = arm.plan[: len(seen)].astype(np.float32)
    columns["language_instruction"] = np.full(len(seen), arm.instruction.encode(), object)
    return columns, arm.success


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


_SIZE, _ZOOM = 128, 6  # height and width of the images; how much larger the scene is drawn, so that edges are smooth
_PIXELS, _CANVAS, _ORIGIN = 200 * _ZOOM, 208 * _ZOOM, (-0.285, 0.73)  # per meter; of the scene; its upper left corner
_WALL, _TABLE, _TRAY = (205, 215, 226), (214, 178, 134), (92, 104, 120)
_METAL, _DARK, _ARM = (206, 212, 220), (52, 58, 68), (240, 133, 40)


def _place(x: float, z: float) -> tuple[int, int]:
    """The pixel of a point in the drawn scene."""
    return round(_PIXELS * (x - _ORIGIN[0])), round(_PIXELS * (_ORIGIN[1] - z))


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
        scene, (x, z) = self._draw(state.tolist()), forward(state[0], state[1])
        views = {"front": (-0.085, 0.53, _ZOOM), "wrist": (x - 0.16, z + 0.16, _ZOOM // 2)}  # left, top, and zoom
        images = {}
        for name, (left, top, factor) in views.items():
            column, row = _place(left, top)
            view = scene.crop((column, row, column + factor * _SIZE, row + factor * _SIZE))
            images[f"images/{name}"] = np.asarray(view.reduce(factor))
        return {"state": measured.astype(np.float32), **images}

    def _draw(self, state: Sequence[float]) -> Image.Image:
        """The scene as seen from the front."""
        image = Image.new("RGB", (_CANVAS, _CANVAS), _WALL)
        draw = ImageDraw.Draw(image)

        def box(left: float, top: float, right: float, bottom: float, color: Color, radius: float = 0.005) -> None:
            column, row = _place(right, bottom)
            draw.rounded_rectangle((*_place(left, top), column - 1, row - 1), _PIXELS * radius, color)

        def rod(start: Point, end: Point, radius: float, color: Color) -> None:
            draw.line([_place(*start), _place(*end)], color, round(2 * _PIXELS * radius))
            for point in (start, end):
                draw.circle(_place(*point), _PIXELS * radius, color)

        draw.rectangle((0, _place(0, 0.06)[1], _CANVAS, _CANVAS), _TABLE)
        for color, (x, z) in ((self._other, (self._other_x, _BLOCK / 2)), (self._color, self._block)):
            x, z = round(x, 6), round(z, 6)
            box(x - _BLOCK / 2, z + _BLOCK / 2, x + _BLOCK / 2, z - _BLOCK / 2, _COLORS[color])
        x, tip = forward(state[0], state[1])
        base, elbow, wrist = (0.0, _SHOULDER_Z), _find_elbow(state[0]), (x, tip + _HAND)
        box(-0.045, _SHOULDER_Z, 0.045, -0.02, _DARK, 0.01)
        box(x - 0.065, wrist[1] - 0.02, x + 0.065, wrist[1] - 0.045, _DARK, 0.0075)
        opening = _OPENING / 2 * state[2]
        for left in (x - opening - 0.0175, x + opening):
            box(left, wrist[1] - 0.035, left + 0.0175, tip - 0.01, _DARK)
        rod(elbow, wrist, 0.025, _ARM)
        rod(base, elbow, 0.025, _ARM)
        for joint in (base, elbow, wrist):
            rod(joint, joint, 0.02, _METAL)
        for tray in _TRAYS.values():
            box(tray - 0.07, 0, tray + 0.07, -0.02, _TRAY, 0.0075)
        return image
