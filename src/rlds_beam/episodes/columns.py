"""Operations on columns of arrays, text, and encoded images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from rlds_beam.episodes.episode import Column
from rlds_beam.errors import BadEpisode, Violation
from rlds_beam.images.encoded_images import ZERO_IMAGE, EncodedImages


def is_text(column: Column) -> bool:
    """Whether the column holds text, which trajectories do not support."""
    return not isinstance(column, EncodedImages) and column.dtype.kind in "OSU"


def text_bytes(value: Any, path: str) -> bytes:
    """Converts one text value to bytes.

    Raises:
      BadEpisode: wrong_dtype_or_shape, if the value is not text; an object array as bytes would be memory addresses.
    """
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            detail = "a text has half of a surrogate pair, which UTF-8 cannot hold"
            raise BadEpisode(Violation("wrong_dtype_or_shape", detail, path)) from None
    if not isinstance(value, bytes):
        what = f"an array of shape {list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
        raise BadEpisode(Violation("wrong_dtype_or_shape", f"{what}, but expected text", path))
    return bytes(value)


def is_numeric(column: Column) -> bool:
    """Whether a column holds numbers, not images, text, or bools."""
    return not isinstance(column, EncodedImages) and (column.dtype.kind in "fiu" or column.dtype.name == "bfloat16")


def zeros_like(column: Column, length: int) -> Column:
    """A column of `length` zeros (empty strings for text) of the same kind, dtype, and step shape."""
    if isinstance(column, EncodedImages):
        return column.with_data(np.full(length, ZERO_IMAGE, object))
    if column.dtype == object:
        return np.full(length, b"", object)
    return np.zeros((length, *column.shape[1:]), column.dtype)


def concatenate(columns: Sequence[Column]) -> Column:
    """Concatenates columns of the same kind."""
    first = columns[0]
    if isinstance(first, EncodedImages):
        data = np.concatenate([cast(EncodedImages, column).data for column in columns])
        return first.with_data(data)
    joined: np.ndarray[Any, Any] = np.concatenate(cast("list[np.ndarray[Any, Any]]", columns))
    return joined


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether values of this dtype may be NaN or infinite."""
    kind = dtype.kind
    # numpy reports bfloat16 as kind V, like a structured dtype.
    return kind == "f" or (kind == "V" and dtype.name == "bfloat16")
