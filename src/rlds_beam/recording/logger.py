"""EnvLogger around an environment: it calls `step_fn` after each step and passes the step to our backend.

    Recorded          the environment as EnvLogger expects it (dm_env), from the first step to record
    EnvLogger         DeepMind's EnvLogger if installed, else `Logger`, which makes the same calls
    EpisodeBuffer     the backend: the steps of an episode as columns, aligned as in RLDS

Both loggers give the same recording; a test compares the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from rlds_beam.episodes.columns import find_changed, make_violation
from rlds_beam.episodes.schema import FIRST, LAST, MID, episode_flags
from rlds_beam.errors import UsageError
from rlds_beam.recording.environments import Environment, Outcome
from rlds_beam.recording.spaces import Structure, to_spec
from rlds_beam.typing import Array

StepFn: TypeAlias = "Callable[[Any, Any, Any], Any]"

_ROOM = 256
"""Initial capacity of a buffer, in steps."""


class TimeStep(NamedTuple):
    """dm_env's `TimeStep`."""

    step_type: int
    reward: Any
    discount: Any
    observation: Any

    def first(self) -> bool:
        return self.step_type == FIRST

    def mid(self) -> bool:
        return self.step_type == MID

    def last(self) -> bool:
        return self.step_type == LAST


class RecordedEnvironment:
    """A dm_env view of an environment during recording.

    The caller sets the first observation of the recording (`begin`), and before each step the environment's action for
    the stored one (`for_env`).

    Attributes:
      for_env: the environment's action for the next step.
      outcome: the outcome of the last step.
    """

    def __init__(self, environment: Environment):
        self._environment = environment
        self._first: Any = None
        self._left = 0
        self.for_env: Any = None
        self.outcome: Outcome | None = None

    def begin(self, observation: Any, most_steps: int) -> None:
        """Starts the next episode at this observation, and cuts it off after this many steps."""
        self._first, self._left, self.outcome = observation, most_steps, None

    def reset(self) -> TimeStep:
        return TimeStep(FIRST, None, None, self._first)

    def step(self, action: Any) -> TimeStep:
        outcome = self._environment.step(self.for_env)
        self._left -= 1
        self.outcome = outcome
        last = outcome.terminated or outcome.truncated or not self._left
        return TimeStep(LAST if last else MID, outcome.reward, outcome.discount, outcome.observation)

    def observation_spec(self) -> Any:
        return to_spec(self._environment.observation, "observation")

    def action_spec(self) -> Any:
        return to_spec(self._environment.action, "action")

    def reward_spec(self) -> Any:
        from dm_env import specs

        return specs.Array((), np.float64, "reward")

    def discount_spec(self) -> Any:
        from dm_env import specs

        return specs.BoundedArray((), np.float64, 0, 1, "discount")

    def close(self) -> None:
        self._environment.close()


class EpisodeBuffer:
    """The steps of an episode as columns; a backend of EnvLogger.

        call              record_step(reset)   record_step(a0)      record_step(a1, last)
        step              0                    1                    2
        observation       o0                   o1                   o2
        action, reward    a0, r0               a1, r1               zeros                     as RLDS has it

    Attributes:
      metadata: the dataset's metadata, completed by EnvLogger.
      episode_metadata: the episode's metadata.
    """

    def __init__(
        self, observation: Structure, action: Structure, extra: Mapping[str, tuple[str, tuple[int, ...]]], reward: str
    ):
        self._structures = observation, action
        self._observations = [_Column(leaf.dtype, leaf.shape) for leaf in observation.leaves]
        self._actions = [_Values(leaf.dtype, leaf.shape) for leaf in action.leaves]
        self._reward, self._discount = _Values(reward, ()), _Values("float32", ())
        self._extra = {path: _Values(dtype, shape) for path, (dtype, shape) in extra.items()}
        self._room = 0
        self._steps = 0
        self._last = self._terminal = False
        self.metadata: Mapping[str, Any] = {}
        self.episode_metadata: Mapping[str, Any] = {}

    def __call__(self, metadata: Mapping[str, Any]) -> EpisodeBuffer:
        """Returns itself: EnvLogger calls its backend factory with the dataset's metadata."""
        self.metadata = metadata
        return self

    def record_step(self, data: Any, is_new_episode: bool) -> None:
        timestep, action, custom = data
        if is_new_episode:
            self._begin()
        t = self._steps
        if t == self._room:
            self._grow()
        of_observation, of_action = self._structures
        for column, value in zip(self._observations, of_observation.flatten(timestep.observation)):  # noqa: B905
            if column.unchecked:
                column.check(value)
            column.values[t] = value  # a copy, because the environment may reuse its array
        self._steps = t + 1
        if is_new_episode:
            return
        for values, value in zip(self._actions, of_action.flatten(action)):  # noqa: B905
            values.append(value)
        self._reward.append(timestep.reward)
        self._discount.append(timestep.discount)
        for path, value in custom.items():
            self._extra[path].append(value)
        if timestep.last():
            self._last, self._terminal = True, timestep.discount == 0

    def set_episode_metadata(self, data: Mapping[str, Any]) -> None:
        self.episode_metadata = data

    def close(self) -> None:
        """The buffer holds only memory."""

    def columns(self) -> dict[str, Array]:
        """The columns of the episode so far: T steps, the last one without an action.

        Raises:
          UsageError: a value does not have the shape or dtype that the environment declares.
        """
        steps = self._steps
        observed = _paths("observation", self._structures[0], self._observations)
        taken = _paths("action", self._structures[1], self._actions)
        others = {**taken, "reward": self._reward, "discount": self._discount, **self._extra}
        return {
            **{path: column.values[:steps].copy() for path, column in observed.items()},
            **{path: values.column(path, steps) for path, values in others.items()},
            **episode_flags(steps, last=self._last, terminal=self._terminal),
        }

    def _begin(self) -> None:
        self._steps, self._last, self._terminal = 0, False, False
        for values in (*self._actions, self._reward, self._discount, *self._extra.values()):
            values.clear()

    def _grow(self) -> None:
        self._room = max(_ROOM, 2 * self._room)
        for column in self._observations:
            column.grow(self._room)


