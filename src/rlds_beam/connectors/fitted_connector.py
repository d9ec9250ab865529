"""Connectors that first read the whole dataset, for example to normalize by its mean."""

from __future__ import annotations

import abc
from typing import Any, Protocol, Self

from rlds_beam.connectors.base import Batch, Connector, short_name
from rlds_beam.user_functions import configurable


class Accumulator(Protocol):
    """Statistics of a dataset, gathered batch by batch in many workers and then merged. Picklable."""

    def add(self, batch: Batch) -> None:
        """Adds the batch of one record, as the previous connectors returned it."""

    def merge(self, *others: Self) -> Self:
        """Returns the sum; order and grouping do not matter."""

    def finish(self) -> Any:
        """Returns the result for `FittedConnector.fit`, as JSON."""


@configurable
class FittedConnector(abc.ABC):
    """A connector that is fitted to the whole dataset before it runs.

        class SubtractMeanReward(FittedConnector):
            def __init__(self, mean=None):
                self.mean = mean

            @property
            def fitted(self):
                return self.mean is not None

            def accumulator(self):
                return MeanReward()

            def fit(self, result):
                return SubtractMeanReward(result["mean"])

    For each connector that is not fitted, `convert` and `push` read the dataset once more, running the connectors
    before it.
    """

    @property
    @abc.abstractmethod
    def fitted(self) -> bool:
        """Whether the connector is ready to run: fitted, or constructed with its statistics."""

    @abc.abstractmethod
    def accumulator(self) -> Accumulator:
        """Returns an empty accumulator."""

    @abc.abstractmethod
    def fit(self, result: Any) -> Connector:
        """Returns the fitted connector.

        Args:
          result: `Accumulator.finish()` of the whole dataset.
        """

    @abc.abstractmethod
    def transform(self, batch: Batch) -> Batch:
        """Runs the fitted connector on a batch."""

    def __call__(self, batch: Batch) -> Batch:
        if not self.fitted:
            raise ValueError(f"{short_name(self)} must be fitted to the dataset first")
        return self.transform(batch)
