"""Converts rotations in actions and states between the representations of robots, simulators, and policies."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rlds_beam.connectors.base import EpisodeConnector
from rlds_beam.connectors.cleaning.selection import vectors
from rlds_beam.connectors.fields import StepFields
from rlds_beam.episodes.columns import below
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.representations import EULER, ROTATIONS, Dimension, Dimensions, value_names
from rlds_beam.errors import BadEpisode, UsageError, Violation, needs
from rlds_beam.reading.base import Source
from rlds_beam.reading.meaning import LastAction
from rlds_beam.typing import Array

if TYPE_CHECKING:
    from scipy.spatial.transform import Rotation

_TOLERANCE = 1e-2
"""How far the norm of a quaternion may be from 1, and R R^T from the identity; float16 keeps 3 digits."""

_JOINT = re.compile(
    r"joint|motor|shoulder|elbow|forearm|waist|wrist_(angle|flex|rotate)|gripper$|\.pos$", re.IGNORECASE
)
"""In the name of a joint or a gripper."""

_FLAT = 1e-6
"""Below this length of a vector, its direction is unknown."""


@dataclasses.dataclass(frozen=True)
class ConvertRotation(EpisodeConnector, reads_images=False):
    """Converts rotations inside a vector to another representation; the other values stay, in their order.

        field=action, from_=euler_xyz, to=6d, at=3

        action    x  y  z  roll pitch yaw                    gripper     (T, 7)
        becomes   x  y  z  r00 r10 r20 r01 r11 r21           gripper     (T, 10)

        euler_xyz, euler_ZYX, ...   angles in radians, in the order of the axes; lower case: about fixed axes
                                    (extrinsic, ROS's roll, pitch, yaw), upper case: about turning axes (intrinsic)
        euler_xyz_degrees, ...      the same in degrees
        quaternion_xyzw             as in ROS and scipy
        quaternion_wxyz             as in MuJoCo and Isaac
        axis_angle                  the axis times the angle in radians (rotation vector)
        matrix                      the rotation matrix by rows, 9 values
        6d                          its first two columns, one after the other (Zhou et al. 2019, "On the Continuity of
                                    Rotation Representations in Neural Networks")
        6d_rows                     its first two rows, as in PyTorch3D, Diffusion Policy, and UMI

    Along an episode, quaternions keep their sign and angles do not wrap: each is the equivalent that is nearest to the
    one before. Two vectors of `6d` need not be orthonormal, so outputs of a policy are accepted. A rotation that is
    none, for example a quaternion of zeros, makes the episode invalid (`not_representable`); in a void last action
    zeros stay zeros. The conversion runs in float64 (scipy's Rotation); the field keeps its dtype.

    `inverse` converts back, for example the output of a policy to the commands of a robot.

    Attributes:
      field: a vector of floats: `action`, `observation/state`, ...
      from_: the representation in the data; `from` in a file.
      to: the representation to write.
      at: the index of the first value of the rotation in the field; a list for several rotations (two arms).
      last_action: whether the action of the last step is `real` or `void`; by default what the dataset says. A void one
        of zeros stays zeros.
    """

    field: str
    from_: str
    to: str
    at: int | Sequence[int] = 0
    last_action: LastAction | None = None

    def __post_init__(self) -> None:
        for name in (self.from_, self.to):
            if not value_names(name):
                known = f"euler_xyz (any order of axes; XYZ, _degrees), {', '.join(ROTATIONS)}"
                raise UsageError(f"ConvertRotation: {name} is no representation; there are {known}")
        starts, width = self._starts, len(value_names(self.from_))
        if not starts or min(starts) < 0 or any(b - a < width for a, b in itertools.pairwise(starts)):
            said = f"a rotation as {self.from_} has {width} values"
            raise UsageError(f"ConvertRotation: at={self.at}: expected indices in ascending order; {said}")

    @property
    def _starts(self) -> tuple[int, ...]:
        return as_indices(self.at)

    @property
    def inverse(self) -> ConvertRotation:
        """The connector that converts back."""
        more = len(value_names(self.to)) - len(value_names(self.from_))
        starts = tuple(start + i * more for i, start in enumerate(self._starts))
        at: int | Sequence[int] = starts if len(starts) > 1 else starts[0]
        return ConvertRotation(self.field, self.to, self.from_, at, self.last_action)

    def for_source(self, source: Source) -> ConvertRotation:
        """A copy that knows what the last actions of the source are."""
        return dataclasses.replace(self, last_action=self.last_action or source.last_action)

    def edit(self, episode: Episode, fields: StepFields) -> Episode:
        values = vectors(episode, self.field, "ConvertRotation: field")
        end = self._starts[-1] + len(value_names(self.from_))
        if values.dtype.kind != "f":
            raise UsageError(f"ConvertRotation: field={self.field} holds {values.dtype}, not floats: cast it first")
        if end > values.shape[1]:
            said = f"a rotation as {self.from_} at {self._starts[-1]} needs {end}"
            raise UsageError(f"ConvertRotation: {self.field} has {values.shape[1]} values; {said}")
        void = void_actions(episode, values, self.last_action) & below(self.field, fields.actions)
        parts = []
        for rotation, part in self._cut(values.astype(np.float64)):
            if rotation:
                sound = sound_rotations(episode, self.field, part, self.from_, void)
                finite = np.isfinite(part).all(axis=1)[:, None]
                old, part = part, np.where(finite, 0.0, np.full(len(value_names(self.to)), np.nan))
                if sound.any():
                    part[sound] = write_rotations(read_rotations(old[sound], self.from_), self.to)
            parts.append(part)
        return episode.with_columns({self.field: np.concatenate(parts, axis=1).astype(values.dtype)})

    def represent(self, values: Dimensions, fields: StepFields) -> Dimensions:
        """What is known of the values of vectors after the connector, given what is known before it.

        Raises:
          UsageError: the data says that the values are another representation than `from_`, or joints.
        """
        own = values.get(self.field, ())
        check_rotations(own, self._starts, self.from_, "ConvertRotation: from", self.field)
        check_rotation_names(own, self._starts, self.from_, f"ConvertRotation: at={self.at}", self.field)
        made: list[Dimension] = []
        for rotation, part in self._cut(np.arange(len(own))[None]):
            old = [own[i] for i in part[0]]
            if rotation:
                same = len({(value.relative_to, value.frame) for value in old}) == 1
                names = [value.name for value in old if value.name is not None]
                new = turn_values([old[0] if same else Dimension()], self.to, f"{self.field}[{len(made)}]")
                prefix = None
                if len(names) == len(old):  # up to a separator: `left_` of left_roll and left_pitch
                    pairs_of = zip(min(names), max(names), strict=False)
                    shared = "".join(a for a, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs_of))
                    prefix = re.sub(r"[^_./]*$", "", shared)
                pairs = zip(new, value_names(self.to), strict=True)
                old = [v._replace(name=None if prefix is None else prefix + name) for v, name in pairs]
            made += old
        return {**values, self.field: tuple(made)}

    def _cut(self, values: Array) -> Iterator[tuple[bool, Array]]:
        """The columns of each rotation (True), and those between them."""
        end, width = 0, len(value_names(self.from_))
        for start in self._starts:
            yield False, values[:, end:start]
            end = start + width
            yield True, values[:, start:end]
        yield False, values[:, end:]


def as_indices(at: int | Sequence[int]) -> tuple[int, ...]:
    """The indices of an argument that takes one or several."""
    return (at,) if isinstance(at, int) else tuple(at)


def check_rotation_arguments(connector: str, rotation: str | None, at: int, position: int, frame: str) -> None:
    """Raises UsageError unless a connector's arguments go together.

    Args:
      at, position: how many there are.
    """
    if rotation is not None and not value_names(rotation):
        raise UsageError(f"{connector}: rotation={rotation} is no representation; see ConvertRotation")
    if (rotation is None) != (not at):
        raise UsageError(f"{connector}: rotation and at go together: the representation, and where its values are")
    if frame == "hand" and (not at or position != at):
        raise UsageError(f"{connector}: frame=hand needs rotation, at, and position: where x, y, z are, one for each")


def turn_values(values: Sequence[Dimension], representation: str, which: str) -> list[Dimension]:
    """The values as those of one rotation; a single one is repeated."""
    size = len(value_names(representation))
    values = [*values] * (size // len(values))
    return [value.turn(representation, place, which) for place, value in enumerate(values)]


def check_rotations(
    values: Sequence[Dimension], starts: Sequence[int], representation: str, argument: str, field: str
) -> None:
    """Checks what is known of a vector against the arguments of a connector.

    Args:
      argument: the connector and its argument, for the message.

    Raises:
      UsageError: the values of a rotation are known to be those of another one.
    """
    for start in starts:
        for place, value in enumerate(values[start : start + len(value_names(representation))]):
            if value.rotation is not None and (value.rotation, value.place) != (representation, place):
                raise UsageError(
                    f"{argument}={representation}, at={start}, but {field} has a rotation as {value.rotation} at "
                    f"{start + place - value.place}: give that"
                )


def check_rotation_names(
    values: Sequence[Dimension], starts: Sequence[int], representation: str, argument: str, field: str
) -> None:
    """Raises UsageError, beginning with `argument`, if values of a rotation have the names of joints."""
    for start in starts:
        for i, value in enumerate(values[start : start + len(value_names(representation))], start):
            if _JOINT.search(value.name or ""):
                raise UsageError(f"{argument}: value {i} of {field} is {value.name}, which is no part of a rotation")


def void_actions(episode: Episode, values: Array, last_action: LastAction | None) -> Array:
    """Last steps whose actions are zeros: void, so no rotations; none if the dataset says that they are real."""
    if last_action == "real":
        return np.zeros(len(values), bool)
    last = np.asarray(episode.steps["is_last"], bool) if "is_last" in episode.steps else np.zeros(len(values), bool)
    void: Array = last & ~values.any(axis=1)
    return void


def sound_rotations(episode: Episode, field: str, values: Array, representation: str, void: Array) -> Array:
    """Which rows of finite values are rotations, other than void ones: bool (T,).

    Args:
      values: the values of the rotations, (T, D).
      void: the rows that need not be rotations, bool (T,).

    Raises:
      BadEpisode: another row is finite, but no rotation.
    """
    finite = np.isfinite(values).all(axis=1)
    right = are_rotations(np.where(finite[:, None], values, 0), representation)
    wrong = finite & ~right & ~void
    if wrong.any() and not episode.key.of_probe:
        step = int(np.argmax(wrong))
        shown = ", ".join(f"{value:g}" for value in values[step])
        detail = f"({shown}) at step {step} is no rotation ({representation})"
        raise BadEpisode(Violation("not_representable", detail, field, step))
    sound: Array = finite & right & ~void
    return sound


def are_rotations(values: Array, representation: str) -> Array:
    """Whether each row, finite, is a rotation: bool (T,)."""
    if representation.startswith("quaternion"):
        unit: Array = np.abs(np.linalg.norm(values, axis=1) - 1) < _TOLERANCE
        return unit
    if representation == "matrix":
        matrices = values.reshape(-1, 3, 3)
        with np.errstate(over="ignore", invalid="ignore"):
            errors = np.abs(matrices @ matrices.swapaxes(1, 2) - np.eye(3)).max(axis=(1, 2))
            right: Array = (errors < _TOLERANCE) & (np.linalg.det(matrices) > 0)
        return right
    if representation.startswith("6d"):
        plane: Array = np.linalg.norm(np.cross(values[:, :3], values[:, 3:]), axis=1) > _FLAT
        return plane
    return np.ones(len(values), bool)


def read_rotations(values: Array, representation: str) -> Rotation:
    """The rotations of rows of sound values, (T, D)."""
    with needs("rotations", "ConvertRotation needs scipy"):
        from scipy.spatial.transform import Rotation
    if euler := EULER.fullmatch(representation):
        return Rotation.from_euler(euler[1], values, degrees=bool(euler[2]))
    if representation == "axis_angle":
        return Rotation.from_rotvec(values)
    if representation.startswith("quaternion"):
        return Rotation.from_quat(np.roll(values, -1, axis=1) if representation.endswith("wxyz") else values)
    if representation == "matrix":
        return Rotation.from_matrix(values.reshape(-1, 3, 3))
    first, second = values[:, :3], values[:, 3:]
    first = first / np.linalg.norm(first, axis=1, keepdims=True)
    second = second - (first * second).sum(axis=1, keepdims=True) * first  # Gram-Schmidt, as in Zhou et al.
    second /= np.linalg.norm(second, axis=1, keepdims=True)
    third = np.cross(first, second)
    return Rotation.from_matrix(np.stack([first, second, third], axis=1 if representation == "6d_rows" else 2))


def write_rotations(rotations: Rotation, representation: str) -> Array:
    """The values of rotations in time order, (T, D)."""
    if euler := EULER.fullmatch(representation):
        angles = _continuous_euler(rotations.as_euler(euler[1]), euler[1].lower())
        return np.degrees(angles) if euler[2] else angles
    if representation == "axis_angle":
        return _continuous_vectors(rotations.as_rotvec())
    if representation.startswith("quaternion"):
        quaternions: Array = rotations.as_quat()
        # Each has the sign that is nearer to the one before; the first has w >= 0.
        flips = (quaternions[1:] * quaternions[:-1]).sum(axis=1) < 0
        signs = np.cumprod(np.where([quaternions[0, 3] < 0, *flips], -1.0, 1.0))
        quaternions = signs[:, None] * quaternions
        return np.roll(quaternions, 1, axis=1) if representation.endswith("wxyz") else quaternions
    matrices: Array = rotations.as_matrix()
    if representation == "matrix":
        return matrices.reshape(-1, 9)
    kept: Array = matrices[:, :2] if representation == "6d_rows" else matrices[:, :, :2].swapaxes(1, 2)
    return kept.reshape(-1, 6)


def _continuous_vectors(values: Array) -> Array:
    """Rotation vectors, each turned by a multiple of 360 degrees if that is nearer to the one before."""
    if len(values) < 2 or (np.linalg.norm(np.diff(values, axis=0), axis=1) < np.pi).all():
        return values
    made = values.copy()
    for t in range(1, len(values)):
        angle, before = float(np.linalg.norm(values[t])), made[t - 1]
        length = float(np.linalg.norm(before))
        if angle < _FLAT and length < _FLAT:
            continue
        axis = values[t] / angle if angle >= _FLAT else before / length
        turns = np.round((before @ axis - angle) / (2 * np.pi))
        made[t] = axis * (angle + 2 * np.pi * turns)
    return made


def _continuous_euler(angles: Array, axes: str) -> Array:
    """Euler angles, each the equivalent triple that is nearest to the one before."""
    if len(angles) < 2 or (np.abs(np.diff(angles, axis=0)) < np.pi / 2).all():
        return angles
    made = angles.copy()
    for t in range(1, len(angles)):
        a, b, c = angles[t]
        other = (a + np.pi, -b if axes[0] == axes[2] else np.pi - b, c + np.pi)
        candidates = np.array([(a, b, c), other])
        candidates += 2 * np.pi * np.round((made[t - 1] - candidates) / (2 * np.pi))
        made[t] = candidates[np.argmin(np.abs(candidates - made[t - 1]).max(axis=1))]
    return made
