"""A half-cheetah and a gait for `rlds-beam record`. Two episodes go wrong, as happens in labs.

The simulator is dm_control's cheetah-run with the spaces of D4RL's half-cheetah: 17 float32 observations and 6 float32
actions. In one episode the simulation diverges, and a reward is NaN. In another the last frame of a sensor is lost, and
a velocity is infinite.

    PYTHONPATH=examples rlds-beam record demo_data/cheetah --episodes=20 --shards=1 --envs_per_worker=1 \\
        --env=record_cheetah:simulator --env_config='{"steps": 200}' \\
        --policy='TruncatedGaussianHead(record_cheetah:policy, sigma=0.3)'
"""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("MUJOCO_GL", "disable")  # physics only; must be set before dm_control is imported

import dm_env
import numpy as np
from dm_control import suite
from dm_env import specs

OBSERVATION_SIZE, ACTION_SIZE = 17, 6
LOST, DIVERGED = 7, 12
"""Indices of the episodes that go wrong."""
STEPS_PER_SECOND = 100  # the control rate of cheetah-run

_GAIT = np.random.default_rng(0).normal(0, 0.4, (OBSERVATION_SIZE, ACTION_SIZE))


def policy(observations: np.ndarray) -> np.ndarray:
    """A stiff gait, (N, 17) -> (N, 6): each joint follows the others."""
    return np.tanh(observations @ _GAIT)


def simulator(steps: int) -> FlatCheetah:
    """Creates an environment with this many steps per episode."""
    return FlatCheetah(steps)


class FlatCheetah(dm_env.Environment):
    """cheetah-run with observation (17,), action (6,), reward and discount all float32."""

    def __init__(self, steps: int) -> None:
        limit = {"random": 0, "time_limit": steps / STEPS_PER_SECOND}
        self._env = suite.load("cheetah", "run", task_kwargs=limit)
        self._steps, self._step, self._episode = steps, 0, -1

    @property
    def task(self) -> Any:
        """The suite's task; its random generator is seeded for each episode."""
        return self._env.task

    def reset(self) -> dm_env.TimeStep:
        self._step, self._episode = 0, self._episode + 1
        return self._flat(self._env.reset())

    def step(self, action: np.ndarray) -> dm_env.TimeStep:
        self._step += 1
        timestep = self._flat(self._env.step(action))
        if (self._episode, self._step) == (DIVERGED, self._steps // 2):
            return timestep._replace(reward=np.float32(np.nan))
        if self._episode == LOST and timestep.last():
            timestep.observation[-1] = np.inf
        return timestep

    def observation_spec(self) -> specs.Array:
        return specs.Array((OBSERVATION_SIZE,), np.float32, "observation")

    def action_spec(self) -> specs.BoundedArray:
        bounds = self._env.action_spec()
        return specs.BoundedArray((ACTION_SIZE,), np.float32, bounds.minimum, bounds.maximum, "action")

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
