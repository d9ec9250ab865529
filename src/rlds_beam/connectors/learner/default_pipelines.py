"""RLlib's three kinds of connector pipelines, with its default connectors.

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

from collections.abc import Mapping, Sequence
from typing import Any

from rlds_beam.connectors.base import Connector, ConnectorPipeline
from rlds_beam.connectors.learner.actions import (
    GetActions,
    ListifyDataForVectorEnv,
    ModuleToAgentUnmapping,
    NormalizeAndClipActions,
    RemoveSingleTsTimeRankFromBatch,
    TensorToNumpy,
    UnBatchToIndividualItems,
)
from rlds_beam.connectors.learner.agents import AgentToModuleMapping, BatchIndividualItems, NumpyToTensor
from rlds_beam.connectors.learner.columns import AddColumnsFromEpisodesToTrainBatch, AddObservationsFromEpisodesToBatch
from rlds_beam.connectors.learner.sequences import AddStatesFromEpisodesToBatch, AddTimeDimToBatchAndZeroPad


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
