"""Connectors that change observations equal RLlib's, compared step by step if RLlib's only work that way."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import rllib_peer as peer
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.rllib.connectors import common, env_to_module, learner
from ray.rllib.connectors.learner.frame_stacking import FrameStacking
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rlds_beam import connectors as ours
from rlds_beam.episodes.columns import flatten

FEW = settings(peer.QUICK, max_examples=30)


def step_for_step(pieces: list, recorded: peer.Recorded) -> dict[str, np.ndarray]:
    """Runs pieces of an env-to-module pipeline step by step; returns the observation of each transition."""
    seen = []
    for t in range(len(recorded)):
        episode = recorded.theirs(as_numpy=False, stop=t)
        batch: dict = {}
        for piece in pieces:
            batch = piece(rl_module=None, batch=batch, episodes=[episode], shared_data={}, explore=False)
        seen.append(flatten(batch["obs"][(episode.id_,)][0] if "obs" in batch else episode.get_observations(-1), "obs"))
    return {name: np.stack([np.asarray(one[name]) for one in seen]) for name in seen[0]}


@given(peer.recordings(most=1), st.integers(1, 3), st.integers(1, 3))
@FEW
def test_previous_actions_and_rewards(episodes, actions, rewards):
    piece = env_to_module.PrevActionsPrevRewards(n_prev_actions=actions, n_prev_rewards=rewards)
    theirs = step_for_step([piece], episodes[0])
    connectors = [
        ours.PrevActionsPrevRewards(actions, rewards, num_actions=peer.ACTIONS),
        ours.AddObservationsFromEpisodesToBatch(),
        ours.BatchIndividualItems(),
    ]
    made = peer.our_batch(connectors, [episodes[0].ours()])["default_policy"]
    peer.assert_equal(made, theirs, dtypes=False)


@given(peer.recordings(most=1))
@FEW
def test_flattened(episodes):
    nested = isinstance(episodes[0].observations, dict)
    piece = env_to_module.FlattenObservations(peer.NESTED if nested else peer.OBSERVATION, peer.ACTION)
    theirs = step_for_step([piece], episodes[0])
    flattening = ours.FlattenObservations(categories={"z": 3} if nested else {})
    made = peer.our_batch([flattening, ours.BatchIndividualItems()], [episodes[0].ours()])["default_policy"]
    peer.assert_equal(made, theirs)


@given(st.lists(st.integers(1, 8), min_size=1, max_size=3), st.integers(1, 5))
@FEW
def test_stacked_frames(lengths, frames):
    rng = np.random.default_rng(lengths)
    episodes = [peer.recorded(n, number=i) for i, n in enumerate(lengths)]
    for episode in episodes:
        episode.observations = rng.integers(1, 256, (len(episode) + 1, 4, 5, 1), dtype=np.uint8)
    pieces = [
        FrameStacking(num_frames=frames, as_learner_connector=True),
        common.BatchIndividualItems(multi_agent=False),
    ]
    theirs = peer.their_batch(pieces, [_image_episode(e) for e in episodes], peer.module(peer.Stateless))
    made = peer.our_batch([ours.FrameStacking(frames), ours.BatchIndividualItems()], [e.ours() for e in episodes])
    peer.assert_equal(made["default_policy"], theirs["default_policy"])


def _image_episode(recorded: peer.Recorded) -> SingleAgentEpisode:
    episode = recorded.theirs(as_numpy=False)
    episode.observation_space = gym.spaces.Box(0, 255, recorded.observations.shape[1:], np.uint8)
    return episode.to_numpy()


@given(peer.recordings(nested=False))
@FEW
def test_infos(episodes):
    theirs, recorded = [], []
    for e in episodes:
        energy = np.arange(len(e) + 1, dtype=np.float32) + 10 * e.number
        their = e.theirs()
        for t, value in enumerate(energy):
            their.infos[t] = {"energy": value}
        theirs.append(their)
        recorded.append(e.ours().with_columns({"info/energy": energy}))
    pieces = [learner.AddInfosFromEpisodesToTrainBatch(), common.BatchIndividualItems(multi_agent=False)]
    batch: dict = {}
    for piece in pieces:
        batch = piece(rl_module=peer.module(peer.Stateless), batch=batch, episodes=theirs, shared_data={})
    made = peer.our_batch([ours.AddInfosFromEpisodesToBatch(), ours.BatchIndividualItems()], recorded)
    np.testing.assert_array_equal(
        made["default_policy"]["infos/energy"], [info["energy"] for info in batch["default_policy"]["infos"]]
    )
