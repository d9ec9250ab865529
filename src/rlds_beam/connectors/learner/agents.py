"""Splits multi-agent records into one episode per agent, and joins the columns of episodes per module."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from rlds_beam.connectors.base import Batch, Columns, EpisodeConnector, check_not_batched
from rlds_beam.connectors.cleaning.selection import slice_steps
from rlds_beam.connectors.fields import StepFields, find_agent, find_module
from rlds_beam.episodes.columns import below, concatenate
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.episodes.transitions import transitions
from rlds_beam.errors import UsageError
from rlds_beam.text import did_you_mean


@dataclasses.dataclass(frozen=True)
class SplitAgents(EpisodeConnector):
    """Splits a record into one episode per agent. RLDS has no multi-agent standard, so a mapping assigns the fields.

        agents:
          left:  {observation: observation/left, action: action/left, reward: reward/left}
          right: {observation: observation/right, action: action/right, reward: reward/right, present: present/right}

    Fields that are not named (`discount`, `timestamp`) go to every agent. Episodes are in the order of the mapping.

        step             0  1  2  3  4  5
        present/right    F  T  T  T  F  F     the agent enters late and leaves early
        its episode         0  1  2           is_first at its first step, is_last at its last one

    `present` is true at the steps whose observation belongs to the agent. An agent that leaves before the record ends
    is terminated there (its discount becomes 0), or truncated if `left_early` is `truncated`. An agent that is present
    for fewer than two steps has no transition and gets no episode.

    Attributes:
      agents: agent -> {field of a single-agent step: field of the record}; `present` is optional.
      left_early: how the episode of an agent that leaves early ends: `terminated` or `truncated`.
    """

    agents: Mapping[str, Mapping[str, str]]
    left_early: str = "terminated"

    def __post_init__(self) -> None:
        if self.left_early not in ("terminated", "truncated"):
            raise UsageError(f"SplitAgents: left_early={self.left_early}, expected terminated or truncated")

    def __call__(self, batch: Batch) -> Batch:
        if batch.running:
            raise ValueError(
                "SplitAgents needs recorded episodes: create one running episode per agent, with `agent_id` in its "
                "metadata"
            )
        return super().__call__(batch)

    def edit(self, episode: Episode, fields: StepFields) -> Sequence[Episode]:
        return [of_agent for agent in self.agents for of_agent in self._episode(episode, agent)]

    def _episode(self, episode: Episode, agent: str) -> Iterator[Episode]:
        named = dict(self.agents[agent])
        present = named.pop("present", None)
        owned = {field for names in self.agents.values() for field in names.values()}
        steps: dict[str, Column] = {
            path: column for path, column in episode.steps.items() if not any(below(path, field) for field in owned)
        }
        for name, field in named.items():
            columns = {name + path[len(field) :]: c for path, c in episode.steps.items() if below(path, field)}
            if not columns:
                raise UsageError(
                    f"SplitAgents: agent {agent}: the steps have no {field}, only {', '.join(episode.steps)}"
                )
            steps |= columns
        start, stop = 0, len(episode)
        if present is not None:
            start, stop = self._presence(episode, agent, present)
        whole = episode.replace(steps=steps, metadata={**episode.metadata, "agent_id": agent})
        part = slice_steps(whole, start, stop, terminated=self.left_early == "terminated")
        if transitions(part):
            yield part

    def _presence(self, episode: Episode, agent: str, field: str) -> tuple[int, int]:
        """The agent's first step and the one after its last."""
        if field not in episode.steps:
            raise UsageError(f"SplitAgents: agent {agent}: the steps have no {field}, only {', '.join(episode.steps)}")
        steps = np.flatnonzero(np.asarray(episode.steps[field], bool))
        if not len(steps):
            return 0, 0
        start, stop = int(steps[0]), int(steps[-1]) + 1
        if stop - start != len(steps):
            raise UsageError(f"SplitAgents: {episode.key}: agent {agent} leaves and returns, which is not supported")
        return start, stop


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
        return batch.replace(episodes=tuple(self._map_episode(episode) for episode in batch.episodes))

    def _map_episode(self, episode: Episode) -> Episode:
        agent = find_agent(episode)
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
        of.setdefault(find_module(episode), []).append(columns)
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
