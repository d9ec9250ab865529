"""The conformance tests of each connector."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from rlds_beam import connectors
from rlds_beam.connectors import Batch
from rlds_beam.connectors.base import Connector, EpisodeConnector
from rlds_beam.connectors.configuration import describe_connector
from rlds_beam.episodes.episode import Episode
from rlds_beam.errors import RldsBeamError
from rlds_beam.images.codecs import encode_png
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.testing import ConnectorTests, make_episode
from rlds_beam.testing.conformance import batch_content

AGENTS = {
    name: {"observation": "observation/state", "action": "action", "reward": "reward"} for name in ("left", "right")
}
COLUMNS = [connectors.AddObservationsFromEpisodesToBatch(), connectors.AddColumnsFromEpisodesToTrainBatch()]
SEQUENCES = [*COLUMNS, connectors.AddTimeDimToBatchAndZeroPad(4)]
PIXELS = encode_png(np.arange(96, dtype=np.uint8).reshape(1, 4, 8, 3))[0]
LOGITS = {"default_policy": {"action_dist_inputs": np.zeros((2, 4), np.float32), "vf_preds": np.zeros(2)}}

PIECES = {
    "AbsoluteActions": ({"action": "observation/state", "rotation": "axis_angle", "at": 0}, []),
    "ActionChunking": ({"horizon": 3, "preset": "octo"}, COLUMNS),
    "AddColumnsFromEpisodesToTrainBatch": ({}, []),
    "AddFieldsToBatch": ({"fields": ["language", "episode_metadata/task"]}, []),
    "AddIdsToBatch": ({}, []),
    "AddImportanceWeights": ({"target": "propensity"}, []),
    "AddInfosFromEpisodesToBatch": ({}, []),
    "AddModelOutputs": ({"model": "every_model:values"}, []),
    "AddNextObservationsFromEpisodesToTrainBatch": ({}, []),
    "AddObservationsFromEpisodesToBatch": ({}, []),
    "AddOneTsToEpisodesAndTruncate": ({}, []),
    "AddStatesFromEpisodesToBatch": ({"initial_state": {"h": [0.0, 0.0]}}, SEQUENCES),
    "AddTimeDimToBatchAndZeroPad": ({"max_seq_len": 4, "stride": 2, "pad": "left"}, COLUMNS),
    "AddWeightsToBatch": ({}, []),
    "AgentToModuleMapping": ({"modules": {"": "p0"}}, []),
    "BatchIndividualItems": ({}, COLUMNS),
    "BinarizeGripper": ({}, []),
    "CastFields": ({}, []),
    "ComputeReturnsToGo": ({}, []),
    "ConvertRotation": ({"field": "observation/state", "from_": "axis_angle", "to": "6d"}, []),
    "DropFields": ({"fields": ["info", "episode_metadata/task"]}, []),
    "DropIdleSteps": ({"field": "observation/state", "threshold": 1.0, "min_idle": 1, "min_moving": 2, "trim": 1}, []),
    "DropListedEpisodes": ({"file": "KEYS"}, []),
    "DropNoOpSteps": ({"threshold": 1.0}, []),
    "DropUnlabeled": ({"fields": ["language"]}, []),
    "FillLanguage": ({"text": "push"}, []),
    "FlattenObservations": ({"categories": {"room": 4}}, [connectors.DropFields(["observation/camera"])]),
    "FrameStacking": ({}, []),
    "FlipChannels": ({"fields": ["observation/camera"]}, []),
    "GeneralAdvantageEstimation": ({}, []),
    "GoalRelabeling": ({"achieved": "observation/state"}, []),
    "HistoryWindow": ({}, []),
    "InvertGripper": ({}, []),
    "AddField": ({"field": "added", "value": 1.0}, []),
    "ArrangeDimensions": ({"field": "action", "order": [0]}, []),
    "RenameFields": ({"fields": {"action": "command"}}, []),
    "ScaleDimensions": ({"field": "action", "factor": 2.0}, []),
    "JoinFields": ({"fields": ["action", "observation/state"], "to": "both"}, []),
    "KeepListedEpisodes": ({"file": "KEYS"}, []),
    "KeepRanges": ({"ranges": "RANGES", "key": "{episode_metadata/task}", "missing": "keep"}, []),
    "KeepSuccessful": ({"field": "reward"}, []),
    "MeanStdFilter": ({}, []),
    "MinimumLength": ({"transitions": 2}, []),
    "NStepReturns": ({"n": 3}, []),
    "NextStateAsAction": ({"fields": ["observation/state"]}, []),
    "Normalize": ({"fields": ["action", "observation"]}, []),
    "NumpyToTensor": ({}, COLUMNS),
    "PrevActionsPrevRewards": ({}, []),
    "RelabelLanguage": ({"table": {"go": "go on"}, "field": "language"}, []),
    "RelativeActions": ({"action": "observation/state", "to": "previous", "absolute": [2]}, []),
    "RelativeToAbsoluteGripper": ({}, []),
    "RenameDimensions": ({"field": "action", "names": {}}, []),
    "Resample": ({"fps": 20, "recorded_fps": 15, "relative": [0], "interpolate": [1]}, []),
    "ResizeImages": ({"height": 6, "width": 5, "fields": ["observation/camera", "depth"], "minimum": 1}, []),
    "RotateImages": ({"degrees": 90, "fields": ["observation/camera", "depth"]}, []),
    "SelectEpisodes": ({"function": "every_model:is_long"}, []),
    "SelfNormalizeImportanceWeights": ({}, [connectors.AddImportanceWeights("propensity")]),
    "ShiftAlignment": ({"recorded": "ars"}, []),
    "SplitAgents": ({"agents": AGENTS}, []),
    "SplitEpisodes": ({"fractions": {"train": 0.5, "val": 0.5}}, []),
    "SplitField": ({"field": "observation/state", "into": {"first": 1, "others": 2}}, []),
    "StandardizeAdvantages": ({}, [connectors.GeneralAdvantageEstimation()]),
    "SubsampleSteps": ({"every": 2}, []),
    "TransformTrajectory": ({"function": "every_model:without_first"}, []),
    "TruncateEpisodes": ({"transitions": 5}, []),
}
"""Connector -> its arguments, and the connectors before it."""

OF_OUTPUTS = {
    "GetActions": {"distribution": "diagonal_gaussian"},
    "ListifyDataForVectorEnv": {},
    "ModuleToAgentUnmapping": {},
    "NormalizeAndClipActions": {},
    "RemoveSingleTsTimeRankFromBatch": {},
    "TensorToNumpy": {},
    "UnBatchToIndividualItems": {},
}
"""Module-to-env connector -> its arguments."""


def episode(length: int, seed: int) -> Episode:
    rng = np.random.default_rng(seed)
    columns = {
        "observation/room": rng.integers(0, 4, length),
        "info/distance": rng.normal(size=length).astype(np.float32),
        "vf_preds": rng.normal(size=length).astype(np.float32),
        "propensity": rng.uniform(0.1, 1, length),
        "state_out/h": rng.normal(size=(length, 2)).astype(np.float32),
        "language": np.array([b"go"] * length, object),
        "observation/camera": EncodedImages(np.array([PIXELS] * length, object), (4, 8, 3), "uint8", "png"),
        "depth": rng.integers(0, 1000, (length, 3, 4)).astype(np.uint16),
    }
    metadata = {"episode_metadata/task": b"push"}
    return make_episode(
        length, seed=seed, observation={"state": 3}, columns=columns, metadata=metadata, terminal=seed % 2 == 0
    )


@pytest.fixture(autouse=True, scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    (folder / "every_model.py").write_text(
        "def values(columns):\n    return {'vf_preds': columns['obs/state'][:, 0]}\n\n"
        "def is_long(episode):\n    return len(episode) > 5 and bool(episode.metadata)\n\n"
        "def without_first(trajectory):\n    del trajectory['traj_metadata']\n"
        "    return {k: v if isinstance(v, dict) else v[:] for k, v in trajectory.items()}\n"
    )
    (folder / "ranges.json").write_text('{"push": [[1, 4], [5, 9]]}')
    (folder / "keys.txt").write_text("toy/1.0.0:train:00000@1\n")
    for name in ("DropListedEpisodes", "KeepListedEpisodes"):
        PIECES[name][0]["file"] = str(folder / "keys.txt")
    PIECES["KeepRanges"][0]["ranges"] = str(folder / "ranges.json")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield


def made(name: str):
    arguments = PIECES[name][0] if name in PIECES else OF_OUTPUTS[name]
    return getattr(connectors, name)(**arguments)


def test_every_connector_is_tested():
    with_ray = {"FromRllib"}  # tests/peers/rllib/test_from_rllib.py
    assert {*PIECES, *OF_OUTPUTS, *with_ray} == {*connectors.CONNECTORS}


class TestEveryConnector(ConnectorTests):
    @pytest.fixture(autouse=True, params=PIECES)
    def _choose(self, request: pytest.FixtureRequest) -> None:
        self.name = request.param

    def connectors(self) -> list[Connector]:
        return [*PIECES[self.name][1], made(self.name)]

    def episode(self, steps: int, seed: int) -> Episode:
        return episode(steps, seed)


@pytest.mark.parametrize("name", OF_OUTPUTS)
def test_model_outputs_are_not_modified(name):
    running = Batch((episode(3, 0), episode(5, 1)), running=True, modules=LOGITS)
    before = []
    if name in (
        "ListifyDataForVectorEnv",
        "ModuleToAgentUnmapping",
        "RemoveSingleTsTimeRankFromBatch",
        "NormalizeAndClipActions",
    ):
        before = [connectors.GetActions("diagonal_gaussian"), connectors.UnBatchToIndividualItems()]
    for piece in before:
        running = piece(running)
    untouched, piece = batch_content(running), made(name)
    again = pickle.loads(pickle.dumps(piece))(copy.deepcopy(running))
    assert batch_content(piece(running)) == batch_content(again)
    assert batch_content(running) == untouched
    assert describe_connector(piece)["name"] == name


class _InPlace(EpisodeConnector):
    def edit(self, episode, fields):
        episode.steps["reward"][:] = 0
        return episode


class _OnlyLong(EpisodeConnector):
    def edit(self, episode, fields):
        return episode.with_columns({"long": np.ones(len(episode))}) if len(episode) > 2 else episode


@pytest.mark.parametrize(
    ("connector", "test", "said"),
    [
        (_InPlace, "test_episodes_are_not_changed_in_place", "reward"),
        (_OnlyLong, "test_the_dry_run_predicts_the_fields_of_every_episode", "_OnlyLong did not return long"),
    ],
)
def test_the_conformance_tests_find_mistakes(connector, test, said):
    class Conformance(ConnectorTests):
        def connectors(self):
            return [connector()]

    with pytest.raises((AssertionError, RldsBeamError), match=said):
        getattr(Conformance(), test)()
