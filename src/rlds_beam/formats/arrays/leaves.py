"""Step fields as columns of numbers, text and images, for formats that store such columns."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np

from rlds_beam.encoding.metadata import parsing
from rlds_beam.encoding.tfds.features import DTYPES
from rlds_beam.episodes.columns import all_below, exact_cast, nest_order, text_bytes
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.episodes.schema import ADD_ACTIONS, Field, Schema
from rlds_beam.errors import BadEpisode, UsageError, Violation
from rlds_beam.images.encoded_images import ZERO_IMAGE, EncodedImages
from rlds_beam.typing import Array

NO_SHAPE = "its shape is not the same at all steps"
TEXT = "text"


@dataclasses.dataclass(frozen=True)
class LeafColumn:
    """A step field of a fixed shape.

    Attributes:
      field: the field of the schema.
    """

    field: Field

    @property
    def path(self) -> str:
        return self.field.path

    @property
    def is_image(self) -> bool:
        """Whether it is stored as PNG or JPEG."""
        return self.field.holds_image_files

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of written values: bfloat16, which other formats lack, becomes float32."""
        return np.dtype(np.float32) if self.field.dtype == "bfloat16" else self.field.numpy_dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one step."""
        return self.field.closed_shape

    def values(self, episode: Episode, stop: int | None = None) -> Array:
        """The values of the first `stop` steps, (steps, *shape) in C order.

        Raises:
          BadEpisode: an image cannot be decoded, or is of another size.
        """
        column = episode.steps[self.path][:stop]
        if isinstance(column, EncodedImages):
            column = self.pixels(column)
        return np.ascontiguousarray(column.reshape(len(column), *self.shape), self.dtype)

    def pixels(self, column: EncodedImages) -> Array:
        """The decoded images; missing ones are zeros. Raises BadEpisode as `values`."""
        there = column.data != ZERO_IMAGE
        if there.all():
            return column.decode(self.path)
        pixels = np.zeros((len(column), *self.shape), self.field.dtype)
        if there.any():
            pixels[there] = column[there].decode(self.path)
        return pixels


Leaves: TypeAlias = "tuple[LeafColumn, ...]"


def leaves_below(schema: Schema, name: str, left_out: dict[str, str]) -> Leaves:
    """The columns of a step field, in the order of `tf.nest`; fields that are not numbers go to `left_out`.

    Raises:
      UsageError: an image field has no fixed size.
    """
    return make_columns((schema.steps[path] for path in nest_order(all_below(schema.steps, name))), left_out)


def make_columns(fields: Iterable[Field], left_out: dict[str, str]) -> Leaves:
    """The columns of fields of numbers and images. See `leaves_below` for `left_out` and errors."""
    columns = []
    for field in fields:
        if field.dtype == "string":
            left_out[field.path] = TEXT
        elif None in field.shape and field.holds_image_files:
            raise UsageError(f"{field} has no fixed size, but arrays of images do: resize the images with --connectors")
        elif None in field.shape:
            left_out[field.path] = NO_SHAPE
        else:
            columns.append(LeafColumn(field))
    return tuple(columns)


def is_text(field: Field) -> bool:
    """Whether a field is one string per step."""
    return field.dtype == "string" and not field.shape


def text_values(column: Column, path: str) -> list[bytes]:
    """The text of each step. Raises BadEpisode for other values."""
    return [text_bytes(value, path) for value in column]


def scalar(leaf: LeafColumn, role: str, to: str) -> LeafColumn:
    """Returns the column, which must be one number per step. Raises UsageError if not."""
    if leaf.field.known_size != 1 or leaf.is_image:
        raise UsageError(f"--to={to}: the {role} must be one number per step, not {leaf.field}")
    return leaf


def single(leaves: Leaves, role: str, to: str) -> LeafColumn:
    """The only column. Raises UsageError if there are none or several."""
    if len(leaves) == 1:
        return leaves[0]
    if not leaves:
        hint = f"; {ADD_ACTIONS}" if role == "action" else ""
        raise UsageError(f"--to={to}: the dataset has no numeric {role}{hint}")
    names = ", ".join(leaf.path for leaf in leaves)
    raise UsageError(
        f"--to={to}: the {role} must be one array, but the dataset has {names}: join them, or leave some out, with "
        "--connectors"
    )


def representable(values: Array, dtype: Any, path: str) -> Array:
    """The values in the dtype that a format stores. Raises BadEpisode (not_representable) if a value would change."""
    return exact_cast(values, np.dtype(dtype), path, "not_representable")


def not_representable(detail: str, field: str | None = None) -> BadEpisode:
    """The error for an episode that the format cannot hold."""
    return BadEpisode(Violation("not_representable", detail, field))


def field_json(field: Field) -> dict[str, Any]:
    """A field as JSON, stored in outputs so that they can be read back."""
    return {"path": field.path, **field.to_json()}


def field_from_json(content: Any, where: str) -> Field:
    """The inverse of `field_json`. Raises UsageError, with the file (`where`), if it is not a field."""
    with parsing(where):
        path, dtype, encoding, feature = (content[name] for name in ("path", "dtype", "encoding", "feature"))
        if not all(isinstance(text, str) for text in (path, dtype, encoding, feature)) or dtype not in DTYPES:
            raise ValueError(f"no field has the dtype {dtype!r} and the encoding {encoding!r}")
        return Field(path, dtype, tuple(content["shape"]), encoding, feature).with_meaning(content)
