"""Standardizes advantages over the whole dataset."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from rlds_beam.connectors.base import Batch, Columns, check_not_batched
from rlds_beam.connectors.fields import find_module
from rlds_beam.connectors.fitted_connector import FittedConnector
from rlds_beam.connectors.learner.returns import real_transitions
from rlds_beam.connectors.statistics.used_statistics import Leaf, Rows, RowStatistics, pick_statistics
from rlds_beam.episodes.episode import Episode
from rlds_beam.errors import UsageError
from rlds_beam.typing import Array

_MIN_DIVISOR = 1e-4
"""The smallest divisor, as in RLlib."""


@dataclasses.dataclass(frozen=True)
class StandardizeAdvantages(FittedConnector):
    """Standardizes `advantages`, float32 (T,), to mean 0 and standard deviation 1 over a module's transitions.

        advantages    1     3     5     0*      mean 3, std 1.63
                     -1.22  0     1.22  0*      * added by AddOneTsToEpisodesAndTruncate: neither counted
                                                  nor changed

        (advantages - mean) / max(std, 1e-4)    population std, as in RLlib

    The statistics cover the whole dataset and are computed before anything is written. (RLlib uses those of each
    training batch, including added timesteps.) Must come after GeneralAdvantageEstimation, and before
    AddTimeDimToBatchAndZeroPad.

    Attributes:
      column: the column to standardize.
      statistics: module -> `mean` and `std`; by default the dataset's own.
    """

    column: str = "advantages"
    statistics: Mapping[str, Leaf] | None = None

    def __post_init__(self) -> None:
        if self.statistics is not None:
            object.__setattr__(
                self, "statistics", pick_statistics(self.statistics, ("mean", "std"), "StandardizeAdvantages")
            )

    @property
    def fitted(self) -> bool:
        return self.statistics is not None

    def accumulator(self) -> RowStatistics:
        return RowStatistics(self._rows)

    def fit(self, result: Mapping[str, Mapping[str, Leaf]]) -> StandardizeAdvantages:
        return dataclasses.replace(self, statistics={module: leaves[self.column] for module, leaves in result.items()})

    def transform(self, batch: Batch) -> Batch:
        self._check(batch)
        pairs = zip(batch.episodes, batch.columns, strict=True)
        return batch.replace(columns=tuple({**c, self.column: self._standardize(e, c)} for e, c in pairs))

    def _standardize(self, episode: Episode, columns: Columns) -> Array:
        values, real, module = self._values(columns), real_transitions(episode), find_module(episode)
        assert self.statistics is not None
        if not real:
            return values.astype(np.float32)
        if module not in self.statistics:
            known = ", ".join(self.statistics) or "nothing"
            raise UsageError(f"StandardizeAdvantages: no statistics of module {module}, only of {known}")
        mean, std = (float(self.statistics[module][name]) for name in ("mean", "std"))
        scaled = (values.astype(np.float64) - mean) / max(std, _MIN_DIVISOR)
        return np.where(np.arange(len(values)) < real, scaled, values).astype(np.float32)

    def _rows(self, batch: Batch) -> Rows:
        self._check(batch)
        for episode, columns in zip(batch.episodes, batch.columns, strict=True):
            yield find_module(episode), self.column, self._values(columns)[: real_transitions(episode)]

    def _values(self, columns: Columns) -> Array:
        if self.column not in columns:
            raise UsageError(
                f"StandardizeAdvantages: there is no column {self.column}, only {', '.join(columns) or 'none'}; "
                "put GeneralAdvantageEstimation before it"
            )
        return np.asarray(columns[self.column])

    def _check(self, batch: Batch) -> None:
        check_not_batched(self, batch)
        if batch.time is not None:
            raise ValueError("StandardizeAdvantages must come before AddTimeDimToBatchAndZeroPad")
