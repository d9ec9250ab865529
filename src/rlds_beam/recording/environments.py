"""One interface for environments of gymnasium, the old gym, dm_env, dm_control, and users.

Simulators, which know the rate and the names of the actuators, are recognized by the names of classes and modules, so
none of their packages is imported.
"""

from __future__ import annotations

import abc
import copy
import inspect
import math
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from rlds_beam.errors import RldsBeamError, UsageError, needs
from rlds_beam.recording.spaces import Structure, from_space, from_spec
from rlds_beam.user_functions import ByValue, call_factory, describe_error, resolve

_REPEAT = ("MaxAndSkipObservation", "AtariPreprocessing")
"""Gymnasium's wrappers that take several steps at once."""
_KEEP = ("ClipAction", "RescaleAction")
"""Gymnasium's wrappers of actions that keep what each value is."""
_TIMED = ("gymnasium.envs.", "gymnasium_robotics.envs.")
"""Modules of environments that know the time of a step, `dt`."""
_ROBOTS = ("point_env", "ant_env", "robot_env")
"""The environments inside those of gymnasium-robotics."""
_JOINT_TRANSMISSION = 0
"""MuJoCo's `mjTRN_JOINT`: the actuator moves one joint."""


def below_gym_wrappers(env: Any) -> Any:
    """The environment of gymnasium or gym inside its wrappers; None if one may change what a step or an action is."""
    while (inner := getattr(env, "__dict__", {}).get("env")) is not None:
        kind = type(env)
        if not str(getattr(kind.step, "__module__", "")).startswith(("gymnasium.", "gym.")) or kind.__name__ in _REPEAT:
            return None
        if hasattr(kind, "action") and kind.__name__ not in _KEEP:
            return None
        env = inner
    return env


def gym_rate(env: Any) -> float | None:
    """Steps per second of an environment without wrappers.

    By the time of a step in gymnasium's own, which may be drawn at another rate (Pendulum, AntMaze); otherwise, the
    rate at which it is to be drawn.
    """
    if any(kind.__module__.startswith(_TIMED) for kind in type(env).__mro__):
        robot = next((vars(env)[name] for name in _ROBOTS if name in vars(env)), env)
        if (rate := _compute_rate(getattr(robot, "dt", None))) is not None:
            return rate
    metadata = getattr(env, "metadata", None)
    rate = metadata.get("render_fps") if isinstance(metadata, dict) else None
    return float(rate) if isinstance(rate, (int, float)) and 0 < rate <= 1_000_000 else None


def gym_actuators(env: Any) -> list[str]:
    """The names of the values of an action of gymnasium's MuJoCo environments; empty for others."""
    if not type(env).__module__.startswith("gymnasium.envs.mujoco."):
        return []
    model = env.unwrapped.model
    names = []
    for i in range(model.nu):
        name = model.actuator(i).name
        if not name and model.actuator_trntype[i] == _JOINT_TRANSMISSION:
            name = model.joint(model.actuator_trnid[i, 0]).name
        names.append(str(name))
    return names if all(names) else []


def dm_actuators(env: Any) -> list[str]:
    """The names of the values of an action of dm_control's suite; empty if its task takes other actions."""
    task = env.task if hasattr(type(env), "control_timestep") else None  # not of what an unknown wrapper wraps
    base = "dm_control.suite.base"
    if any(
        getattr(getattr(type(task), name, None), "__module__", "") != base for name in ("action_spec", "before_step")
    ):
        return []
    model = env.physics.model
    names = [str(model.id2name(i, "actuator")) for i in range(model.nu)]
    return names if all(names) else []


def _compute_rate(period: Any) -> float | None:
    """Steps per second of a step of `period` seconds, without the error of the division; None if it is not one."""
    try:
        rate = round(1 / float(period), 6)
    except (TypeError, ValueError, ZeroDivisionError):
        return None
    return rate if math.isfinite(rate) and 0 < rate <= 1_000_000 else None


KINDS = ("gymnasium", "gym", "dm_control")
"""The known prefixes of a name; any other name is a `module:function`."""


class Outcome(NamedTuple):
    """The outcome of a step.

    Attributes:
      observation: the next observation, nested as in the environment.
      reward: the reward of the action.
      terminated: whether the episode reached a terminal state.
      truncated: whether the episode was cut off, usually by a time limit.
      discount: the discount of the next state: 0 if terminated, else 1; or dm_env's discount.
      info: the environment's info.
    """

    observation: Any
    reward: Any
    terminated: bool
    truncated: bool
    discount: float
    info: Mapping[str, Any]


