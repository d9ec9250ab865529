"""Statistics of fields, as connectors use them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np

from rlds_beam.encoding.checked_json import load_json
from rlds_beam.episodes.columns import is_numeric
from rlds_beam.episodes.episode import Column
from rlds_beam.errors import UsageError
from rlds_beam.images.encoded_images import EncodedImages

Array: TypeAlias = "np.ndarray[Any, Any]"
Leaf: TypeAlias = Mapping[str, Any]
"""The statistics of a field, as in `stats.json`: `mean`, `std`, `min` and so on, each in the shape of a step."""

EPSILON = 1e-8
"""Added to what is divided by: that of Octo, OpenVLA and RLlib's filter."""


def loaded_statistics(statistics: str | Mapping[str, Any], connector: str) -> Mapping[str, Leaf]:
    """The statistics of each field, of a `stats.json` or its content.

    Raises:
      UsageError: there is no such file, or it has no statistics.
    """
    where = f"{connector}: statistics"
    content: Any = statistics
    if isinstance(statistics, str):
        where = f"{where}={statistics}"
        try:
            content = load_json(statistics)
        except (OSError, UsageError) as error:
            raise UsageError(f"{where}: {error}") from error
    if not isinstance(content, Mapping) or not isinstance(content.get("fields"), Mapping):
        raise UsageError(f"{where}: it has no `fields`; write it with rlds-beam stats --output=FILE")
    return content["fields"]  # type: ignore[no-any-return]


def numbers(column: Column, path: str, connector: str) -> Array:
    """The column; raises UsageError where it holds no numbers."""
    if not is_numeric(column):
        what = "images" if isinstance(column, EncodedImages) else str(column.dtype)
        raise UsageError(f"{connector}: {path} holds {what}, and only numbers have statistics")
    return np.asarray(column)


def float_dtype(values: Array) -> np.dtype[Any]:
    """That of `values` where it is a float; float32 for other numbers."""
    return cast("np.dtype[Any]", values.dtype) if values.dtype.kind == "f" else np.dtype(np.float32)


def picked(leaves: Mapping[str, Leaf], names: Sequence[str], connector: str) -> dict[str, dict[str, Any]]:
    """Only what is needed: it is part of a job's plan."""
    for path, leaf in leaves.items():
        missing = [name for name in names if name not in leaf]
        if missing:
            raise UsageError(f"{connector}: the statistics of {path} have no {missing[0]}, only {', '.join(leaf)}")
    return {path: {name: leaf[name] for name in names} for path, leaf in leaves.items()}


def array(leaf: Leaf, name: str) -> Array:
    """One statistic, float64, in the shape of a step."""
    return np.asarray(leaf[name], np.float64)
