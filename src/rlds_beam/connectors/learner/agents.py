"""Splits multi-agent records into one episode per agent."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from rlds_beam.connectors.base import Batch, EpisodeConnector
from rlds_beam.connectors.cleaning.keeping_steps import slice_steps
from rlds_beam.connectors.fields import StepFields
from rlds_beam.episodes.columns import below
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.errors import UsageError


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
        if stop - start < 2:
            return
        whole = episode.replace(steps=steps, metadata={**episode.metadata, "agent_id": agent})
        yield slice_steps(whole, start, stop, terminated=self.left_early == "terminated")

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
