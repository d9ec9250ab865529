"""Numbers and text in Arrow columns as numpy arrays: nothing may be missing, and no list may differ in length."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def flattened(column: Any) -> tuple[Any, tuple[int, ...]]:
    """The values of nested lists in one Arrow array, and the shape that the lists have: (rows, ...).

    Raises:
      ValueError: a value or a list is missing, or lists of one level differ in length.
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
                raise ValueError(f"lists of {lengths[0]} and of {lengths[1]} values, where all have to be equally long")
            shape.append(int(lengths[0]) if len(lengths) else 0)
        array = array.flatten()
    _check_complete(array)
    return array, tuple(shape)


def numbers(column: Any) -> Array:
    """The same of numbers: [rows, ...]. Raises ValueError also for values that are no numbers."""
    import pyarrow as pa

    array, shape = flattened(column)
    kind = array.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise ValueError(f"{kind} values, where numbers are expected")
    values: Array = array.to_numpy(zero_copy_only=False)
    return values.reshape(shape)


def texts(column: Any) -> list[bytes]:
    """The same of text, one after another. Raises ValueError also for values that are no text."""
    import pyarrow as pa

    array, _ = flattened(column)
    if not (pa.types.is_string(array.type) or pa.types.is_large_string(array.type)):
        raise ValueError(f"{array.type} values, where text is expected")
    return [text.encode() for text in array.to_pylist()]


def _check_complete(array: Any) -> None:
    if array.null_count:
        raise ValueError(f"{array.null_count} values are missing")
