"""Record half-cheetah episodes with EnvLogger, as a lab would, and let two of them go wrong.

The simulator is dm_control's cheetah-run, its observation flattened to 17 float32 and its action 6 float32: the
specification of D4RL's half-cheetah. Two things happen on purpose, both of which happen in labs by accident:

- one episode is interrupted: the environment is reset before its end, so EnvLogger never marks a last step;
- in one episode the simulation diverges, and a reward is NaN.

Run: python examples/record_cheetah.py demo_data/cheetah --episodes=20 --steps=200
"""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("MUJOCO_GL", "disable")  # physics only; must be set before dm_control is imported
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import absl.logging
import dm_env
import envlogger
import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
from dm_control import suite
from dm_env import specs
from envlogger.backends import tfds_backend_writer

OBSERVATION_SIZE, ACTION_SIZE = 17, 6
INTERRUPTED, DIVERGED = 7, 12
EPISODES_PER_SHARD = 5
STEPS_PER_SECOND = 100  # the control rate of cheetah-run

Policy = Callable[[int], np.ndarray]


class FlatCheetah(dm_env.Environment):
    """cheetah-run with observation (17,), action (6,), reward and discount all float32."""

    def __init__(self, steps: int, seed: int) -> None:
        self._env = suite.load("cheetah", "run", task_kwargs={"random": seed, "time_limit": steps / STEPS_PER_SECOND})
        self._bounds = self._env.action_spec()
        self.diverge_at: int | None = None
        """At this step of the episode the reward is NaN, as if the integrator had diverged."""
        self._step = 0

    def reset(self) -> dm_env.TimeStep:
        self._step = 0
        return self._flat(self._env.reset())

    def step(self, action: np.ndarray) -> dm_env.TimeStep:
        self._step += 1
        timestep = self._flat(self._env.step(action))
        if self._step == self.diverge_at:
            return timestep._replace(reward=np.float32(np.nan))
        return timestep

    def observation_spec(self) -> specs.Array:
        return specs.Array((OBSERVATION_SIZE,), np.float32, "observation")

    def action_spec(self) -> specs.BoundedArray:
        low, high = self._bounds.minimum, self._bounds.maximum
        return specs.BoundedArray((ACTION_SIZE,), np.float32, low, high, "action")

    def reward_spec(self) -> specs.Array:
        return specs.Array((), np.float32, "reward")

    def discount_spec(self) -> specs.BoundedArray:
        return specs.BoundedArray((), np.float32, 0.0, 1.0, "discount")

    @staticmethod
    def _flat(timestep: dm_env.TimeStep) -> dm_env.TimeStep:
        observation = np.concatenate([np.ravel(part) for part in timestep.observation.values()])
        first = timestep.first()
        return timestep._replace(
            observation=observation.astype(np.float32),
            reward=None if first else np.float32(timestep.reward),
            discount=None if first else np.float32(timestep.discount),
        )


def sinusoid(rng: np.random.Generator) -> Policy:
    """A gait: six sines of one frequency, with phases and amplitudes drawn once an episode."""
    frequency = rng.uniform(1.0, 3.0)
    phases = rng.uniform(0.0, 2 * np.pi, ACTION_SIZE)
    amplitudes = rng.uniform(0.3, 1.0, ACTION_SIZE)

    def act(step: int) -> np.ndarray:
        angle = 2 * np.pi * frequency * step / STEPS_PER_SECOND
        return (amplitudes * np.sin(angle + phases)).astype(np.float32)

    return act


@dataclasses.dataclass(frozen=True)
class Recording:
    """What was recorded."""

    episodes: int
    steps: int


def record(directory: Path, episodes: int = 20, steps: int = 200, seed: int = 0) -> Recording:
    """Record `episodes` of at most `steps` transitions into a new TFDS directory, two of them broken."""
    absl.logging.set_verbosity(absl.logging.ERROR)  # the simulator and the recorder log a lot
    directory.mkdir(parents=True)
    config = tfds.rlds.rlds_base.DatasetConfig(
        name="cheetah",
        observation_info=tfds.features.Tensor(shape=(OBSERVATION_SIZE,), dtype=tf.float32),
        action_info=tfds.features.Tensor(shape=(ACTION_SIZE,), dtype=tf.float32),
        reward_info=tf.float32,
        discount_info=tf.float32,
        episode_metadata_info={"episode_id": tf.int64},
    )
    backend = tfds_backend_writer.TFDSBackendWriter(
        data_directory=str(directory), ds_config=config, max_episodes_per_file=EPISODES_PER_SHARD, split_name="train"
    )
    simulator = FlatCheetah(steps, seed)
    rng = np.random.default_rng(seed)
    recorded, episode = 0, 0
    with envlogger.EnvLogger(
        simulator, backend=backend, episode_fn=lambda timestep, action, env: {"episode_id": episode}
    ) as env:
        for episode in range(episodes):
            simulator.diverge_at = steps // 2 if episode == DIVERGED else None
            recorded += run_episode(env, sinusoid(rng), stop_after=steps // 3 if episode == INTERRUPTED else None)
    return Recording(episodes, recorded)


def run_episode(env: dm_env.Environment, policy: Policy, stop_after: int | None) -> int:
    """Play one episode, to its end or until `stop_after` transitions. Returns the number of RLDS steps."""
    timestep, step = env.reset(), 0
    while not timestep.last() and step != stop_after:
        timestep = env.step(policy(step))
        step += 1
    return step + 1  # RLDS also has a step for the final observation


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--steps", type=int, default=200, help="transitions in an episode, at most 1000")
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args()
    done = record(flags.directory, flags.episodes, flags.steps, flags.seed)
    print(f"{done.episodes} episodes, {done.steps} steps, in {flags.directory}")


if __name__ == "__main__":
    main()
