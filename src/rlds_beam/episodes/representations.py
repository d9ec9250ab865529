"""How the values of a vector are represented: as which rotations, and relative to what. Stored next to the field.

action      x y z r00 r10 r20 r01 r11 r21 gripper
is stored   {"rotation": {"6d": [3]}, "relative_to": "state", "frame": "base", "absolute": [9]}
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

ROTATIONS = {
    "quaternion_xyzw": ("qx", "qy", "qz", "qw"),
    "quaternion_wxyz": ("qw", "qx", "qy", "qz"),
    "axis_angle": ("rx", "ry", "rz"),
    "matrix": ("r00", "r01", "r02", "r10", "r11", "r12", "r20", "r21", "r22"),
    "6d": ("r00", "r10", "r20", "r01", "r11", "r21"),
    "6d_rows": ("r00", "r01", "r02", "r10", "r11", "r12"),
}
"""Representation of a rotation -> the names of its values; `r01` is the matrix's row 0, column 1."""

EULER = re.compile(r"euler_([xyz]{3}|[XYZ]{3})(_degrees)?")

Reference = Literal["state", "previous", "unknown"]
Frame = Literal["base", "hand"]


DELTA = "delta_"
"""Begins the name of a difference: `delta_x`; or that of one of several robots, `robot0_delta_x`."""

_DIFFERENCE = re.compile(rf"(.*_)?{DELTA}.*")


def is_difference(name: str) -> bool:
    """Whether a value of this name is a difference."""
    return _DIFFERENCE.fullmatch(name) is not None


def value_names(representation: str) -> tuple[str, ...]:
    """The names of the values of a representation of rotations; empty if there is no such representation."""
    if euler := EULER.fullmatch(representation):
        axes = euler[1].lower()
        same = any(a == b for a, b in itertools.pairwise(axes))  # scipy refuses xxy
        return () if same else tuple(f"euler_{i}_{axis}" for i, axis in enumerate(axes))
    return ROTATIONS.get(representation, ())


class Dimension(NamedTuple):
    """What is known of one value of a vector: its name, and how it is represented.

    Attributes:
      name: its name; None if it has none.
      rotation: the representation of the rotation that it is a part of; None if it is unknown or no rotation.
      place: its index in that rotation.
      which: tells rotations apart: the field and the index where the rotation begins.
      relative_to, frame: as in `Representation`; None if it is absolute, or nothing is known.
    """

    name: str | None = None
    rotation: str | None = None
    place: int = 0
    which: str = ""
    relative_to: Reference | None = None
    frame: Frame | None = None

    def turn(self, rotation: str, place: int, which: str) -> Dimension:
        """A copy as a value of a rotation."""
        return self._replace(rotation=rotation, place=place, which=which)

    def straighten(self) -> Dimension:
        """A copy that is no value of a rotation."""
        return self._replace(rotation=None, place=0, which="")


Dimensions: TypeAlias = Mapping[str, tuple[Dimension, ...]]
"""What is known of each value of fields that are vectors, by path."""


@dataclasses.dataclass(frozen=True)
class Representation:
    """How the values of a vector are represented, in the words of `ConvertRotation` and `RelativeActions`.

    Attributes:
      rotations: the index of the first value of each rotation, in ascending order, and its representation.
      relative_to: `state`, `previous` (the action before), or `unknown`: differences, but it is not known to what, or a
        controller scales them; None if the values are absolute, or nothing is known.
      frame: the axes of the differences: `base` or `hand`; None if unknown.
      absolute: the indices of the values that are not relative, in ascending order; empty if `relative_to` is None.
    """

    rotations: tuple[tuple[int, str], ...] = ()
    relative_to: Reference | None = None
    frame: Frame | None = None
    absolute: tuple[int, ...] = ()

    def fits(self, size: int) -> bool:
        """Whether a vector of this size can have this representation."""
        ends = [start + len(value_names(name)) for start, name in self.rotations]
        apart = all(end <= start for end, (start, _) in zip(ends, self.rotations[1:], strict=False))
        return apart and max([*ends, *(i + 1 for i in self.absolute)], default=0) <= size

    def split(self, size: int, path: str) -> tuple[Dimension, ...]:
        """The representation of each value of a vector, the field `path`."""
        relative = Dimension(relative_to=self.relative_to, frame=self.frame)
        values = [Dimension() if i in self.absolute else relative for i in range(size)]
        for start, name in self.rotations:
            for place in range(len(value_names(name))):
                values[start + place] = values[start + place].turn(name, place, f"{path}[{start}]")
        return tuple(values)

    @classmethod
    def join(cls, values: Sequence[Dimension]) -> Representation | None:
        """The inverse of `split`; None if nothing is known. Leaves out incomplete rotations and mixed references."""
        rotations = []
        for start, value in enumerate(values):
            size = len(value_names(value.rotation or ""))
            part = [(other.which, other.place) for other in values[start : start + size]]
            if size and part == [(value.which, place) for place in range(size)]:
                rotations.append((start, str(value.rotation)))
        references = {value.relative_to for value in values} - {None}
        frames = {value.frame for value in values} - {None}
        if len(references) != 1 or len(frames) > 1:
            return cls(tuple(rotations)) if rotations else None
        absolute = tuple(i for i, value in enumerate(values) if value.relative_to is None)
        return cls(tuple(rotations), references.pop(), frames.pop() if frames else None, absolute)

    @classmethod
    def from_json(cls, content: Any) -> Representation | None:
        """The inverse of `to_json`; None if the content is not a representation."""
        if not isinstance(content, dict):
            return None
        rotation, absolute = content.get("rotation", {}), content.get("absolute", [])
        relative_to, frame = content.get("relative_to"), content.get("frame")
        if not isinstance(rotation, dict) or relative_to not in (None, *get_args(Reference)):
            return None
        if frame not in (None, *get_args(Frame)) or (relative_to is None and (frame or absolute)):
            return None
        if not all(value_names(str(name)) and at and _are_indices(at) for name, at in rotation.items()):
            return None
        rotations = sorted((start, name) for name, at in rotation.items() for start in at)
        known = (rotations or relative_to) and _are_indices(absolute)
        return cls(tuple(rotations), relative_to, frame, tuple(absolute)) if known else None

    def to_json(self) -> dict[str, Any]:
        """`{"rotation": {"6d": [3]}, "relative_to": "state", "frame": "base", "absolute": [9]}`; only what is known."""
        rotation: dict[str, list[int]] = {}
        for start, name in self.rotations:
            rotation.setdefault(name, []).append(start)
        content = {"rotation": rotation, "relative_to": self.relative_to, "frame": self.frame}
        return {key: value for key, value in {**content, "absolute": [*self.absolute]}.items() if value}

    def __str__(self) -> str:
        """`rotation 6d at 3, relative_to state, frame base, absolute 9`."""
        content = self.to_json()
        rotation = [f"rotation {name} at {_list(at)}" for name, at in content.pop("rotation", {}).items()]
        return ", ".join(
            [*rotation, *(f"{key} {_list(v) if isinstance(v, list) else v}" for key, v in content.items())]
        )


_MAX_INDICES = 1 << 16


def _are_indices(value: Any) -> bool:
    """Whether a value is a list of different indices in ascending order."""
    if not isinstance(value, list) or len(value) > _MAX_INDICES or not all(type(i) is int and i >= 0 for i in value):
        return False
    return all(a < b for a, b in itertools.pairwise(value))


_SHOWN = 8


def _list(indices: Sequence[int]) -> str:
    return " ".join(map(str, indices[:_SHOWN])) + (" ..." if len(indices) > _SHOWN else "")
