"""Connectors: small functions that edit checked episodes, or compute columns for a learner, before output."""

from __future__ import annotations

from rlds_beam import lazy

CONNECTORS = {
    "AbsorbingStates": "cleaning.absorbing",
    "ActionChunking": "learner.windows",
    "AddColumnsFromEpisodesToTrainBatch": "learner.columns",
    "AddFieldsToBatch": "learner.metadata",
    "AddIdsToBatch": "learner.columns",
    "AddImportanceWeights": "statistics.importance",
    "AddInfosFromEpisodesToBatch": "learner.columns",
    "AddModelOutputs": "learner.models",
    "AddNextObservationsFromEpisodesToTrainBatch": "learner.columns",
    "AddObservationsFromEpisodesToBatch": "learner.columns",
    "AddOneTsToEpisodesAndTruncate": "learner.truncating",
    "AddStatesFromEpisodesToBatch": "learner.states",
    "AddTimeDimToBatchAndZeroPad": "learner.sequences",
    "AddWeightsToBatch": "learner.metadata",
    "AgentToModuleMapping": "learner.batching",
    "BatchIndividualItems": "learner.batching",
    "BinarizeGripper": "cleaning.grippers",
    "ComputeReturnsToGo": "learner.returns",
    "DropFields": "cleaning.dropping",
    "DropIdleSteps": "cleaning.idle",
    "DropListedEpisodes": "cleaning.listing",
    "DropNoOpSteps": "cleaning.dropping",
    "DropUnlabeled": "cleaning.dropping",
    "FlattenObservations": "learner.observations",
    "FlipChannels": "cleaning.pixels",
    "FrameStacking": "learner.windows",
    "FromRllib": "learner.rllib",
    "GeneralAdvantageEstimation": "learner.returns",
    "GetActions": "learner.actions",
    "GoalRelabeling": "cleaning.editing",
    "HistoryWindow": "learner.windows",
    "InvertGripper": "cleaning.grippers",
    "KeepListedEpisodes": "cleaning.listing",
    "KeepRanges": "cleaning.idle",
    "KeepSuccessful": "cleaning.dropping",
    "ListifyDataForVectorEnv": "learner.outputs",
    "MeanStdFilter": "learner.filtering",
    "MinimumLength": "cleaning.editing",
    "ModuleToAgentUnmapping": "learner.outputs",
    "NStepReturns": "learner.returns",
    "Normalize": "statistics.normalizing",
    "NormalizeAndClipActions": "learner.actions",
    "NumpyToTensor": "learner.batching",
    "PrevActionsPrevRewards": "learner.observations",
    "RelabelLanguage": "cleaning.language",
    "RelativeToAbsoluteGripper": "cleaning.grippers",
    "RemoveSingleTsTimeRankFromBatch": "learner.outputs",
    "ResizeImages": "cleaning.pixels",
    "RotateImages": "cleaning.pixels",
    "SelectEpisodes": "cleaning.selecting",
    "SelfNormalizeImportanceWeights": "statistics.importance",
    "ShiftAlignment": "cleaning.editing",
    "SplitAgents": "learner.agents",
    "SplitEpisodes": "cleaning.splitting",
    "StandardizeAdvantages": "statistics.standardizing",
    "SubsampleSteps": "cleaning.editing",
    "TensorToNumpy": "learner.outputs",
    "TransformTrajectory": "cleaning.trajectory_functions",
    "TruncateEpisodes": "cleaning.editing",
    "UnBatchToIndividualItems": "learner.outputs",
}
"""Connector name -> the module of this package that defines it."""

_OTHERS = {
    "Batch": "base",
    "ColumnConnector": "base",
    "connect": "base",
    "Connector": "base",
    "ConnectorPipeline": "pipeline",
    "DatasetStatistics": "statistics.dataset_statistics",
    "env_to_module_pipeline": "learner.kinds",
    "EpisodeConnector": "base",
    "FittedConnector": "fitting",
    "learner_pipeline": "learner.kinds",
    "module_to_env_pipeline": "learner.kinds",
    "StepFields": "fields",
}

__all__ = [*CONNECTORS, *_OTHERS]
__getattr__, __dir__ = lazy.exports(
    __name__, {name: f"{__name__}.{module}" for name, module in (CONNECTORS | _OTHERS).items()}
)
