"""Metadata from simulators: the rate, and the names of the actuators.

Packages are recognized by the names of classes and modules, so none of them is imported.
"""

from __future__ import annotations

import math
from typing import Any

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
    return _if_all([_actuator(model, i) for i in range(model.nu)])


def _actuator(model: Any, index: int) -> str:
    """The name of an actuator, or else of the joint that it moves."""
    name = model.actuator(index).name
    if not name and model.actuator_trntype[index] == _JOINT_TRANSMISSION:
        name = model.joint(model.actuator_trnid[index, 0]).name
    return str(name)


def below_dm_wrappers(env: Any) -> Any:
    """The environment inside the wrappers of dm_control's suite, all of which take one step at a time."""
    while type(env).__module__.startswith("dm_control.suite.wrappers."):
        env = env._env
    return env


def dm_rate(env: Any) -> float | None:
    """Steps per second of an environment of dm_control, whose class knows its control timestep."""
    return _compute_rate(env.control_timestep()) if hasattr(type(env), "control_timestep") else None


def dm_actuators(env: Any) -> list[str]:
    """The names of the values of an action of dm_control's suite; empty if its task takes other actions."""
    task = env.task if hasattr(type(env), "control_timestep") else None  # not of what an unknown wrapper wraps
    base = "dm_control.suite.base"
    if any(
        getattr(getattr(type(task), name, None), "__module__", "") != base for name in ("action_spec", "before_step")
    ):
        return []
    model = env.physics.model
    return _if_all([str(model.id2name(i, "actuator")) for i in range(model.nu)])


def _if_all(names: list[str]) -> list[str]:
    return names if all(names) else []


def _compute_rate(period: Any) -> float | None:
    """Steps per second of a step of `period` seconds, without the error of the division; None if it is not one."""
    try:
        rate = round(1 / float(period), 6)
    except (TypeError, ValueError, ZeroDivisionError):
        return None
    return rate if math.isfinite(rate) and 0 < rate <= 1_000_000 else None
