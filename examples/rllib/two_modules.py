"""Trains two RLlib modules, one of them recurrent, on a recorded dataset of two agents.

    pip install '.[rllib]'
    python examples/rllib/two_modules.py

RLlib itself does not read multi-agent data. Here connectors split the agents and map them to modules, each module gets
its own files of columns (sequences, or single transitions), and both are trained together.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from ray.rllib.algorithms.bc import BCConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

import rlds_beam
from rlds_beam import Episode, EpisodeKey
from rlds_beam.rllib import offline_data
from rlds_beam.testing import write_dataset

OBSERVATION, ACTION = gym.spaces.Box(-1.0, 1.0, (2,), np.float32), gym.spaces.Discrete(2)
MODULES = {"follower": "memory", "reactor": "reflex"}
"""Agent -> its module."""

CONNECTORS = """
- SplitAgents:
    agents:
      follower: {observation: observation/follower, action: action/follower, reward: reward/follower}
      reactor: {observation: observation/reactor, action: action/reactor, reward: reward/reactor, present: present}
- AgentToModuleMapping: {modules: {follower: memory, reactor: reflex}}
- AddObservationsFromEpisodesToBatch
- AddColumnsFromEpisodesToTrainBatch
- AddTimeDimToBatchAndZeroPad: {max_seq_len: 10, modules: [memory]}
- AddStatesFromEpisodesToBatch: {initial_state: {h: [[0, 0, 0, 0, 0, 0, 0, 0]], c: [[0, 0, 0, 0, 0, 0, 0, 0]]}}
- BatchIndividualItems
- NumpyToTensor
"""


def record(number: int) -> Episode:
    """Records an episode: the reactor enters late and acts on its observation, the follower on the one before."""
    rng = np.random.default_rng(number)
    count = int(rng.integers(20, 40))
    seen = {agent: rng.uniform(-1, 1, (count, 2)).astype(np.float32) for agent in MODULES}
    earlier = np.concatenate([seen["follower"][:1], seen["follower"][:-1]])
    step = np.arange(count)
    steps = {
        "observation/follower": seen["follower"],
        "observation/reactor": seen["reactor"],
        "action/follower": (earlier[:, 0] > 0).astype(np.int64),
        "action/reactor": (seen["reactor"][:, 0] > 0).astype(np.int64),
        "reward/follower": np.ones(count, np.float32),
        "reward/reactor": np.ones(count, np.float32),
        "present": step >= number % 5,
        "is_first": step == 0,
        "is_last": step == count - 1,
        "is_terminal": step == count - 1,
    }
    return Episode(EpisodeKey("agents/1.0.0", "train", 0, number), steps)


def configured(columns: Path) -> Any:
    """Returns the configuration: behavior cloning of both modules."""
    specs = {
        module: RLModuleSpec(
            observation_space=OBSERVATION,
            action_space=ACTION,
            model_config=DefaultModelConfig(
                fcnet_hiddens=[32], use_lstm=module == "memory", lstm_cell_size=8, max_seq_len=10
            ),
        )
        for module in MODULES.values()
    }
    return (
        BCConfig()
        .environment(
            observation_space=gym.spaces.Dict(dict.fromkeys(MODULES, OBSERVATION)),
            action_space=gym.spaces.Dict(dict.fromkeys(MODULES, ACTION)),
        )
        .multi_agent(policies=set(specs), policy_mapping_fn=lambda agent, *_, **__: MODULES[agent])
        .rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs=specs))
        .learners(num_learners=0)
        .training(train_batch_size_per_learner=128, lr=0.01)
        .offline_data(**offline_data(str(columns)))
        .debugging(seed=0, log_level="ERROR")
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--iterations", type=int, default=30)
    flags = parser.parse_args()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        episodes = [record(number) for number in range(flags.episodes)]
        dataset = write_dataset(folder / "data", episodes, name="agents", shards=2)
        (folder / "learner.yaml").write_text(CONNECTORS)
        outcome = rlds_beam.convert(
            dataset, folder / "columns", to="columns", format="parquet", connectors=folder / "learner.yaml"
        )
        print(outcome)
        algorithm = configured(folder / "columns").build_algo()
        for iteration in range(1, flags.iterations + 1):
            results = algorithm.train()["learners"]
            losses = {module: float(results[module]["total_loss"]) for module in MODULES.values()}
            if iteration in (1, flags.iterations):
                print(f"iteration {iteration}:", ", ".join(f"{m} {loss:.3f}" for m, loss in losses.items()), flush=True)
        algorithm.stop()


if __name__ == "__main__":
    main()
