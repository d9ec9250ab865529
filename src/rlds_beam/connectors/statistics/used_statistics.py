"""The statistics that connectors use: of a file, or of the rows that other connectors choose."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np

from rlds_beam.connectors.base import Batch
from rlds_beam.connectors.fields import StepFields
from rlds_beam.connectors.learner.returns import real_transitions
from rlds_beam.connectors.statistics.episode_statistics import LeafBuilder, LeafStatistics
from rlds_beam.encoding.metadata import load_json
from rlds_beam.episodes.columns import below, is_numeric
from rlds_beam.episodes.episode import Column, Episode
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


def pick_statistics(leaves: Mapping[str, Leaf], names: Sequence[str], connector: str) -> dict[str, dict[str, Any]]:
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


Rows: TypeAlias = "Iterable[tuple[str, str, Array]]"
"""Tuples of a group (an agent, a module), a name in it, and rows (N, ...)."""


class RowStatistics:
    """An `Accumulator` of the statistics of rows.

    Args:
      rows_of: a picklable function that returns the rows of a batch.
    """

    def __init__(self, rows_of: Callable[[Batch], Rows]):
        self._rows_of = rows_of
        self._builders: dict[tuple[str, str], LeafBuilder] = {}
        self._merged: dict[tuple[str, str], LeafStatistics] = {}

    def add(self, batch: Batch) -> None:
        """Adds copies of the rows of one batch."""
        for group, name, rows in self._rows_of(batch):
            if len(rows):
                if (group, name) not in self._builders:
                    self._builders[group, name] = LeafBuilder()
                self._builders[group, name].add(rows)

    def merge(self, *others: RowStatistics) -> RowStatistics:
        """Merges the statistics."""
        merged, every = RowStatistics(self._rows_of), [statistics._leaves() for statistics in (self, *others)]
        for key in sorted({key for leaves in every for key in leaves}):
            first, *more = (leaves[key] for leaves in every if key in leaves)
            merged._merged[key] = first.merge(*more) if more else first
        return merged

    def finish(self) -> dict[str, dict[str, Any]]:
        """`LeafStatistics.to_json` by group and name, sorted."""
        by_group: dict[str, dict[str, Any]] = {}
        for (group, name), leaf in sorted(self._leaves().items()):
            by_group.setdefault(group, {})[name] = leaf.to_json()
        return by_group

    def _leaves(self) -> dict[tuple[str, str], LeafStatistics]:
        """The statistics of everything added and merged so far."""
        leaves = {key: builder.finish() for key, builder in self._builders.items()}
        for key, leaf in self._merged.items():
            leaves[key] = leaf.merge(leaves[key]) if key in leaves else leaf
        return leaves


def valid_rows(episode: Episode, path: str, fields: StepFields) -> Column:
    """The valid rows of a step field: all observations, but one action, reward, and so on per transition.

    step          0     1     2     3 (last)
    observation   o0    o1    o2    o3
    action        a0    a1    a2                the action of the last step is void

    Timesteps that `AddOneTsToEpisodesAndTruncate` added are left out.
    """
    count = real_transitions(episode)
    return episode.steps[path][: count + 1 if below(path, fields.obs) else count]
