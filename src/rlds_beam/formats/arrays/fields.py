"""Fields that formats of arrays can hold, their values, and fields as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from rlds_beam.encoding.metadata import parsing
from rlds_beam.encoding.tfds.features import DTYPES
from rlds_beam.episodes.columns import exact_cast
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.schema import Field
from rlds_beam.errors import BadEpisode, UsageError, Violation
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.typing import Array


def fields_of_numbers(fields: Iterable[Field], left_out: dict[str, str]) -> list[Field]:
    """The fields of numbers and images of a fixed shape; the others go to `left_out`, with the reasons.

    Raises:
      UsageError: an image field has no fixed size.
    """
    kept = []
    for field in fields:
        if field.dtype == "string":
            left_out[field.path] = "text"
        elif None in field.shape and field.holds_image_files:
            raise UsageError(f"{field} has no fixed size, but arrays of images do: resize the images with --connectors")
        elif None in field.shape:
            left_out[field.path] = "its shape is not the same at all steps"
        else:
            kept.append(field)
    return kept


def is_text(field: Field) -> bool:
    """Whether a field is one string per step, or per episode."""
    return field.dtype == "string" and not field.shape


def stored_dtype(field: Field) -> np.dtype[Any]:
    """The dtype of a field's written numbers: bfloat16, which other formats lack, becomes float32."""
    return np.dtype(np.float32) if field.dtype == "bfloat16" else field.numpy_dtype


def read_numbers(field: Field, episode: Episode, stop: int | None = None) -> Array:
    """The values of the first `stop` steps, (steps, *shape) in C order; images are decoded.

    Raises:
      BadEpisode: an image cannot be decoded, or is of another size.
    """
    column = episode.steps[field.path][:stop]
    if isinstance(column, EncodedImages):
        column = column.decode_all(field.path, field.closed_shape)
    return np.ascontiguousarray(column.reshape(len(column), *field.closed_shape), stored_dtype(field))


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
