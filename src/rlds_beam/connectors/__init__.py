"""Connectors: small functions between the check and the output, which edit episodes and make a learner's columns."""

from __future__ import annotations

from rlds_beam import lazy

CONNECTORS = {
    "AbsorbingStates": "absorbing",
    "ActionChunking": "windows",
    "AddColumnsFromEpisodesToTrainBatch": "columns",
    "AddFieldsToBatch": "metadata",
    "AddIdsToBatch": "columns",
    "AddImportanceWeights": "importance",
    "AddInfosFromEpisodesToBatch": "columns",
    "AddModelOutputs": "models",
    "AddNextObservationsFromEpisodesToTrainBatch": "columns",
    "AddObservationsFromEpisodesToBatch": "columns",
    "AddOneTsToEpisodesAndTruncate": "truncating",
    "AddStatesFromEpisodesToBatch": "states",
    "AddTimeDimToBatchAndZeroPad": "sequences",
    "AddWeightsToBatch": "metadata",
    "AgentToModuleMapping": "batching",
    "BatchIndividualItems": "batching",
    "BinarizeGripper": "grippers",
    "ComputeReturnsToGo": "returns",
    "DropFields": "cleaning",
    "DropIdleSteps": "idle",
    "DropNoOpSteps": "cleaning",
    "DropUnlabelled": "cleaning",
    "FlattenObservations": "observations",
    "FlipChannels": "pixels",
    "FrameStacking": "windows",
    "FromRllib": "rllib",
    "GeneralAdvantageEstimation": "returns",
    "GetActions": "actions",
    "GoalRelabelling": "editing",
    "HistoryWindow": "windows",
    "InvertGripper": "grippers",
    "KeepRanges": "idle",
    "KeepSuccessful": "cleaning",
    "ListifyDataForVectorEnv": "outputs",
    "MeanStdFilter": "filtering",
    "MinimumLength": "editing",
    "ModuleToAgentUnmapping": "outputs",
    "NStepReturns": "returns",
    "Normalize": "normalizing",
    "NormalizeAndClipActions": "actions",
    "NumpyToTensor": "batching",
    "PrevActionsPrevRewards": "observations",
    "RelabelLanguage": "language",
    "RelativeToAbsoluteGripper": "grippers",
    "RemoveSingleTsTimeRankFromBatch": "outputs",
    "ResizeImages": "pixels",
    "SelectEpisodes": "selecting",
    "SelfNormalizeImportanceWeights": "importance",
    "ShiftAlignment": "editing",
    "SplitAgents": "agents",
    "SplitEpisodes": "splitting",
    "StandardizeAdvantages": "standardizing",
    "SubsampleSteps": "editing",
    "TensorToNumpy": "outputs",
    "TransformTrajectory": "trajectory_functions",
    "TruncateEpisodes": "editing",
    "UnBatchToIndividualItems": "outputs",
}
"""Connector -> the module of this package that defines it."""

_OTHERS = {
    "Batch": "base",
    "ColumnConnector": "base",
    "connect": "base",
    "Connector": "base",
    "ConnectorPipeline": "pipeline",
    "DatasetStatistics": "dataset_statistics",
    "env_to_module_pipeline": "kinds",
    "EpisodeConnector": "base",
    "FittedConnector": "fitting",
    "learner_pipeline": "kinds",
    "module_to_env_pipeline": "kinds",
    "StepFields": "fields",
}

__all__ = [*CONNECTORS, *_OTHERS]
__getattr__, __dir__ = lazy.exports(
    __name__, {name: f"{__name__}.{module}" for name, module in (CONNECTORS | _OTHERS).items()}
)
