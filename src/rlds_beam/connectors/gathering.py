"""Statistics of rows that connectors choose, gathered record by record, and merged in any order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import numpy as np

from rlds_beam.connectors.base import Batch
from rlds_beam.connectors.fields import StepFields
from rlds_beam.connectors.returns import real_transitions
from rlds_beam.connectors.statistics import LeafStatistics
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.episodes.nesting import below

Array: TypeAlias = "np.ndarray[Any, Any]"

Rows: TypeAlias = "Iterable[tuple[str, str, Array]]"
"""A group (an agent, a module), a name in it, and rows (N, ...)."""

_ROWS = 1 << 15
"""Rows that are collected before they are counted."""


class RowStatistics:
    """An `Accumulator` of the statistics of rows.

    Args:
      rows_of: what rows there are in a batch; a function that pickles.
    """

    def __init__(self, rows_of: Callable[[Batch], Rows]):
        self._rows_of = rows_of
        self._waiting: dict[tuple[str, str], list[Array]] = {}
        self._count = 0
        self._done: dict[tuple[str, str], LeafStatistics] = {}

    def add(self, batch: Batch) -> None:
        """Takes in the rows of one batch. Holds copies of them."""
        for group, name, rows in self._rows_of(batch):
            if len(rows):
                self._waiting.setdefault((group, name), []).append(np.array(rows))
                self._count += len(rows)
        if self._count >= _ROWS:
            self._flush()

    def merge(self, *others: RowStatistics) -> RowStatistics:
        """All of the rows."""
        merged = RowStatistics(self._rows_of)
        for one in (self, *others):
            one._flush()
            merged._take(one._done)
        return merged

    def result(self) -> dict[str, dict[str, Any]]:
        """`LeafStatistics.to_json` by group and name, in the order of their names."""
        self._flush()
        made: dict[str, dict[str, Any]] = {}
        for (group, name), leaf in sorted(self._done.items()):
            made.setdefault(group, {})[name] = leaf.to_json()
        return made

    def _flush(self) -> None:
        self._take({key: LeafStatistics.of(np.concatenate(rows)) for key, rows in self._waiting.items()})
        self._waiting, self._count = {}, 0

    def _take(self, leaves: dict[tuple[str, str], LeafStatistics]) -> None:
        for key, leaf in leaves.items():
            self._done[key] = self._done[key].merge(leaf) if key in self._done else leaf


def valid_rows(episode: Episode, path: str, fields: StepFields) -> Column:
    """The rows of a step field that mean something: all observations, and one action, reward and so on a transition.

    step          0     1     2     3 (last)
    observation   o0    o1    o2    o3
    action        a0    a1    a2                the action of the last step is void

    A timestep that `AddOneTsToEpisodesAndTruncate` added is left out.
    """
    count = real_transitions(episode)
    return episode.steps[path][: count + 1 if below(path, fields.obs) else count]
