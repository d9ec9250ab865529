"""Connectors: small functions between the check and the output, which edit episodes and make a learner's columns."""

from __future__ import annotations

from rlds_beam import lazy

CONNECTORS = {
    "ActionChunking": "windows",
    "AddColumnsFromEpisodesToTrainBatch": "columns",
    "AddIdsToBatch": "columns",
    "AddInfosFromEpisodesToBatch": "columns",
    "AddNextObservationsFromEpisodesToTrainBatch": "columns",
    "AddObservationsFromEpisodesToBatch": "columns",
    "AddOneTsToEpisodesAndTruncate": "truncating",
    "AddStatesFromEpisodesToBatch": "states",
    "AddTimeDimToBatchAndZeroPad": "sequences",
    "AgentToModuleMapping": "batching",
    "BatchIndividualItems": "batching",
    "ComputeReturnsToGo": "returns",
    "FlattenObservations": "observations",
    "FrameStacking": "windows",
    "GeneralAdvantageEstimation": "returns",
    "GoalRelabelling": "editing",
    "HistoryWindow": "windows",
    "MeanStdFilter": "filtering",
    "MinimumLength": "editing",
    "NStepReturns": "returns",
    "Normalize": "normalizing",
    "NumpyToTensor": "batching",
    "PrevActionsPrevRewards": "observations",
    "ShiftAlignment": "editing",
    "SplitAgents": "agents",
    "StandardizeAdvantages": "standardizing",
    "SubsampleSteps": "editing",
    "TruncateEpisodes": "editing",
}
"""Connector -> the module of this package that defines it."""

_OTHERS = {
    "Batch": "base",
    "ColumnConnector": "base",
    "Connector": "base",
    "ConnectorPipeline": "pipeline",
    "EpisodeConnector": "base",
    "FittedConnector": "fitting",
    "StepFields": "fields",
    "connect": "base",
}

__getattr__, __dir__ = lazy.exports(
    __name__, {name: f"{__name__}.{module}" for name, module in (CONNECTORS | _OTHERS).items()}
)
