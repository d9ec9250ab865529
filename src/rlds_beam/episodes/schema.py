"""The declared content of a dataset's episodes: path -> dtype, shape, encoding."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

REQUIRED_STEP_FIELDS = ("observation", "action", "reward", "discount", "is_first", "is_last", "is_terminal")
"""The RLDS step fields that a TF-Agents trajectory is made of (leaves, or prefixes of leaves)."""


@dataclasses.dataclass(frozen=True)
class Field:
    """One leaf of a dataset's `features.json`.

    Attributes:
      path: names joined with `/`, relative to the step (`observation/state`) or the episode.
      dtype: numpy name of a decoded value (`float32`, `bool`, `uint8`, `bfloat16`), or `string`.
      shape: of one step (without T); None is an unknown dimension.
      encoding: how one value is stored in the tf.Example: `none` (a list of numbers), `bytes`,
        `zlib`, `png`, `jpeg`, `text`.
      feature: the TFDS class name, for messages (`Tensor`, `Image`, `ClassLabel`).
      fast: False where only TFDS's own decoder can read it (ragged, video, optional).
      optional: True where a record may leave it out.
    """

    path: str
    dtype: str
    shape: tuple[int | None, ...] = ()
    encoding: str = "none"
    feature: str = "Tensor"
    fast: bool = True
    optional: bool = False

    @functools.cached_property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype of a column (object for strings). bfloat16 is that of ml_dtypes."""
        if self.dtype == "string":
            return np.dtype(object)
        if self.dtype == "bfloat16":
            import ml_dtypes

            return np.dtype(ml_dtypes.bfloat16)
        return np.dtype(self.dtype)

    @functools.cached_property
    def closed_shape(self) -> tuple[int, ...]:
        """The shape with 0 for every unknown dimension: that of nothing."""
        return tuple(d or 0 for d in self.shape)

    @functools.cached_property
    def known_size(self) -> int:
        """Values in one step, with 1 for every unknown dimension."""
        return math.prod(d for d in self.shape if d is not None)

    def __str__(self) -> str:
        dims = ", ".join("?" if d is None else str(d) for d in self.shape)
        return f"{self.path}: {self.dtype}({dims})" + (f" {self.encoding}" if self.encoding != "none" else "")


@dataclasses.dataclass(frozen=True)
class Schema:
    """All leaves of a dataset: of a step, and of the episode around it (`metadata`).

    `fast` is True when our own decoder reads every field; otherwise `slow_reason` names the
    first one that it cannot, and TFDS's decoder (and TensorFlow) is used for these fields.
    """

    steps: Mapping[str, Field]
    metadata: Mapping[str, Field] = dataclasses.field(default_factory=dict)

    @property
    def slow_reason(self) -> str | None:
        for field in (*self.steps.values(), *self.metadata.values()):
            if not field.fast:
                return f"{field.path} is a {field.feature}"
        return None

    @property
    def fast(self) -> bool:
        return self.slow_reason is None
