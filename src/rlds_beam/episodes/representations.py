"""How the values of a vector are represented: as which rotations, and relative to what. Stored next to the field.

action      x y z r00 r10 r20 r01 r11 r21 gripper
is stored   {"rotation": {"6d": [3]}, "relative_to": "state", "frame": "base", "absolute": [9]}
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import msgspec

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
Indices: TypeAlias = list[Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)]]


DELTA = "delta_"
"""Begins the name of a difference: `delta_x`; or that of one of several robots, `robot0_delta_x`."""

DIFFERENCE = re.compile(rf"(.*_)?{DELTA}.*")
"""The name of a value that is a difference."""


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


class _Content(msgspec.Struct):
    """A representation as JSON."""

    rotation: dict[str, Indices] = {}
    relative_to: Reference | None = None
    frame: Frame | None = None
    absolute: Indices = []


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
        try:
            known = msgspec.convert(content, _Content)
        except msgspec.ValidationError:
            return None
        rotation, relative_to, absolute = known.rotation, known.relative_to, known.absolute
        ascend = all(at == sorted({*at}) for at in (*rotation.values(), absolute))
        if not ascend or not all(value_names(name) and at for name, at in rotation.items()):
            return None
        if relative_to is None and (known.frame or absolute or not rotation):
            return None
        rotations = sorted((start, name) for name, at in rotation.items() for start in at)
        return cls(tuple(rotations), relative_to, known.frame, tuple(absolute))

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
        facts = {f"rotation {name} at": at for name, at in content.pop("rotation", {}).items()} | content
        texts = {key: " ".join(map(str, v)) if isinstance(v, list) else v for key, v in facts.items()}
        return ", ".join(f"{key} {text}" for key, text in texts.items())
