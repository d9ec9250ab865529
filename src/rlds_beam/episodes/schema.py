"""The declared content of a dataset's episodes: path -> dtype, shape, encoding."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_beam.episodes.flags import FLAGS
from rlds_beam.errors import UsageError

if TYPE_CHECKING:
    from rlds_beam.episodes.episode import Episode

REQUIRED_STEP_FIELDS = ("observation", "action", "reward", "discount", *FLAGS)
"""The RLDS step fields that a TF-Agents trajectory is made of (leaves, or prefixes of leaves)."""

MOST_BYTES = 256 << 20
"""The most bytes that a step, or an episode's own fields, may declare. An 8K RGB image has 95 MiB."""


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

    def to_json(self) -> dict[str, Any]:
        """For programs; an unknown dimension is null."""
        return {"dtype": self.dtype, "shape": list(self.shape), "encoding": self.encoding, "feature": self.feature}

    def __str__(self) -> str:
        dims = ", ".join("?" if d is None else str(d) for d in self.shape)
        return f"{self.path}: {self.dtype}({dims})" + (f" {self.encoding}" if self.encoding != "none" else "")


def by_path(fields: Iterable[Field], where: str) -> dict[str, Field]:
    """The fields by path. Raises UsageError, which names `where`, if two have the same one: the first would be lost."""
    unique: dict[str, Field] = {}
    for field in fields:
        if field.path in unique:
            raise UsageError(f"{where}: {field.path} is declared twice")
        unique[field.path] = field
    return unique


def text_field(path: str, shape: tuple[int | None, ...] = ()) -> Field:
    """A field of text: one value, which TFDS calls Text, or an array of them."""
    return Field(path, "string", shape, "none", "Tensor") if shape else Field(path, "string", (), "text", "Text")


@dataclasses.dataclass(frozen=True)
class Schema:
    """All leaves of a dataset: of a step, and of the episode around it (`metadata`).

    `fast` is True when our own decoder reads every field; otherwise `slow_reason` names the
    first one that it cannot, and TFDS's decoder (and TensorFlow) is used for these fields.
    """

    steps: Mapping[str, Field]
    metadata: Mapping[str, Field] = dataclasses.field(default_factory=dict)

    def with_columns(self, *fields: Field) -> Schema:
        """A copy with more step fields, or others in the place of those of the same path.

        schema.with_columns(Field("observation/speed", "float32", (2,)))
        """
        return dataclasses.replace(self, steps={**self.steps, **{field.path: field for field in fields}})

    @property
    def recorded(self) -> Schema:
        """Without the field that no record holds: the discount of a dataset without discounts."""
        return dataclasses.replace(self, steps={p: field for p, field in self.steps.items() if not field.optional})

    def check_flags(self, where: str) -> None:
        """Raises UsageError, which names `where`, if a flag or the discount is text or an image."""
        for path in (*FLAGS, "discount"):
            field = self.steps.get(path)
            if field is not None and (field.dtype == "string" or field.encoding in ("png", "jpeg")):
                raise UsageError(f"{where}: {field} is not a number, as RLDS has it")

    def check_size(self, where: str) -> None:
        """Checks the declared size before anything of it is allocated; unknown dimensions count as 1.

        Raises:
          UsageError: a step, or the episode's own fields, take more than `MOST_BYTES`; names `where` and the largest.
        """
        for what, fields in (("a step", self.steps), ("an episode's own fields", self.metadata)):
            sizes = {path: field.known_size * field.numpy_dtype.itemsize for path, field in fields.items()}
            if sum(sizes.values()) > MOST_BYTES:
                largest = max(sizes, key=lambda path: sizes[path])
                raise UsageError(
                    f"{where}: {fields[largest]} is too large: the most for {what} is {MOST_BYTES >> 20} MiB"
                )

    def check(self, episode: Episode) -> None:
        """Holds the columns of an episode against the schema, in a pipeline that may have changed them.

        Raises:
          UsageError: there is a column that the schema does not name, or it names one that there is not.
        """
        if episode.steps.keys() == self.steps.keys():
            return
        more, less = sorted(episode.steps.keys() - self.steps.keys()), sorted(self.steps.keys() - episode.steps.keys())
        if more:
            raise UsageError(
                f"{episode.key}: the schema does not name {', '.join(more)}, so it would not be written: hand over "
                f"schema.with_columns(Field({more[0]!r}, dtype, shape)), or leave the column out of the episode"
            )
        raise UsageError(f"{episode.key}: the schema names {', '.join(less)}, and the episode has no such column")

    @property
    def slow_reason(self) -> str | None:
        for field in (*self.steps.values(), *self.metadata.values()):
            if not field.fast:
                return f"{field.path} is a {field.feature}"
        return None

    @property
    def fast(self) -> bool:
        return self.slow_reason is None