class _Column:
    """A buffer for the observations of an episode.

    Attributes:
      values: the buffer, [room, ...].
      unchecked: whether the next value must be checked.
    """

    def __init__(self, dtype: str, shape: tuple[int, ...]):
        self.dtype, self.shape = np.dtype("O" if dtype == "string" else dtype), shape
        self.values = np.empty((0, *shape), self.dtype)
        self.unchecked = True

    def grow(self, room: int) -> None:
        values = np.zeros((room, *self.shape), self.dtype)
        values[: len(self.values)] = self.values
        self.values = values

    def check(self, value: Any) -> None:
        """Checks the first value; if its dtype differs, checks all values, which storing may round but not change."""
        self.unchecked = False
        if self.dtype != object:
            array = np.asarray(value)
            _check(array, self.dtype, self.shape, "an observation")
            self.unchecked = array.dtype != self.dtype
            cast_recorded(array, self.dtype, "an observation of the environment")


class _Values(list[Any]):
    """The recorded values of another field, one for each step with an action."""

    def __init__(self, dtype: str, shape: tuple[int, ...]):
        super().__init__()
        self._dtype, self._shape, self._text = np.dtype("O" if dtype == "string" else dtype), shape, dtype == "string"

    def column(self, path: str, steps: int) -> Array:
        """The values as an array of this many steps, of which the last one is zero or empty."""
        if self._text:
            text = [v.encode() if isinstance(v, str) else v for v in self]
            return np.array([*text, b"", None], object)[:-1]
        column = np.zeros((steps, *self._shape), self._dtype)
        try:
            values = np.asarray(self)
        except ValueError:  # different shapes
            values = np.asarray(self, object)
        if self:
            _check(
                values[0] if values.dtype == object else values[:1].reshape(values.shape[1:]),
                self._dtype,
                self._shape,
                path,
            )
            column[:-1] = cast_recorded(values, self._dtype, path) if values.dtype != object else values
        return column


def cast_recorded(values: Array, dtype: np.dtype[Any], what: str) -> Array:
    """Casts values to the recorded dtype, which may round them.

    Raises:
      UsageError: the cast would change a value: it is out of range, or its fraction would be lost.
    """
    if values.dtype == dtype:
        return values
    with np.errstate(all="ignore"):
        cast = values.astype(dtype)
        bad = find_changed(values, cast, rounding=True)
    if bad.any():
        raise UsageError(f"{what}: {make_violation('cast', what, values, cast, bad).detail}")
    return cast


def _check(array: Any, dtype: Any, shape: tuple[int, ...], what: str) -> None:
    array = np.asarray(array)
    kinds = {"b": "b", "i": "biu", "u": "biu", "f": "biuf"}[dtype.kind]
    if array.shape != shape or array.dtype.kind not in kinds:
        raise UsageError(
            f"the environment returned {what} of {array.dtype} {array.shape}, but declares {dtype} {shape}"
        )


def _paths(name: str, structure: Structure, columns: Sequence[Any]) -> dict[str, Any]:
    pairs = zip(structure.leaves, columns, strict=True)
    return {f"{name}/{leaf.path}" if leaf.path else name: column for leaf, column in pairs}


class Logger:
    """Replaces EnvLogger if it is not installed: calls `step_fn` and the backend after each step."""

    def __init__(self, env: Any, step_fn: StepFn, metadata: dict[str, Any], backend: Any):
        self._env, self._step_fn = env, step_fn
        self._backend = backend(metadata=metadata)

    def reset(self) -> Any:
        timestep = self._env.reset()
        self._backend.record_step((timestep, None, self._step_fn(timestep, None, self._env)), True)
        return timestep

    def step(self, action: Any) -> Any:
        timestep = self._env.step(action)
        self._backend.record_step((timestep, action, self._step_fn(timestep, action, self._env)), False)
        return timestep

    def close(self) -> None:
        self._env.close()


def has_envlogger() -> bool:
    """Whether EnvLogger is installed."""
    try:
        import envlogger  # noqa: F401
    except ImportError:
        return False
    return True


def make_logger(
    env: RecordedEnvironment, step_fn: StepFn, metadata: dict[str, Any], backend: EpisodeBuffer, *, envlogger: bool
) -> Any:
    """Wraps an environment in EnvLogger, or in `Logger`, which makes the same calls."""
    if not envlogger:
        return Logger(env, step_fn, metadata, backend)
    from envlogger import environment_logger

    return environment_logger.EnvLogger(env, step_fn=step_fn, metadata=metadata, backend=backend)
