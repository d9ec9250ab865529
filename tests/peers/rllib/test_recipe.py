"""RLlib reads whole episodes with the transitions that were recorded, by the block of docs/how_to/rl_libraries.md."""

from __future__ import annotations

import sys

import msgpack
import msgpack_numpy
import numpy as np
import pyarrow.parquet
import pytest
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from recipes import expected, run_block, write_arrays


@pytest.mark.parametrize("last_action", ["void", "real"])
def test_episodes(tmp_path, monkeypatch, last_action):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "recorded", raising=False)
    made = write_arrays(tmp_path)
    run_block("RLlib", last_action)
    items = pyarrow.parquet.read_table(tmp_path / "episodes")["item"].to_pylist()
    for item, episode in zip(items, made, strict=True):
        found = SingleAgentEpisode.from_state(msgpack.unpackb(item, object_hook=msgpack_numpy.decode))
        observations, actions, rewards, terminal = expected(episode, last_action)
        assert found.is_done and found.is_numpy and found.is_terminated == terminal
        assert np.array_equal(found.get_observations()[: len(observations)], observations)
        assert np.array_equal(found.get_actions(), actions)
        assert np.array_equal(found.get_rewards(), np.asarray(rewards))
