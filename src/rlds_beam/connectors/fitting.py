"""Connectors that first have to see the whole dataset: a normalisation by the data's own mean, for example."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, Protocol

from rlds_beam.connectors.base import Batch, Connector, name_of
from rlds_beam.user_functions import configurable

if TYPE_CHECKING:
    from typing_extensions import Self  # of typing from Python 3.11 on


class Accumulator(Protocol):
    """What is gathered about a dataset: batch by batch in many workers, then merged. It pickles."""

    def add(self, batch: Batch) -> None:
        """Takes in the batch of one record, as the connectors before made it."""

    def merge(self, *others: Self) -> Self:
        """The sum; neither order nor grouping makes a difference."""

    def finish(self) -> Any:
        """What `FittedConnector.fit` needs, as JSON."""


@configurable
class FittedConnector(abc.ABC):
    """A connector that is fitted to the dataset before it runs.

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

    `convert` and `push` read the dataset once more for each connector that is not fitted yet, through the connectors
    that come before it.
    """

    @property
    @abc.abstractmethod
    def fitted(self) -> bool:
        """Whether it can run: it was fitted, or made with what it needs."""

    @abc.abstractmethod
    def accumulator(self) -> Accumulator:
        """An empty accumulator."""

    @abc.abstractmethod
    def fit(self, result: Any) -> Connector:
        """The connector, fitted.

        Args:
          result: `Accumulator.finish` of the whole dataset.
        """

    @abc.abstractmethod
    def transform(self, batch: Batch) -> Batch:
        """What the connector does, once it is fitted."""

    def __call__(self, batch: Batch) -> Batch:
        if not self.fitted:
            raise ValueError(f"{name_of(self)} has to be fitted to the dataset first")
        return self.transform(batch)
