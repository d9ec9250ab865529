"""Gymnasium's pendulum and a policy for `rlds-beam record`. Two episodes go wrong, as happens in labs.

    PYTHONPATH=examples rlds-beam record demo_data/pendulum --episodes=20 --shards=1 --envs_per_worker=1 \\
        --env=record_pendulum:simulator --env_config='{"steps": 200}' \\
        --policy='TruncatedGaussianHead(record_pendulum:policy, sigma=0.3)'
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

LOST, DIVERGED = 7, 12
"""Indices of the episodes that go wrong."""


def policy(observations: np.ndarray) -> np.ndarray:
    """The torque that speeds the pendulum up, observations (N, 3) -> actions (N, 1)."""
    return np.sign(observations[:, 2:])


def simulator(steps: int) -> gymnasium.Env[np.ndarray, np.ndarray]:
    """Creates an environment with this many steps per episode."""
    return Breaking(gymnasium.make("Pendulum-v1", max_episode_steps=steps), steps)


class Breaking(gymnasium.Wrapper[np.ndarray, np.ndarray, np.ndarray, np.ndarray]):
    """In one episode a reward is NaN. In another the last velocity is infinite."""

    def __init__(self, env: gymnasium.Env[np.ndarray, np.ndarray], steps: int) -> None:
        super().__init__(env)
        self._steps, self._step, self._episode = steps, 0, -1

    def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict[str, Any]]:
        self._step, self._episode = 0, self._episode + 1
        return self.env.reset(**kwargs)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._step += 1
        observation, reward, terminated, truncated, info = self.env.step(action)
        if (self._episode, self._step) == (DIVERGED, self._steps // 2):
            reward = np.nan
        if (self._episode, self._step) == (LOST, self._steps):
            observation = observation * np.float32([1, 1, np.inf])
        return observation, float(reward), terminated, truncated, info
