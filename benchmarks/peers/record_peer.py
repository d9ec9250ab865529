"""SCOPE-RL's `obtain_episodes` and ours, on one core: prints JSON.

    python benchmarks/peers/record_peer.py [--episodes N] [--repeats N]

Runs in the environment of `make test-peers` (.venv-peers-scope_rl). Both get the same CartPole of the old gym
and an epsilon-greedy head over a d3rlpy Q network: a trained one, so that the pole stays up, and an untrained one, so
that episodes have a dozen steps. SCOPE-RL keeps stepping after the pole has fallen, with the same work for each step;
ours begins another episode.
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
import numpy as np
import torch
from d3rlpy.algos import ConstantEpsilonGreedy, DQNConfig
from d3rlpy.dataset import create_fifo_replay_buffer
from d3rlpy.logging import NoopAdapterFactory
from d3rlpy.models.encoders import VectorEncoderFactory
from scope_rl.dataset import SyntheticDataset as Theirs
from scope_rl.policy import EpsilonGreedyHead

from rlds_beam.drop_in.scope_rl import SyntheticDataset as Ours

STEPS = 200


def network(env: Any, steps: int) -> Any:
    """A Q network, trained for `steps` steps."""
    torch.manual_seed(1)
    np.random.seed(1)
    config = DQNConfig(encoder_factory=VectorEncoderFactory([64]), learning_rate=1e-3, target_update_interval=200)
    algorithm = config.create()
    algorithm.build_with_env(env)
    if steps:
        algorithm.fit_online(
            env,
            buffer=create_fifo_replay_buffer(limit=steps, env=env),
            explorer=ConstantEpsilonGreedy(0.3),
            n_steps=steps,
            n_steps_per_epoch=steps,
            show_progress=False,
            logger_adapter=NoopAdapterFactory(),
        )
    return algorithm


def rate(kind: Any, env: Any, head: Any, episodes: int) -> float:
    """Recorded steps per second of processor time, until all are arrays in memory."""
    dataset = kind(env=env, max_episode_steps=STEPS)
    began = time.process_time()
    logged = dataset.obtain_episodes(head, n_trajectories=episodes, random_state=1)
    steps = len(logged["state"])
    print(
        f"{kind.__module__}: {steps / len(getattr(logged, 'lengths', [1] * episodes)):.0f} steps an episode",
        file=sys.stderr,
    )
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
    found = {}
    with contextlib.redirect_stdout(sys.stderr):
        for name, steps in (("trained", 4000), ("untrained", 0)):
            head = EpsilonGreedyHead(network(env, steps), n_actions=2, epsilon=0.3, name="greedy", random_state=1)
            best = {"scope_rl": 0.0, "ours": 0.0}
            for _ in range(flags.repeats):
                best["scope_rl"] = max(best["scope_rl"], rate(Theirs, env, head, max(1, flags.episodes // 10)))
                best["ours"] = max(best["ours"], rate(Ours, env, head, (1 if steps else 5) * flags.episodes))
            found[name] = best
    print(json.dumps(found))


if __name__ == "__main__":
    main()
