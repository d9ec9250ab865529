"""Gymnasium spaces of recorded values, in Minari's JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlds_beam.episodes.columns import nest

JsonSpace = dict[str, Any]


def box(dtype: np.dtype[Any], shape: tuple[int, ...]) -> JsonSpace:
    """A Box of all values of a dtype: unbounded for floats."""
    low: Any
    high: Any
    if dtype.kind == "b":
        dtype, low, high = np.dtype(np.int8), 0, 1
    elif dtype.kind == "f":
        low, high = -math.inf, math.inf
    else:
        low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    return {
        "type": "Box",
        "dtype": str(dtype),
        "shape": list(shape),
        "low": _full(shape, low),
        "high": _full(shape, high),
    }


def _full(shape: tuple[int, ...], value: Any) -> Any:
    return [_full(shape[1:], value)] * shape[0] if shape else value


def discrete(low: int, high: int) -> JsonSpace:
    """The integers from min(0, `low`) to `high`."""
    start = min(0, low)
    return {"type": "Discrete", "dtype": "int64", "start": start, "n": max(1, high - start + 1)}


def text(longest: int, characters: Sequence[str]) -> JsonSpace:
    """Text with these characters."""
    charset = "".join(sorted(characters)) or " "
    return {"type": "Text", "max_length": max(1, longest), "min_length": 0, "charset": charset}


def nest_spaces(spaces: Mapping[str, JsonSpace]) -> JsonSpace:
    """Spaces by path as a Dict of Dicts; a space with an empty path stays itself."""
    if "" in spaces:
        return spaces[""]
    return _dict(nest(spaces))


def _dict(content: Mapping[str, Any]) -> JsonSpace:
    spaces = {name: space if isinstance(space.get("type"), str) else _dict(space) for name, space in content.items()}
    return {"type": "Dict", "subspaces": spaces}


def is_image(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bool:
    """Whether Minari treats such values as images, which it encodes as JPEG."""
    return dtype == np.uint8 and len(shape) in (2, 3) and shape[0] >= 32 and shape[1] >= 32
