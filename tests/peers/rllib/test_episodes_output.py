"""RLlib reads the episodes that `convert --to=rllib` wrote, samples from them, and learns."""

from __future__ import annotations

import msgpack
import msgpack_numpy
import numpy as np
import pyarrow.parquet
import pytest
import ray
import rllib_peer as peer
import rllib_training as training
from exchanging import export
from ray.rllib.algorithms.bc import BCConfig
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.offline.offline_prelearner import OfflinePreLearner

from rlds_beam.testing import make_episode, write_dataset

COLUMNS = {"action": np.arange(6) % peer.ACTIONS, "action_logp": np.linspace(-1, 0, 6, dtype=np.float32)}
EPISODES = [make_episode(6, seed=i, terminal=i % 2 == 0, columns=COLUMNS) for i in range(8)]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    directory = tmp_path_factory.mktemp("episodes")
    data = write_dataset(directory / "data", EPISODES, shards=2)
    report = export(data, directory / "out", "rllib", shards=2)
    assert report.left_out == {"discount": "RLlib has no such field in an episode"}
    return directory / "out" / "train"


def test_the_episodes_are_ours(written):
    files = sorted(written.glob("*.parquet"))
    items = [item for file in files for item in pyarrow.parquet.read_table(file)["item"].to_pylist()]
    for item, ours in zip(items, EPISODES, strict=True):
        theirs = SingleAgentEpisode.from_state(msgpack.unpackb(item, object_hook=msgpack_numpy.decode))
        assert len(theirs) == 5 and theirs.is_done and theirs.is_numpy
        assert theirs.is_terminated == bool(ours.steps["is_terminal"][-1])
        assert np.array_equal(theirs.get_observations(), ours.steps["observation"])
        assert np.array_equal(theirs.get_actions(), ours.steps["action"][:-1])
        assert np.array_equal(theirs.get_rewards(), ours.steps["reward"][:-1])
        assert np.array_equal(theirs.get_extra_model_outputs("action_logp"), ours.steps["action_logp"][:-1])
    assert len(set(items)) == 8


def test_its_prelearner_samples_our_transitions(written):
    config = training.configured(BCConfig()).offline_data(input_read_episodes=True)
    spec = config.get_multi_rl_module_spec(spaces={"default_policy": (peer.OBSERVATION, peer.ACTION)})
    prelearner = OfflinePreLearner(config=config, spaces=(peer.OBSERVATION, peer.ACTION), module_spec=spec)
    items = pyarrow.parquet.read_table(written)["item"].to_numpy(zero_copy_only=False)
    batch = {name: np.asarray(value) for name, value in prelearner({"item": items}).items()}
    ours = {
        (*o.tolist(), int(a)): r
        for e in EPISODES
        for o, a, r in zip(e.steps["observation"][:-1], e.steps["action"], e.steps["reward"], strict=False)
    }
    observations, actions = batch["default_policy/obs"], batch["default_policy/actions"]
    assert len(observations) > 10
    for observation, action, reward in zip(observations, actions, batch["default_policy/rewards"], strict=True):
        assert ours[(*observation.tolist(), int(action))] == reward


def test_it_learns(written):
    config = training.configured(BCConfig()).offline_data(
        input_=[str(written)],
        input_read_episodes=True,
        input_read_batch_size=8,
        dataset_num_iters_per_learner=1,
        map_batches_kwargs={"concurrency": 1},
    )
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        result = config.build_algo().train()
    finally:
        ray.shutdown()
    assert np.isfinite(result["learners"]["default_policy"]["total_loss"])
