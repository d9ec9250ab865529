"""Connectors written for RLlib run in our pipelines with the same result as in RLlib."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import rllib_peer as peer
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.rllib.connectors import common, env_to_module, learner
from ray.rllib.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from ray.rllib.connectors.connector_v2 import ConnectorV2

from rlds_beam import connectors as ours
from rlds_beam.connectors.configuration import parse
from rlds_beam.connectors.learner.rllib import FromRllib
from rlds_beam.episodes.episode import Episode

FEW = settings(peer.QUICK, max_examples=25)
LEARNER = {"as_learner_connector": True}


class ClipRewards(ConnectorV2):
    """A user's connector that changes the rewards of each episode."""

    def __init__(self, limit: float = 1.0, **kwargs: Any):
        super().__init__(**kwargs)
        self._limit = limit

    def __call__(self, *, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            clipped = np.clip(episode.get_rewards(), -self._limit, self._limit)
            episode.set_rewards(new_data=clipped, at_indices=list(range(len(episode))))
        return batch


class DoubleObservations(ConnectorV2):
    """A user's env-to-module connector that changes the last observation of each episode."""

    def __call__(self, *, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes):
            episode.set_observations(new_data=episode.get_observations(-1) * 2, at_indices=-1)
        return batch


class DropLosers(ConnectorV2):
    """A user's connector that removes episodes."""

    def __call__(self, *, batch, episodes, **kwargs):
        episodes[:] = [episode for episode in episodes if episode.get_return() > 0]
        return batch


class AddRewardSquared(ConnectorV2):
    """A user's connector that computes a column from existing ones."""

    def __call__(self, *, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            self.add_n_batch_items(batch, "squared", episode.get_rewards() ** 2, len(episode), episode)
        return batch


def made_by(connectors: list, episodes: list[peer.Recorded]) -> dict[str, np.ndarray]:
    return peer.our_batch([*connectors, ours.BatchIndividualItems()], [e.ours() for e in episodes])["default_policy"]


@given(peer.recordings(nested=False), st.integers(1, 5))
@FEW
def test_rllibs_own_piece_by_piece(episodes, max_seq_len):
    """Wrapping each piece separately gives the same result as RLlib's whole pipeline."""
    pieces: list[tuple[Any, dict]] = [
        (common.AddObservationsFromEpisodesToBatch, LEARNER),
        (learner.AddNextObservationsFromEpisodesToTrainBatch, {}),
        (learner.AddColumnsFromEpisodesToTrainBatch, {}),
        (common.AddTimeDimToBatchAndZeroPad, LEARNER),
        (common.AddStatesFromEpisodesToBatch, LEARNER),
    ]
    whole = [piece(**arguments) for piece, arguments in pieces]
    theirs = peer.their_batch(
        [*whole, common.BatchIndividualItems(multi_agent=False)],
        [e.theirs() for e in episodes],
        peer.module(peer.Recurrent, max_seq_len),
    )["default_policy"]
    stateful = {"max_seq_len": max_seq_len, "initial_state": peer.INITIAL_STATE}
    single = [FromRllib(piece, arguments, **stateful) for piece, arguments in pieces]
    peer.assert_equal(made_by(single, episodes), theirs)
    mixed = [single[0], ours.AddNextObservationsFromEpisodesToTrainBatch(), single[2], single[3]]
    mixed += [ours.AddStatesFromEpisodesToBatch(initial_state=peer.INITIAL_STATE)]
    peer.assert_equal(made_by(mixed, episodes), theirs)


def default_pipeline(max_seq_len: int) -> ConnectorPipelineV2:
    """A whole learner pipeline, which returns tensors by module."""
    return ConnectorPipelineV2(
        connectors=[
            learner.AddOneTsToEpisodesAndTruncate(),
            common.AddObservationsFromEpisodesToBatch(as_learner_connector=True),
            learner.AddColumnsFromEpisodesToTrainBatch(),
            common.AddTimeDimToBatchAndZeroPad(as_learner_connector=True),
            common.AddStatesFromEpisodesToBatch(as_learner_connector=True),
            common.BatchIndividualItems(multi_agent=False),
            common.NumpyToTensor(as_learner_connector=True),
            learner.GeneralAdvantageEstimation(gamma=0.9, lambda_=0.5),
        ]
    )


def recurrent_module() -> Any:
    return peer.module(peer.Recurrent, 4)


@given(peer.recordings(nested=False))
@FEW
def test_a_whole_pipeline_with_a_module(episodes):
    pipeline = default_pipeline(4)
    theirs = peer.their_batch([pipeline], [e.theirs() for e in episodes], recurrent_module())["default_policy"]
    connector = FromRllib(default_pipeline, {"max_seq_len": 4}, rl_module=recurrent_module)
    made = peer.our_batch([connector], [e.ours() for e in episodes])["default_policy"]
    peer.assert_equal(made, theirs)


def test_a_users_edit_of_rewards():
    episodes = [peer.recorded(n, number=i) for i, n in enumerate((5, 3))]
    before = [e.ours() for e in episodes]
    batch = ours.connect([FromRllib(ClipRewards, {"limit": 2.0})], before)
    for old, new in zip(before, batch.episodes, strict=True):
        wanted = np.append(np.clip(old.steps["reward"][:-1], -2, 2), old.steps["reward"][-1])
        np.testing.assert_array_equal(new.steps["reward"], wanted)
        for path in old.steps.keys() - {"reward"}:
            np.testing.assert_array_equal(new.steps[path], old.steps[path])
            assert new.steps[path].dtype == old.steps[path].dtype
        assert new.key == old.key


def test_a_connector_that_changes_nothing_returns_the_same_episode_objects():
    episodes = [peer.recorded(4, nested=True).ours({"file": b"a"})]
    batch = ours.connect([FromRllib(AddRewardSquared)], episodes)
    assert batch.episodes[0] is episodes[0]
    np.testing.assert_array_equal(batch.columns[0]["squared"], episodes[0].steps["reward"][:-1] ** 2)


def test_episodes_that_are_removed_are_dropped_by_name():
    lost, won = peer.recorded(3), peer.recorded(3, number=1)
    lost.rewards, won.rewards = np.full(3, -1.0), np.full(3, 1.0)
    batch = ours.connect([FromRllib(DropLosers)], [lost.ours(), won.ours()])
    assert [episode.key for episode in batch.episodes] == [won.ours().key]
    assert batch.dropped == {"DropLosers": 1}


@given(peer.recordings(nested=False, most=2))
@FEW
def test_an_env_to_module_connector_changes_every_observation(episodes):
    batch = ours.connect([FromRllib(DoubleObservations, kind="env_to_module")], [e.ours() for e in episodes])
    for old, new in zip(episodes, batch.episodes, strict=True):
        np.testing.assert_array_equal(new.steps["observation"], old.observations * 2)
        for path, column in old.ours().steps.items():
            assert path == "observation" or np.array_equal(new.steps[path], column)


@given(peer.recordings(most=1), st.integers(1, 3))
@FEW
def test_rllibs_previous_actions(episodes, count):
    """These replace the observation by one with other fields."""
    arguments = {"n_prev_actions": count, "n_prev_rewards": count}
    spaces = {"action_space": peer.ACTION}
    connector = FromRllib(env_to_module.PrevActionsPrevRewards, arguments, kind="env_to_module", **spaces)
    adds = [ours.AddObservationsFromEpisodesToBatch()]
    made = made_by([connector, *adds], episodes)
    own = ours.PrevActionsPrevRewards(count, count, num_actions=peer.ACTIONS)
    peer.assert_equal(made, made_by([own, *adds], episodes), dtypes=False)


def test_agents_keep_their_modules():
    episodes = [
        peer.recorded(n, number=i).ours({"agent_id": f"a{i}", "module_id": f"m{i}"}) for i, n in enumerate((3, 2))
    ]
    connectors = [
        FromRllib(common.AddObservationsFromEpisodesToBatch, LEARNER),
        FromRllib(learner.AddColumnsFromEpisodesToTrainBatch),
        ours.BatchIndividualItems(),
    ]
    own = [ours.AddObservationsFromEpisodesToBatch(), ours.AddColumnsFromEpisodesToTrainBatch(), connectors[2]]
    made, wanted = peer.our_batch(connectors, episodes), peer.our_batch(own, episodes)
    assert made.keys() == wanted.keys() == {"m0", "m1"}
    for name in wanted:
        peer.assert_equal(made[name], wanted[name])


def test_from_a_file_and_to_other_processes(tmp_path, monkeypatch):
    (tmp_path / "my_pieces.py").write_text(
        "from ray.rllib.connectors.connector_v2 import ConnectorV2\n"
        "class Negate(ConnectorV2):\n"
        "    def __call__(self, *, batch, episodes, **kwargs):\n"
        "        for e in episodes:\n"
        "            e.set_rewards(new_data=-e.get_rewards(), at_indices=list(range(len(e))))\n"
        "        return batch\n"
    )
    monkeypatch.chdir(tmp_path)
    configuration = parse([{"FromRllib": {"connector": "my_pieces:Negate"}}], "test")
    connectors = pickle.loads(pickle.dumps(configuration)).connectors
    episode: Episode = peer.recorded(3).ours()
    (edited,) = ours.connect(connectors, [episode]).episodes
    np.testing.assert_array_equal(edited.steps["reward"][:-1], -episode.steps["reward"][:-1])
