"""Converts Arrow columns of numbers and text to numpy; rejects missing values and lists of different lengths."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def flattened(column: Any) -> tuple[Any, tuple[int, ...]]:
    """Flattens nested lists into one Arrow array; also returns their shape, (rows, ...).

    Raises:
      ValueError: a value or list is missing, or lists of a level differ in length.
    """
    import pyarrow as pa

    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    shape = [len(array)]
    while isinstance(array, (pa.ListArray, pa.LargeListArray, pa.FixedSizeListArray)):
        _check_complete(array)
        if isinstance(array, pa.FixedSizeListArray):
            shape.append(array.type.list_size)
        else:
            lengths = np.unique(array.value_lengths().to_numpy())
            if len(lengths) > 1:
                raise ValueError(f"lists have {lengths[0]} and {lengths[1]} values, but must be of equal length")
            shape.append(int(lengths[0]) if len(lengths) else 0)
        array = array.flatten()
    _check_complete(array)
    return array, tuple(shape)


def numbers(column: Any) -> Array:
    """Converts numbers to [rows, ...]. Raises ValueError as `flattened`, and for values that are not numbers."""
    import pyarrow as pa

    array, shape = flattened(column)
    kind = array.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise ValueError(f"{kind} values, but expected numbers")
    values: Array = array.to_numpy(zero_copy_only=False)
    return values.reshape(shape)


def texts(column: Any) -> list[bytes]:
    """Converts text to a flat list. Raises ValueError as `flattened`, and for values that are not text."""
    import pyarrow as pa

    array, _ = flattened(column)
    if not (pa.types.is_string(array.type) or pa.types.is_large_string(array.type)):
        raise ValueError(f"{array.type} values, but expected text")
    return [text.encode() for text in array.to_pylist()]


def _check_complete(array: Any) -> None:
    if array.null_count:
        raise ValueError(f"{array.null_count} values are missing")
