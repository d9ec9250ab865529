"""Connectors as a user writes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from rlds_beam.connectors import EpisodeConnector
from rlds_beam.connectors.base import Batch, FittedConnector


@dataclasses.dataclass(frozen=True)
class ClipReward(EpisodeConnector):
    limit: float = 0.1

    def edit(self, episode, fields):
        return episode.with_columns({"reward": episode.steps["reward"].clip(-self.limit, self.limit)})


class Sum:
    """The sum and number of rewards."""

    def __init__(self, total: float = 0.0, count: int = 0):
        self.total, self.count = total, count

    def add(self, batch: Batch) -> None:
        for episode in batch.episodes:
            self.total += float(episode.steps["reward"].sum(dtype=np.float64))
            self.count += len(episode)

    def merge(self, *others: Sum) -> Sum:
        return Sum(sum((o.total for o in others), self.total), sum((o.count for o in others), self.count))

    def finish(self) -> Mapping[str, float]:
        return {"mean": self.total / self.count if self.count else 0.0}


@dataclasses.dataclass(frozen=True)
class SubtractMeanReward(FittedConnector):
    mean: float | None = None

    @property
    def fitted(self) -> bool:
        return self.mean is not None

    def accumulator(self) -> Sum:
        return Sum()

    def fit(self, result: Any) -> SubtractMeanReward:
        return SubtractMeanReward(result["mean"])

    def transform(self, batch: Batch) -> Batch:
        episodes = (e.with_columns({"reward": (e.steps["reward"] - self.mean).astype("f4")}) for e in batch.episodes)
        return batch.replace(episodes=tuple(episodes))


def broken(batch: Batch) -> Batch:
    if any(len(episode) == 12 for episode in batch.episodes):
        raise KeyError("no such thing")
    return batch


def changing(batch: Batch) -> Batch:
    wide = (e.with_columns({"reward": e.steps["reward"].astype("f8")}) if len(e) == 12 else e for e in batch.episodes)
    return batch.replace(episodes=tuple(wide))
