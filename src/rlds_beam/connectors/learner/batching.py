"""Concatenates the columns of several episodes into one batch per module."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from rlds_beam.connectors.base import Batch, Columns, check_not_batched
from rlds_beam.connectors.fields import agent_of, module_of
from rlds_beam.episodes.columns import concatenate
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.errors import UsageError
from rlds_beam.text import did_you_mean


@dataclasses.dataclass(frozen=True)
class AgentToModuleMapping:
    """Assigns a module to each agent's episode (see `SplitAgents`).

        modules={left: p0, right: p0, arm: p1}      metadata   agent_id left    ->   agent_id left, module_id p0

    Attributes:
      modules: agent -> module; an unknown agent raises UsageError.
    """

    modules: Mapping[str, str]

    def __call__(self, batch: Batch) -> Batch:
        check_not_batched(self, batch)
        return batch.replace(episodes=tuple(self._mapped(episode) for episode in batch.episodes))

    def _mapped(self, episode: Episode) -> Episode:
        agent = agent_of(episode)
        if agent not in self.modules:
            near = did_you_mean(agent, self.modules)
            raise UsageError(
                f"AgentToModuleMapping: no module for agent {agent!r}, only for {', '.join(self.modules)}{near}"
            )
        return episode.replace(metadata={**episode.metadata, "module_id": self.modules[agent]})


class BatchIndividualItems:
    """Concatenates the columns of all episodes of each module into `Batch.modules`.

        episode 1: obs (5, 3)  }
        episode 2: obs (3, 3)  }  ->  {"default_policy": {"obs": (8, 3)}}

    Modules are sorted by name, and episodes keep their order, so the result is the same in every run.
    """

    def __call__(self, batch: Batch) -> Batch:
        check_not_batched(self, batch)
        return batch.replace(modules=by_module(batch))


def by_module(batch: Batch) -> Mapping[str, Columns]:
    """Concatenates the columns of all episodes of each module.

    Raises:
      UsageError: two episodes of a module have different columns.
    """
    if batch.modules is not None:
        return batch.modules
    of: dict[str, list[Columns]] = {}
    for episode, columns in zip(batch.episodes, batch.columns, strict=True):
        of.setdefault(module_of(episode), []).append(columns)
    return {module: _concatenate(module, of[module]) for module in sorted(of)}


def _concatenate(module: str, parts: list[Columns]) -> Columns:
    first = parts[0]
    if len(parts) == 1:
        return dict(first)
    for part in parts:
        if part.keys() != first.keys():
            name = min(part.keys() ^ first.keys())
            raise UsageError(f"module {module}: only some of its episodes have the column {name}")
    return {name: concatenate([part[name] for part in parts]) for name in first}


class NumpyToTensor:
    """Casts float64 columns to float32, as RLlib does when it creates tensors. Other dtypes are kept.

    rewards float64 (T,)   ->   float32 (T,)
    actions int64 (T,)     ->   int64 (T,)
    """

    def __call__(self, batch: Batch) -> Batch:
        modules = None if batch.modules is None else {module: _narrow(c) for module, c in batch.modules.items()}
        return batch.replace(columns=tuple(map(_narrow, batch.columns)), modules=modules)


def _narrow(columns: Columns) -> Columns:
    return {name: _float32(column) for name, column in columns.items()}


def _float32(column: Column) -> Column:
    return column.astype(np.float32) if isinstance(column, np.ndarray) and column.dtype == np.float64 else column
