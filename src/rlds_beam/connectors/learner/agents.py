"""Splits records into one episode per agent, joins their columns per module; RLlib's three kinds of pipelines.

The pipelines have RLlib's default connectors:

    learner         recorded episodes  ->  a training batch per module       `Batch.modules`
    env_to_module   running episodes   ->  the inputs of each model          `Batch.modules`
    module_to_env   model outputs      ->  the inputs of the environments    `Batch.vector`

The last two run before and after a model:

    batch = env_to_module_pipeline()(Batch(running, running=True))
    outputs = {module: model(columns) for module, columns in batch.modules.items()}
    batch = module_to_env_pipeline(GetActions("categorical"))(batch.replace(modules=outputs))
    environment.step(batch.vector["actions"])

A running episode is an `Episode` whose last step holds the latest observation. Its action, reward, and so on are void,
as in RLDS's last step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlds_beam.connectors.base import (
    Batch,
    Columns,
    Connector,
    ConnectorPipeline,
    EpisodeConnector,
    by_module,
    check_order,
    find_agent,
)
from rlds_beam.connectors.cleaning.selection import slice_steps
from rlds_beam.connectors.fields import StepFields, check_choices, match_fields
from rlds_beam.connectors.learner.actions import (
    GetActions,
    ListifyDataForVectorEnv,
    ModuleToAgentUnmapping,
    NormalizeAndClipActions,
    RemoveSingleTsTimeRankFromBatch,
    TensorToNumpy,
    UnBatchToIndividualItems,
)
from rlds_beam.connectors.learner.columns import AddColumnsFromEpisodesToTrainBatch, AddObservationsFromEpisodesToBatch
from rlds_beam.connectors.learner.sequences import AddStatesFromEpisodesToBatch, AddTimeDimToBatchAndZeroPad
from rlds_beam.episodes.columns import below, transitions
from rlds_beam.episodes.episode import Column, Episode
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
        check_choices(self, left_early=("terminated", "truncated"))

    def __call__(self, batch: Batch) -> Batch:
        if batch.running:
            raise ValueError("SplitAgents needs recorded episodes: give running ones an `agent_id` in their metadata")
        return super().__call__(batch)

    def edit(self, episode: Episode, fields: StepFields) -> Sequence[Episode]:
        owned = {field for names in self.agents.values() for field in names.values()}
        shared = {path: c for path, c in episode.steps.items() if not any(below(path, field) for field in owned)}
        parts = []
        for agent, names in self.agents.items():
            steps: dict[str, Column] = dict(shared)
            for name, field in names.items():
                paths = match_fields(episode.steps, field, f"SplitAgents: agent {agent}")
                if name != "present":
                    steps |= {name + path[len(field) :]: episode.steps[path] for path in paths}
            start, stop = 0, len(episode)
            if "present" in names:
                present = np.flatnonzero(np.asarray(episode.steps[names["present"]], bool))
                start, stop = (int(present[0]), int(present[-1]) + 1) if len(present) else (0, 0)
                if stop - start != len(present):
                    raise UsageError(
                        f"SplitAgents: {episode.key}: agent {agent} leaves and returns, which is not supported"
                    )
            whole = episode.replace(steps=steps, metadata={**episode.metadata, "agent_id": agent})
            part = slice_steps(whole, start, stop, terminated=self.left_early == "terminated")
            if transitions(part):
                parts.append(part)
        return parts


@dataclasses.dataclass(frozen=True)
class AgentToModuleMapping:
    """Assigns a module to each agent's episode (see `SplitAgents`).

        modules={left: p0, right: p0, arm: p1}      metadata   agent_id left    ->   agent_id left, module_id p0

    Attributes:
      modules: agent -> module; an unknown agent raises UsageError.
    """

    modules: Mapping[str, str]

    def __call__(self, batch: Batch) -> Batch:
        check_order(self, batch)
        episodes = []
        for episode in batch.episodes:
            agent = find_agent(episode)
            if agent not in self.modules:
                near = did_you_mean(agent, self.modules, otherwise=f"only for {', '.join(self.modules)}")
                raise UsageError(f"AgentToModuleMapping: no module for agent {agent!r}{near}")
            episodes.append(episode.replace(metadata={**episode.metadata, "module_id": self.modules[agent]}))
        return batch.replace(episodes=tuple(episodes))


class BatchIndividualItems:
    """Concatenates the columns of all episodes of each module into `Batch.modules`.

        episode 1: obs (5, 3)  }
        episode 2: obs (3, 3)  }  ->  {"default_policy": {"obs": (8, 3)}}

    Modules are sorted by name, and episodes keep their order, so the result is the same in every run.
    """

    def __call__(self, batch: Batch) -> Batch:
        check_order(self, batch)
        return batch.replace(modules=by_module(batch))


class NumpyToTensor:
    """Casts float64 columns to float32, as RLlib does when it creates tensors. Other dtypes are kept.

    rewards float64 (T,)   ->   float32 (T,)
    actions int64 (T,)     ->   int64 (T,)
    """

    def __call__(self, batch: Batch) -> Batch:
        modules = None if batch.modules is None else {module: _narrow(c) for module, c in batch.modules.items()}
        return batch.replace(columns=tuple(map(_narrow, batch.columns)), modules=modules)


def _narrow(columns: Columns) -> Columns:
    wide = {n: c for n, c in columns.items() if isinstance(c, np.ndarray) and c.dtype == np.float64}
    return {**columns, **{name: column.astype(np.float32) for name, column in wide.items()}}


def learner_pipeline(
    *,
    modules: Mapping[str, str] | None = None,
    max_seq_len: int | None = None,
    recurrent: Sequence[str] | None = None,
    initial_state: Any = None,
) -> ConnectorPipeline:
    """Returns a pipeline from recorded episodes to training batches.

    Args:
      modules: agent -> module, if there are several agents.
      max_seq_len: the sequence length, for recurrent models.
      recurrent: the recurrent modules; by default all, if `max_seq_len` is given.
      initial_state: the state at the start of an episode, for recurrent models; by default zeros.
    """
    return _pipeline(modules, max_seq_len, recurrent, initial_state, AddColumnsFromEpisodesToTrainBatch())


def env_to_module_pipeline(
    *,
    modules: Mapping[str, str] | None = None,
    recurrent: bool | Sequence[str] = False,
    initial_state: Any = None,
) -> ConnectorPipeline:
    """Returns a pipeline from running episodes to model inputs: `obs` (N, ...), plus `state_in` for recurrent models.

    Args:
      modules: agent -> module, if there are several agents.
      recurrent: the modules whose rows get a time axis of length 1; or True for all.
      initial_state: the state at the start of an episode, for recurrent models.
    """
    only = None if isinstance(recurrent, bool) else recurrent
    return _pipeline(modules, 1 if recurrent else None, only, initial_state)


def module_to_env_pipeline(
    get_actions: GetActions | None = None,
    for_env: NormalizeAndClipActions | None = None,
    *,
    several_agents: bool = False,
) -> ConnectorPipeline:
    """Returns a pipeline from model outputs to environment inputs.

    Args:
      get_actions: how to compute actions from `action_dist_inputs`.
      for_env: scales or clips actions to their bounds; without it there is no `actions_for_env`.
      several_agents: whether the environments expect a dict of actions by agent.
    """
    return ConnectorPipeline(
        [
            get_actions or GetActions(),
            TensorToNumpy(),
            UnBatchToIndividualItems(),
            *([ModuleToAgentUnmapping()] if several_agents else []),
            RemoveSingleTsTimeRankFromBatch(),
            *([for_env] if for_env else []),
            ListifyDataForVectorEnv(),
        ]
    )


def _pipeline(
    modules: Mapping[str, str] | None,
    max_seq_len: int | None,
    only: Sequence[str] | None,
    initial_state: Any,
    *more: Connector,
) -> ConnectorPipeline:
    recurrent: list[Connector] = [
        AddTimeDimToBatchAndZeroPad(max_seq_len or 1, modules=only),
        AddStatesFromEpisodesToBatch(initial_state),
    ]
    return ConnectorPipeline(
        [
            *([AgentToModuleMapping(modules)] if modules else []),
            AddObservationsFromEpisodesToBatch(),
            *more,
            *(recurrent if max_seq_len else []),
            BatchIndividualItems(),
            NumpyToTensor(),
        ]
    )
