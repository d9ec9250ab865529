"""SCOPE-RL's `obtain_episodes` and ours, on one core: prints JSON.

    python benchmarks/record_peer.py [--episodes N] [--repeats N]

Runs in the environment of `make test-peers` (.venv-peers-scope_rl). Both are given the same CartPole of the old gym
and the same epsilon-greedy head over the same Q network of d3rlpy's. SCOPE-RL steps on after the pole has fallen, with the
same work for each step; ours begins another episode.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
import warnings
from typing import Any

import gym
import torch
from d3rlpy.algos import DQNConfig
from d3rlpy.models.encoders import VectorEncoderFactory
from scope_rl.dataset import SyntheticDataset as Theirs
from scope_rl.policy import EpsilonGreedyHead

from rlds_beam.recording import SyntheticDataset as Ours

STEPS = 200


def rate(kind: Any, env: Any, head: Any, episodes: int) -> float:
    """Recorded steps a second of processor time, until all of them are arrays in memory."""
    dataset = kind(env=env, max_episode_steps=STEPS)
    began = time.process_time()
    logged = dataset.obtain_episodes(head, n_trajectories=episodes, random_state=1)
    steps = len(logged["state"])
    for key in ("action", "reward", "done", "terminal", "pscore"):
        assert len(logged[key]) == steps
    return steps / (time.process_time() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    flags = parser.parse_args()
    warnings.simplefilter("ignore")
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    env = gym.make("CartPole-v1")
    network = DQNConfig(encoder_factory=VectorEncoderFactory([64])).create()
    network.build_with_env(env)
    head = EpsilonGreedyHead(network, n_actions=2, epsilon=0.3, name="greedy", random_state=1)
    best = {"scope_rl": 0.0, "ours": 0.0}
    with contextlib.redirect_stdout(sys.stderr):
        for _ in range(flags.repeats):
            best["scope_rl"] = max(best["scope_rl"], rate(Theirs, env, head, max(1, flags.episodes // 10)))
            best["ours"] = max(best["ours"], rate(Ours, env, head, 5 * flags.episodes))
    print(json.dumps(best))


if __name__ == "__main__":
    main()
