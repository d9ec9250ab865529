"""Cases where RLlib 2.60 is wrong or undefined: docs/how_to/connectors.md, "Where they differ from RLlib".

If the RLlib side of a test fails with a newer RLlib, remove the line from that page.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import rllib_peer as peer
from ray.rllib.connectors import common, env_to_module, learner
from ray.rllib.connectors.learner.frame_stacking import FrameStacking

from rlds_beam import connectors as ours

SEQUENCES = [
    common.AddObservationsFromEpisodesToBatch(as_learner_connector=True),
    learner.AddColumnsFromEpisodesToTrainBatch(),
    common.AddTimeDimToBatchAndZeroPad(as_learner_connector=True),
    common.AddStatesFromEpisodesToBatch(as_learner_connector=True),
    common.BatchIndividualItems(multi_agent=False),
]


def our_sequences(length: int, *first: Any) -> list:
    return [
        *first,
        ours.AddObservationsFromEpisodesToBatch(),
        ours.AddColumnsFromEpisodesToTrainBatch(),
        ours.AddTimeDimToBatchAndZeroPad(length),
        ours.AddStatesFromEpisodesToBatch(),
        ours.BatchIndividualItems(),
    ]


def test_two_parts_of_an_episode_are_two_episodes():
    """RLlib merges their observations into one episode if an id has a `_`, with more `seq_lens` than rows."""
    parts = [peer.recorded(3, end="unfinished"), peer.recorded(4, number=1)]
    same_id = [part.theirs(id_="ep_1") for part in parts]
    theirs = peer.their_batch(SEQUENCES, same_id, peer.module(peer.Recurrent, 4))["default_policy"]
    assert (len(theirs["obs"]), len(theirs["seq_lens"])) == (2, 2)  # 3 + 4 transitions as one run of 7
    np.testing.assert_array_equal(theirs["obs"][0, 3], parts[1].observations[0])  # in the row of the first part
    assert not theirs["loss_mask"][0, 3]  # the mask says that nothing is there
    parts = [peer.recorded(3, end="unfinished"), peer.recorded(2, end="unfinished", number=1), peer.recorded(3)]
    theirs = peer.their_batch(SEQUENCES, [p.theirs(id_="ep_1") for p in parts], peer.module(peer.Recurrent, 4))
    assert len(theirs["default_policy"]["obs"]) == 2
    assert len(theirs["default_policy"]["seq_lens"]) == len(theirs["default_policy"]["state_in/h"]) == 3
    key = parts[0].ours().key
    made = peer.our_batch(our_sequences(4), [part.ours().replace(key=key) for part in parts])["default_policy"]
    assert {len(column) for column in made.values()} == {3}
    np.testing.assert_array_equal(made["seq_lens"], [3, 2, 3])


def test_observations_are_flattened_in_a_learner_pipeline():
    """RLlib uses only the first observation, spread over the rows, or raises an error."""
    piece = env_to_module.FlattenObservations(peer.OBSERVATION, peer.ACTION, as_learner_connector=True)

    def flattened(length: int) -> Any:
        episode = peer.recorded(length).theirs(as_numpy=False)
        batch = piece(rl_module=None, batch={}, episodes=[episode], shared_data={})
        return np.asarray(batch["obs"][(episode.id_,)][0])

    assert flattened(1).shape == (1, 3)
    with pytest.raises(ValueError, match="reshape"):
        flattened(2)
    three = peer.recorded(3)
    np.testing.assert_array_equal(flattened(3)[:, 0], three.observations[0])  # its three values as three rows
    made = peer.our_batch([ours.FlattenObservations(), ours.BatchIndividualItems()], [three.ours()])
    np.testing.assert_array_equal(made["default_policy"]["obs"], three.observations[:3])


def test_the_shape_of_previous_actions():
    """RLlib declares (n * actions,) but returns (n, actions)."""
    piece = env_to_module.PrevActionsPrevRewards(n_prev_actions=2)
    declared = piece.recompute_output_observation_space(peer.OBSERVATION, peer.ACTION)["prev_n_actions"]
    episode = peer.recorded(3).theirs(as_numpy=False)
    piece(rl_module=None, batch={}, episodes=[episode], shared_data={})
    assert declared.shape == (2 * peer.ACTIONS,)
    assert episode.get_observations(-1)["prev_n_actions"].shape == (2, peer.ACTIONS)


@pytest.mark.parametrize("piece", [FrameStacking, env_to_module.PrevActionsPrevRewards])
def test_spaces_as_arguments(piece):
    """RLlib raises an AttributeError."""
    with pytest.raises(AttributeError, match="_multi_agent"):
        piece(peer.OBSERVATION, peer.ACTION)


def test_an_episode_without_transitions_gives_no_row():
    """RLlib raises an error if the module has state; which one depends on how the episode is stored."""
    whole, empty = peer.recorded(3), peer.recorded(0, number=1, end="unfinished")
    with pytest.raises((IndexError, ValueError)):
        peer.their_batch(SEQUENCES, [whole.theirs(), empty.theirs(as_numpy=False)], peer.module(peer.Recurrent, 4))
    made = peer.our_batch(our_sequences(4), [whole.ours(), empty.ours()])["default_policy"]
    assert {len(column) for column in made.values()} == {1}


def test_seq_lens_count_only_rows_to_learn_from():
    """RLlib also counts the added timestep, which may become a sequence with nothing to learn."""
    episode = peer.recorded(4)
    pieces = [learner.AddOneTsToEpisodesAndTruncate(), *SEQUENCES]
    theirs = peer.their_batch(pieces, [episode.theirs()], peer.module(peer.Recurrent, 4))["default_policy"]
    np.testing.assert_array_equal(theirs["seq_lens"], [4, 1])
    np.testing.assert_array_equal(theirs["loss_mask"].sum(axis=1), [4, 0])
    made = peer.our_batch(our_sequences(4, ours.AddOneTsToEpisodesAndTruncate()), [episode.ours()])["default_policy"]
    np.testing.assert_array_equal(made["seq_lens"], made["loss_mask"].sum(axis=1))


def test_advantages_are_standardized_over_the_transitions():
    """RLlib includes the added timestep in the standardization."""
    episodes = [peer.recorded(n, number=i, end="truncated") for i, n in enumerate((5, 3))]
    pieces = [
        learner.AddOneTsToEpisodesAndTruncate(),
        common.AddObservationsFromEpisodesToBatch(as_learner_connector=True),
        learner.AddColumnsFromEpisodesToTrainBatch(),
        common.BatchIndividualItems(multi_agent=False),
        common.NumpyToTensor(as_learner_connector=True),
        learner.GeneralAdvantageEstimation(gamma=0.9, lambda_=0.5),
    ]
    theirs = peer.their_batch(pieces, [e.theirs() for e in episodes], peer.module(peer.Stateless))["default_policy"]
    valid = theirs["advantages"][theirs["loss_mask"]]
    assert abs(theirs["advantages"].mean()) < 1e-5 < 1e-2 < abs(valid.mean())


HASH_SEED = """
import numpy as np, rllib_peer as peer
from ray.rllib.connectors import common
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
agents = [f"agent{i}" for i in range(8)]
episode = MultiAgentEpisode(agent_to_module_mapping_fn=lambda agent, _: "default_policy")
episode.add_env_reset(observations={a: np.full(3, i, np.float32) for i, a in enumerate(agents)})
episode.add_env_step(
    {a: np.zeros(3, np.float32) for a in agents}, dict.fromkeys(agents, 0), dict.fromkeys(agents, 0.0),
    terminateds={"__all__": True}, truncateds={"__all__": False},
)
pieces = [
    common.AddObservationsFromEpisodesToBatch(as_learner_connector=True),
    common.AgentToModuleMapping(
        rl_module_specs={"default_policy": None},
        agent_to_module_mapping_fn=lambda agent, _: "default_policy",
        as_learner_connector=True,
    ),
    common.BatchIndividualItems(multi_agent=True),
]
batch = peer.their_batch(pieces, [episode.to_numpy()], peer.module(peer.Stateless))
print(batch["default_policy"]["obs"][:, 0].astype(int).tolist())
"""


def test_the_order_of_agents_is_defined():
    """RLlib uses the order of a set of strings. (tests/connectors/learner/test_columns.py shows ours.)"""
    orders = set()
    for seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        ran = subprocess.run(
            [sys.executable, "-c", HASH_SEED], env=environment, capture_output=True, text=True, check=True, timeout=120
        )
        orders.add(ran.stdout.splitlines()[-1])
    assert len(orders) == 2
