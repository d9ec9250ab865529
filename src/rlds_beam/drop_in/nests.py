"""Flattens nested frames to columns in the order of `tf.nest` and dm-tree, without importing either."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from rlds_beam.encoding.structured_values import DATA_TYPES
from rlds_beam.episodes.columns import Path, flatten_nest
from rlds_beam.typing import Array


@dataclasses.dataclass(frozen=True)
class NestedFrames:
    """Consecutive frames.

    Attributes:
      paths: the paths of the leaves in the original nest.
      values: the leaves, [n, ...] each. They are not copies; copy them to keep them.
    """

    paths: tuple[Path, ...]
    values: list[Array]

    def __len__(self) -> int:
        return len(self.values[0]) if self.values else 0

    def __getitem__(self, which: slice) -> NestedFrames:
        return NestedFrames(self.paths, [value[which] for value in self.values])

    @classmethod
    def of_frame(cls, nest: Any) -> NestedFrames:
        """Returns one frame with leaves [...]."""
        paths, leaves = flatten_nest(nest)
        return cls(paths, [np.asarray(leaf)[None] for leaf in leaves])

    @classmethod
    def of_run(cls, nest: Any) -> NestedFrames:
        """Returns frames whose leaves have a leading time axis, [n, ...].

        Raises:
          ValueError: a leaf has no time axis, or its length differs.
        """
        paths, leaves = flatten_nest(nest)
        values = [np.asarray(leaf) for leaf in leaves]
        for path, value in zip(paths, values, strict=True):
            if not value.ndim or len(value) != len(values[0]):
                raise ValueError(
                    f"Every leaf of a run of frames must have a leading time axis of the same length: {path} has shape "
                    f"{list(value.shape)}, {paths[0]} has shape {list(values[0].shape)}"
                )
        return cls(paths, values)


@dataclasses.dataclass(frozen=True)
class FrameSpec:
    """The layout of a writer's frames: paths, dtypes, and shapes of the leaves."""

    paths: tuple[Path, ...]
    dtypes: list[np.dtype[Any]]
    shapes: list[tuple[int, ...]]

    @classmethod
    def of(cls, columns: NestedFrames) -> FrameSpec:
        return cls(columns.paths, [v.dtype for v in columns.values], [v.shape[1:] for v in columns.values])

    @property
    def frame_bytes(self) -> int:
        return sum(dtype.itemsize * int(np.prod(shape)) for dtype, shape in zip(self.dtypes, self.shapes, strict=True))

    def refuse_text(self) -> None:
        """Raises ValueError if the dtype of a leaf cannot be written."""
        for path, dtype in zip(self.paths, self.dtypes, strict=True):
            if dtype.name not in DATA_TYPES:
                raise ValueError(f"Column {path} has dtype {dtype}, but only numbers and flags can be written.")

    def check(self, other: FrameSpec) -> None:
        """Raises ValueError if `other` differs."""
        if other.paths != self.paths:
            raise ValueError(f"A frame has the columns {other.paths}, but earlier frames have {self.paths}.")
        leaves = zip(self.paths, zip(self.dtypes, self.shapes, strict=True), strict=True)
        for (path, had), got in zip(leaves, zip(other.dtypes, other.shapes, strict=True), strict=True):
            if had != got:
                texts = [f"{dtype.name}{list(shape)}" for dtype, shape in (got, had)]
                raise ValueError(f"Column {path} is {texts[0]}, but earlier frames have {texts[1]}.")
