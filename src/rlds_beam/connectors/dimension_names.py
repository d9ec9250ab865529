"""Which names of a vector's values still hold after connectors.

Connectors need not say it: they run on a short episode in which each named dimension is a random number, the same at
every step. A dimension of the result that is one of these numbers is that dimension, also if it was cut out, joined, or
moved. Any other value was computed, and is not what the name says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np

from rlds_beam.episodes.columns import is_numeric
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.episodes.schema import Schema
from rlds_beam.errors import RldsBeamError

Key = TypeVar("Key")

_SEEDS = (1, 2)
"""A coincidence, for example of clipped or rounded numbers, is not the same with other numbers."""


def names_after(
    schema: Schema, episode: Episode, run: Callable[[Episode], Iterable[Mapping[Key, Column]]]
) -> dict[Key, tuple[str, ...]]:
    """The names of the values of the columns that connectors return; not of those that they change.

    Args:
      schema: the schema before the connectors.
      episode: an episode of the schema.
      run: runs the connectors on an episode, and returns the columns of each resulting episode.
    """
    found: list[dict[Key, tuple[str, ...]]] = []
    for seed in _SEEDS:
        marked, names = _mark(schema, episode, np.random.default_rng(seed))
        try:
            found += [_read(result, names) for result in (run(marked) if names else ())]
        except RldsBeamError:  # they refuse such numbers
            return {}
    common = set.intersection(*(set(names.items()) for names in found)) if found else set()
    return dict(common)


def _mark(schema: Schema, episode: Episode, random: np.random.Generator) -> tuple[Episode, dict[float, str]]:
    """The episode with a number for each named dimension, and the names by number."""
    columns: dict[str, Any] = {}
    names: dict[float, str] = {}
    for path, field in schema.steps.items():
        column = episode.steps[path]
        if not field.names or len(field.shape) != 1 or not is_numeric(column):
            continue
        column = np.asarray(column)
        small = column.dtype.kind in "iu"
        row = random.integers(1, 127, len(field.names)) if small else random.uniform(0.1, 0.9, len(field.names))
        row = row.astype(np.float32).astype(column.dtype)  # the same number after a cast to float32
        columns[path] = np.broadcast_to(row, column.shape)
        names |= dict(zip(columns[path][0].tolist(), field.names, strict=True))
    return episode.with_columns(columns), names


def _read(columns: Mapping[Key, Column], names: Mapping[float, str]) -> dict[Key, tuple[str, ...]]:
    """The names of the columns whose values are all numbers of different names."""
    found = {}
    for key, column in columns.items():
        if not is_numeric(column):
            continue
        rows = np.asarray(column)
        if rows.ndim == 2 and len(rows) and (rows == rows[:1]).all():
            values = rows[0].tolist()
            if values and len(set(values)) == len(values) and all(value in names for value in values):
                found[key] = tuple(names[value] for value in values)
    return found
