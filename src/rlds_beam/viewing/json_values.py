"""Values of datasets as JSON: bounded, and without what JSON lacks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

MAX_VALUES = 1000
"""Maximum numbers or characters of a value."""
_EXACT = 1 << 53
"""Larger integers are sent as text: JavaScript rounds them."""


def json_value(value: Any, most: int = MAX_VALUES) -> tuple[Any, bool]:
    """A value as JSON, and whether it was cut to `most` numbers or characters."""
    if isinstance(value, (bytes, str)):
        text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
        return text[:most], len(text) > most
    if value is None:
        return None, False
    array = np.asarray(value)
    if array.dtype.kind in "SU":
        array = array.astype(object)
    if not array.ndim:
        return scalar(array.item()), False
    cut = array.size > most
    if cut:
        array = array[: max(1, most // max(1, math.prod(array.shape[1:])))]
        if array.size > most:
            array = array.reshape(-1)[:most]
    return _list(array.astype(object).tolist() if array.dtype.kind in "OV" else array.tolist(), most), cut


def _list(value: Any, most: int) -> Any:
    if isinstance(value, list):
        return [_list(item, most) for item in value]
    return scalar(value, most)


def scalar(value: Any, most: int = MAX_VALUES) -> Any:
    """A Python or numpy scalar as JSON; NaN and infinity become None."""
    if isinstance(value, (bytes, str)):
        text = value.decode(errors="replace") if isinstance(value, bytes) else value
        return text[:most]
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (int, np.integer)):
        return int(value) if abs(int(value)) <= _EXACT else str(value)
    if isinstance(value, np.ndarray):
        return json_value(value, most)[0]
    try:
        number = float(value)
    except (TypeError, ValueError):
        return str(value)[:most]
    return number if math.isfinite(number) else None
