"""Connectors that compute columns for two modules, with images and text; one can be made to hang at an episode."""

from __future__ import annotations

import os
import time

from rlds_beam.connectors import (
    AddColumnsFromEpisodesToTrainBatch,
    AddIdsToBatch,
    AddObservationsFromEpisodesToBatch,
    AgentToModuleMapping,
    SplitAgents,
)
from rlds_beam.connectors.base import Batch

HOLD = "COLUMNS_HOLD"
"""An environment variable: the number of the episode that never finishes."""


def hold(batch: Batch) -> Batch:
    while str(len(batch.episodes[0])) == os.environ.get(HOLD):
        time.sleep(0.1)
    return batch


CONNECTORS = [
    hold,
    SplitAgents({name: {"observation": "observation", "action": "action", "reward": "reward"} for name in "ab"}),
    AgentToModuleMapping({"a": "walker", "b": "runner-2"}),
    AddObservationsFromEpisodesToBatch(),
    AddColumnsFromEpisodesToTrainBatch(),
    AddIdsToBatch(("agent_id", "t")),
]