class Environment(abc.ABC):
    """An environment.

    Attributes:
      observation, action: the structures of observations and actions.
      most_steps: the maximum number of steps of an episode; None if unknown.
      ends: whether its episodes end by themselves, even if it does not declare when: dm_env's do.
      fps: steps per second, if the environment says so.
    """

    observation: Structure
    action: Structure
    most_steps: int | None = None
    ends: bool = False
    fps: float | None = None

    @abc.abstractmethod
    def reset(self, seed: int | None) -> Any:
        """Starts an episode and returns the first observation.

        Args:
          seed: the seed of the environment's random numbers from now on; None continues those of the last seed.
        """

    @abc.abstractmethod
    def step(self, action: Any) -> Outcome:
        """Takes an action, nested as in the environment."""

    @abc.abstractmethod
    def close(self) -> None:
        """Frees the environment's resources."""


class GymEnvironment(Environment):
    """An environment of gymnasium or of the old gym, whose `reset` and `step` may return fewer values."""

    def __init__(self, env: Any):
        self._env = env
        self.observation = from_space(env.observation_space, "observation_space")
        self.action = from_space(env.action_space, "action_space")
        self.most_steps = getattr(getattr(env, "spec", None), "max_episode_steps", None)
        inner = below_gym_wrappers(env)
        self.fps = gym_rate(inner)
        self.action = self.action.with_names(gym_actuators(inner))
        self._scalar = self.action.alone is not None and self.action.alone.kind == "discrete"
        parameters = inspect.signature(env.reset).parameters.values()
        self._takes_seed = any(one.name == "seed" or one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters)

    def reset(self, seed: int | None) -> Any:
        if seed is None:
            result = self._env.reset()
        elif self._takes_seed:
            result = self._env.reset(seed=seed)
        else:  # gym before 0.22
            self._env.seed(seed)
            result = self._env.reset()
        return result[0] if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict) else result

    def step(self, action: Any) -> Outcome:
        result = self._env.step(int(action) if self._scalar else action)
        if len(result) == 5:
            observation, reward, terminated, truncated, info = result
        else:  # gym before 0.26
            observation, reward, done, info = result
            truncated = done and bool(info.get("TimeLimit.truncated", False))
            terminated = done and not truncated
        return Outcome(observation, reward, bool(terminated), bool(truncated), 0.0 if terminated else 1.0, info)

    def close(self) -> None:
        self._env.close()


class DmEnvironment(Environment):
    """A dm_env environment: an end with discount 0 is a terminal state, any other end a truncation."""

    ends = True

    def __init__(self, env: Any, reseed: Callable[[Any, int], None] | None):
        self._env, self._reseed = env, reseed
        self.observation = from_spec(env.observation_spec(), "observation_spec")
        self.action = from_spec(env.action_spec(), "action_spec")
        while type(env).__module__.startswith("dm_control.suite.wrappers."):  # all of them take one step at a time
            env = env._env
        self.fps = _compute_rate(env.control_timestep()) if hasattr(type(env), "control_timestep") else None
        if names := dm_actuators(env):
            self.action = self.action.with_names(names)

    def reset(self, seed: int | None) -> Any:
        if seed is not None and self._reseed is not None:
            self._reseed(self._env, seed)
        return self._env.reset().observation

    def step(self, action: Any) -> Outcome:
        timestep = self._env.step(action)
        last = timestep.last()
        terminated = last and timestep.discount == 0
        return Outcome(
            timestep.observation, timestep.reward, terminated, last and not terminated, float(timestep.discount), {}
        )

    def close(self) -> None:
        self._env.close()


class NamedEnvironment(Environment):
    """An environment whose errors name it.

    Args:
      make: makes the environment of a seed, if each seeded episode needs a new one.
    """

    def __init__(self, env: Environment, name: str, make: Callable[[int], Environment] | None = None):
        self._env, self._name, self._make = env, name, make
        self.observation, self.action = env.observation, env.action
        self.most_steps, self.ends, self.fps = env.most_steps, env.ends, env.fps

    def reset(self, seed: int | None) -> Any:
        try:
            if seed is not None and self._make is not None:
                self._env.close()
                self._env = self._make(seed)
            return self._env.reset(seed)
        except RldsBeamError:
            raise
        except Exception as error:
            raise RldsBeamError(f"--env={self._name}: reset {describe_error(error)}") from error

    def step(self, action: Any) -> Outcome:
        try:
            return self._env.step(action)
        except RldsBeamError:
            raise
        except Exception as error:
            raise RldsBeamError(f"--env={self._name}: step {describe_error(error)}") from error

    def close(self) -> None:
        self._env.close()


