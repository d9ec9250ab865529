"""Small, exact environments and policies for the recording tests, with every kind of observation and action."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

import rlds_beam

LENGTH = 6
"""The time limit of a `Walk`, in steps."""


class Walk(gymnasium.Env):
    """A walk on a line, left or right; terminated beyond 2, truncated after LENGTH steps."""

    observation_space = spaces.Box(-10, 10, (2,), np.float64)
    action_space = spaces.Discrete(3)

    def __init__(self, length: int = LENGTH, ends: bool = True):
        self._length, self._ends = length, ends
        self._place, self._age = 0.0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._place, self._age = float(self.np_random.uniform(-1, 1)), 0
        return self._observed(), {"age": 0}

    def step(self, action: int) -> Any:
        self._place += action - 1 + 0.1 * float(self.np_random.normal())
        self._age += 1
        over = self._ends and abs(self._place) > 2
        info = {"age": self._age, "place": self._place, "side": "left" if self._place < 0 else "right"}
        return self._observed(), float(self._place), over, self._age >= self._length, info

    def _observed(self) -> Any:
        return np.array([self._place, self._age])


def walk(length: int = LENGTH) -> Walk:
    env = Walk(length)
    env.spec = gymnasium.envs.registration.EnvSpec("Walk-v0", max_episode_steps=length)
    return env


class Unseeded(Walk):
    """Its randomness depends only on the seed given to the constructor."""

    def __init__(self, seed: int):
        super().__init__()
        self._seed = seed

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=self._seed)
        self._place = float(self._seed % 1000)
        return self._observed(), {}


def seeded(seed: int) -> Unseeded:
    env = Unseeded(seed)
    env.spec = gymnasium.envs.registration.EnvSpec("Unseeded-v0", max_episode_steps=LENGTH)
    return env


def endless() -> Walk:
    """An environment that never ends and declares no limit."""
    return Walk(length=10**9, ends=False)


@rlds_beam.configurable
def q_function(observations: Any) -> Any:
    """Values of the three actions of a `Walk`; the best one moves toward 0."""
    place = observations[:, 0]
    return np.stack([place, np.full(len(place), 0.3), -place], axis=1)


class Slide(gymnasium.Env):
    """A continuous two-dimensional action between -1 and 1."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self) -> None:
        self.taken: list[Any] = []
        self._at = np.zeros(2, np.float32)
        self._age = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._at, self._age = self.np_random.normal(size=2).astype(np.float32), 0
        return self._at, {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        self._at = self._at + action
        self._age += 1
        return self._at, -float(np.abs(action).sum()), False, self._age >= 5, {}


def slide() -> Slide:
    env = Slide()
    env.spec = gymnasium.envs.registration.EnvSpec("Slide-v0", max_episode_steps=5)
    return env


def towards_zero(observations: Any) -> Any:
    """Actions of a `Slide` that move toward 0."""
    return np.clip(-observations, -1, 1)


class Everything(gymnasium.Env):
    """An environment with every kind of observation and action, nested."""

    observation_space = spaces.Dict(
        {
            "image": spaces.Box(0, 255, (4, 5, 3), np.uint8),
            "state": spaces.Dict({"position": spaces.Box(-1, 1, (3,), np.float32), "count": spaces.Discrete(9)}),
            "task": spaces.Text(20),
            "flags": spaces.MultiBinary(3),
        }
    )
    action_space = spaces.Dict(
        {
            "arm": spaces.Box(np.array([-1, 0, -np.inf]), np.array([1, np.inf, np.inf]), (3,), np.float64),
            "grip": spaces.Discrete(2, start=5),
            "buttons": spaces.MultiDiscrete([2, 3, 4]),
            "pair": spaces.Tuple((spaces.MultiBinary(2), spaces.Box(0, 7, (2,), np.int32))),
        }
    )

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self._age = 0
        return self._observed(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        self._age += 1
        return self._observed(), 1, self._age == 4, False, {}

    def _observed(self) -> Any:
        return {**self.observation_space.sample(), "task": f"step {self._age}"}


def everything() -> Everything:
    env = Everything()
    env.spec = gymnasium.envs.registration.EnvSpec("Everything-v0", max_episode_steps=10)
    return env


class Counting:
    """A policy with state, which a behavior policy must not have."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, observations: Any) -> Any:
        self.calls += 1
        return np.full(len(observations), self.calls % 3)


counting = Counting()


def of_walk(columns: Any) -> Any:
    """Logits for a `Walk`: twice its Q values."""
    return {"action_dist_inputs": 2 * q_function(columns["obs"]).astype(np.float32)}


def of_stacked(columns: Any) -> Any:
    """Logits from the last three positions, concatenated."""
    place = columns["obs"].reshape(len(columns["obs"]), -1)[:, ::2].sum(axis=1)
    return {"action_dist_inputs": np.stack([place, 0 * place, -place], axis=1).astype(np.float32)}


def of_slide(columns: Any) -> Any:
    mean = towards_zero(columns["obs"])
    return {"action_dist_inputs": np.concatenate([mean, np.full_like(mean, -0.5)], axis=1)}


class Remembering:
    """A policy with state: the best action is the number of steps so far modulo 3.

    It asserts that the state belongs to the environment: a `Walk` observes its own age.
    """

    def get_initial_state(self) -> Any:
        return {"steps": np.zeros((), np.float64), "seen": np.zeros(2, np.float64)}

    def __call__(self, observations: Any, state: Any) -> Any:
        assert np.array_equal(observations[:, 1], state["steps"]), (observations, state)
        values = np.stack([(state["steps"] % 3 == action) - 9 * (state["seen"][:, 0] > 99) for action in range(3)], 1)
        return values, {"steps": state["steps"] + 1, "seen": state["seen"] + observations}


class RememberingModule:
    """The same as a model between connectors; its logits grow with each step."""

    def get_initial_state(self) -> Any:
        return {"steps": np.zeros(1, np.float32)}

    def __call__(self, columns: Any) -> Any:
        steps = columns["state_in/steps"]
        assert np.array_equal(columns["obs"][:, 1:], steps)
        logits = steps * np.array([[0.0, 0.1, 0.2]], np.float32)
        return {"action_dist_inputs": logits, "state_out/steps": steps + 1}


class Faulty(Walk):
    """An environment in which every second episode has a NaN reward."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._is_faulty = bool(seed % 2) if seed is not None else False
        return super().reset(seed=seed, options=options)

    def step(self, action: int) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, np.nan if self._is_faulty else reward, *rest


def faulty() -> Faulty:
    env = Faulty()
    env.spec = gymnasium.envs.registration.EnvSpec("Faulty-v0", max_episode_steps=LENGTH)
    return env
