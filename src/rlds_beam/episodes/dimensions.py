"""What the dimensions of a field are called wherever they are shown, and how many of them a view shows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlds_beam.text import printable

MAX_UNFOLDED = 32
"""The most dimensions of a field that are all shown; two arms have 14, a humanoid has about 30."""

_FOLDED = 8
_MAX_NAME = 40


def shown_dimensions(number: int) -> int:
    """How many dimensions of a field a view shows: all up to `MAX_UNFOLDED`, and the first of more."""
    return number if number <= MAX_UNFOLDED else _FOLDED


def dimension_labels(shape: Sequence[int], number: int, names: Sequence[str] = ()) -> list[str]:
    """The labels of the first dimensions: `0`, `1,2`, or `0 shoulder_pan.pos`; one empty label for a scalar.

    Args:
      shape: the shape of a step.
      number: how many labels.
      names: the names of the values along the last axis, if they are known.
    """
    if not shape:
        return [""] * min(number, 1)
    return ["".join(_index_and_name(shape, i, names)) for i in range(number)]


def named_dimension(path: str, shape: Sequence[int], dimension: int, names: Sequence[str] = ()) -> str:
    """A dimension in a table or a message: `action[3] wrist_flex.pos`; the path alone for a scalar."""
    if not shape:
        return path
    index, name = _index_and_name(shape, dimension, names)
    return f"{path}[{index}]{name}"


def _index_and_name(shape: Sequence[int], dimension: int, names: Sequence[str]) -> tuple[str, str]:
    place = [int(i) for i in np.unravel_index(dimension, tuple(shape))]
    name = f" {printable(names[place[-1]], _MAX_NAME)}" if len(names) == shape[-1] else ""
    return ",".join(map(str, place)), name
