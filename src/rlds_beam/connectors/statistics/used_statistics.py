"""Loads the statistics that connectors use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np

from rlds_beam.encoding.checked_json import load_json
from rlds_beam.episodes.columns import is_numeric
from rlds_beam.episodes.episode import Column
from rlds_beam.errors import UsageError
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.typing import Array

Leaf: TypeAlias = Mapping[str, Any]
"""The statistics of a field, as in `stats.json`: `mean`, `std`, `min`, and so on, each in the shape of a step."""

EPSILON = 1e-8
"""Added to divisors, as in Octo, OpenVLA, and RLlib's filter."""


def loaded_statistics(statistics: str | Mapping[str, Any], connector: str) -> Mapping[str, Leaf]:
    """Loads the statistics per field from a `stats.json`, given its path or content.

    Raises:
      UsageError: the file does not exist, or has no statistics.
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
        raise UsageError(f"{where}: there are no `fields`; create the file with rlds-beam stats --output=FILE")
    return content["fields"]  # type: ignore[no-any-return]


def numbers(column: Column, path: str, connector: str) -> Array:
    """The column as an array; raises UsageError if it does not hold numbers."""
    if not is_numeric(column):
        what = "images" if isinstance(column, EncodedImages) else str(column.dtype)
        raise UsageError(f"{connector}: {path} holds {what}; only numbers have statistics")
    return np.asarray(column)


def float_dtype(values: Array) -> np.dtype[Any]:
    """The dtype of `values` if it is a float, else float32."""
    return cast("np.dtype[Any]", values.dtype) if values.dtype.kind == "f" else np.dtype(np.float32)


def picked(leaves: Mapping[str, Leaf], names: Sequence[str], connector: str) -> dict[str, dict[str, Any]]:
    """Keeps only the named statistics, because they become part of a job's plan."""
    for path, leaf in leaves.items():
        missing = [name for name in names if name not in leaf]
        if missing:
            raise UsageError(
                f"{connector}: the statistics of {path} lack {missing[0]}; there are {', '.join(leaf) or 'none'}"
            )
    return {path: {name: leaf[name] for name in names} for path, leaf in leaves.items()}


def array(leaf: Leaf, name: str) -> Array:
    """A statistic, float64, in the shape of a step."""
    return np.asarray(leaf[name], np.float64)