def make_environment(name: str, config: Mapping[str, Any]) -> Environment:
    """Creates an environment by name.

    Args:
      name: `gymnasium:CartPole-v1`, `gym:CartPole-v1`, `dm_control:cheetah/run`, or a factory `module:function`. A
        factory with an argument `seed` is called for each episode; any other environment must take a seed in its
        `reset`. For a module that registers environments with gymnasium: `gymnasium:module:Name-v0`.
      config: the keyword arguments of the environment.

    Raises:
      UsageError: there is no such environment, or it cannot be recorded or seeded.
    """
    try:
        if isinstance(name, ByValue) or (":" in name and name.partition(":")[0] not in KINDS):
            return _of_factory(name, config)
        return NamedEnvironment(_of_kind(name, config), name)
    except RldsBeamError:
        raise
    except Exception as error:
        raise UsageError(f"--env={name}: {type(error).__name__}: {error}") from error


def _of_kind(name: str, config: Mapping[str, Any]) -> Environment:
    kind, _, rest = name.partition(":")
    if not rest:
        places = f"gymnasium:{name}, dm_control:cheetah/run, or module:function"
        raise UsageError(f"--env={name}: say where it comes from: {places}")
    if kind == "gymnasium":
        with needs("record", f"--env={name} needs gymnasium"):
            import gymnasium
        return GymEnvironment(gymnasium.make(rest, disable_env_checker=True, **config))
    if kind == "gym":
        with needs("record", f"--env={name} needs the package gym"):
            import gym  # the old package, which the user installs
        # Registered environments may share objects, as those of rtbgym do.
        return GymEnvironment(copy.deepcopy(gym.make(rest, **config)))
    with needs("demo", f"--env={name} needs dm_control"):
        os.environ.setdefault("MUJOCO_GL", "disable")  # physics only, unless the user wants pixels
        from dm_control import suite
    domain, _, task = rest.partition("/")
    return DmEnvironment(suite.load(domain, task, task_kwargs={"random": 0, **config}), _reseed_suite)


def _reseed_suite(env: Any, seed: int) -> None:
    """Reseeds a dm_control task, all of whose random numbers come from one RandomState."""
    env.task.random.seed(seed)


def _of_factory(name: str, config: Mapping[str, Any]) -> NamedEnvironment:
    """Creates an environment with `module:function`, or copies one passed as an object."""
    factory: Any = resolve(name, "--env", callable_only=False)
    if isinstance(name, ByValue) and not callable(factory):
        return NamedEnvironment(as_environment(copy.deepcopy(factory), name), name)
    if not callable(factory):
        raise UsageError(f"--env={name} is a {type(factory).__name__}; expected a function that creates an environment")
    hint = "a factory takes the arguments of --env_config, and optionally a seed"

    seeded = "seed" in inspect.signature(factory).parameters

    def make(seed: int) -> Environment:
        more = {"seed": seed} if seeded else {}
        return as_environment(call_factory(factory, f"--env={name}", hint, **config, **more), name, seeded=seeded)

    return NamedEnvironment(make(0), name, make if seeded else None)


def as_environment(env: Any, name: str, *, seeded: bool = False) -> Environment:
    """Wraps an environment of gymnasium, gym, or dm_env; returns an `Environment` unchanged.

    Args:
      env: the environment.
      name: the environment's name, for messages.
      seeded: whether it was created for one seed.

    Raises:
      UsageError: it is none of these, or cannot be seeded.
    """
    if isinstance(env, Environment):
        return env
    if hasattr(env, "observation_space") and hasattr(env, "action_space"):
        return GymEnvironment(env)
    if hasattr(env, "observation_spec") and hasattr(env, "action_spec"):
        random = getattr(getattr(env, "task", None), "random", None)
        if seeded:
            return DmEnvironment(env, None)
        if isinstance(random, np.random.RandomState):
            return DmEnvironment(env, _reseed_suite)
        raise UsageError(
            f"--env={name}: its episodes cannot be seeded; add an argument `seed` to the factory, which is then called "
            "for each episode"
        )
    raise UsageError(
        f"--env={name} returned a {type(env).__name__}, which is neither a gymnasium environment (with "
        "observation_space and action_space) nor a dm_env one (with observation_spec and action_spec)"
    )


def observed_dtypes(environment: Environment) -> tuple[str, ...]:
    """The dtypes of the leaves of an observation: wider than declared if the environment returns wider floats."""
    values = environment.observation.flatten(environment.reset(0))
    dtypes = []
    for leaf, value in zip(environment.observation.leaves, values, strict=True):
        given = np.asarray(value).dtype
        wider = leaf.kind == "box" and given.kind == "f" and np.dtype(leaf.dtype).kind == "f"
        dtypes.append(np.promote_types(given, leaf.dtype).name if wider else leaf.dtype)
    return tuple(dtypes)
