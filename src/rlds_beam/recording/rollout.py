"""Rolls out a policy in several environments together, so that each step is one batch of observations.

Random numbers come from one stream per policy, dataset, and trajectory, independent of the worker.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.errors import RldsBeamError, UsageError
from rlds_beam.recording.bases import State, stack_states
from rlds_beam.recording.environments import Environment, Outcome
from rlds_beam.recording.episode_buffer import EpisodeBuffer, cast_recorded
from rlds_beam.recording.policies import Actions, BehaviorPolicy, HistoryPolicy, Propensity
from rlds_beam.recording.spaces import SpaceLeaf
from rlds_beam.typing import Array

_ENVIRONMENT, _ACTIONS, _WARM_UP = range(3)
_BLOCK = 64
"""Number of steps whose random numbers are drawn together."""


class Address(NamedTuple):
    """Identifies a trajectory by the numbers of its policy, dataset, and trajectory, each counted from 0."""

    policy: int
    dataset: int
    trajectory: int


def _stream(seed: int, address: Address, of: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(seed, spawn_key=(*address, of))


def environment_seed(seed: int, address: Address) -> int:
    """The environment's seed, less than 2**31."""
    return int(_stream(seed, address, _ENVIRONMENT).generate_state(1)[0] >> 1)


def warm_up(seed: int, address: Address, minimum: int, maximum: int) -> int:
    """The number of steps before the first recorded one: from `minimum` to below `maximum`."""
    if maximum <= minimum:
        return minimum
    return int(np.random.default_rng(_stream(seed, address, _WARM_UP)).integers(minimum, maximum))


class Noise:
    """The random numbers for the actions of a trajectory, step by step."""

    def __init__(self, seed: int, address: Address, uniform: int, normal: int):
        self._random = np.random.Generator(np.random.PCG64(_stream(seed, address, _ACTIONS)))
        self._widths = uniform, normal
        self._uniform = self._normal = np.empty((0, 0))
        self._used = _BLOCK

    def into(self, uniform: Array, normal: Array, row: int) -> None:
        """Writes the next step's random numbers into row `row` of arrays (N, U) and (N, V)."""
        used = self._used
        if used == _BLOCK:
            self._uniform = self._random.random((_BLOCK, self._widths[0])) if self._widths[0] else self._uniform
            self._normal = self._random.standard_normal((_BLOCK, self._widths[1])) if self._widths[1] else self._normal
            used = 0
        if self._widths[0]:
            uniform[row] = self._uniform[used]
        if self._widths[1]:
            normal[row] = self._normal[used]
        self._used = used + 1


PROPENSITY, LOG_PROPENSITY = "propensity", "log_propensity"
INFO = "info"


@dataclasses.dataclass(frozen=True)
class RolloutSettings:
    """The settings of a rollout.

    Attributes:
      seed: the seed of all random numbers.
      windows: whether a trajectory has a fixed number of steps, across episode boundaries (`obtain_steps`); otherwise
        it is an episode.
      step_per_trajectory: the steps of a window, or the maximum steps of an episode; None for no maximum.
      minimum_rollout_length, maximum_rollout_length: the range of the number of steps skipped before a window; the
        maximum is exclusive.
      single_interaction: whether each window starts where the previous one ended.
      max_episode_steps: truncates episodes after this many steps, in addition to the environment's limit; None never.
      record_unclipped_action: stores actions as sampled; the environment still receives them clipped.
      info: the fields of the environment's info to record: name -> (dtype, shape).
      observed: the dtypes of the leaves of an observation.
      reward: the dtype of the reward.
      environments: the number of environments stepped together.
    """

    seed: int
    windows: bool = False
    step_per_trajectory: int | None = None
    minimum_rollout_length: int = 0
    maximum_rollout_length: int = 0
    single_interaction: bool = False
    max_episode_steps: int | None = None
    record_unclipped_action: bool = False
    info: Mapping[str, tuple[str, tuple[int, ...]]] = dataclasses.field(default_factory=dict)
    observed: tuple[str, ...] = ()
    reward: str = "float32"
    environments: int = 16


class RecordedEpisode(NamedTuple):
    """A recorded episode.

    Attributes:
      trajectory: the number of its trajectory.
      part: the part of the window, which the ends of the environment's episodes cut into parts: 0, 1, ...
      age: the steps of the environment's episode before the first recorded one.
      end: `terminated`; `truncated` by the environment or `max_episode_steps`; `cut` if the recording ended first.
      columns: the columns of its T steps.
      state: the policy's state before the first action; None for a policy without a state.
    """

    trajectory: int
    part: int
    age: int
    end: str
    columns: dict[str, Array]
    state: State | None = None


def info_fields(info: Mapping[str, Any], wanted: Sequence[str] = ()) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The fields of an environment's info that can be recorded: numbers, arrays of numbers, and text."""
    fields: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, value in info.items():
        if wanted and name not in wanted:
            continue
        if isinstance(value, str):
            fields[name] = ("string", ())
        elif (array := np.asarray(value)).dtype.kind in "biuf":
            wide = {"i": "int64", "u": "int64", "f": "float64", "b": "bool"}[array.dtype.kind]
            fields[name] = (wide if array.ndim == 0 else array.dtype.name, array.shape)
    return fields


_NO_LIMIT = 1 << 60
_AHEAD = 8
"""Maximum number of trajectories per environment held until earlier ones are finished."""


def roll_out(
    make: Callable[[], Environment],
    policy: BehaviorPolicy,
    settings: RolloutSettings,
    addresses: Sequence[Address],
) -> Iterator[RecordedEpisode]:
    """Rolls out trajectories and yields the recorded episodes in order.

    Args:
      make: creates an environment.
      policy: a policy bound to such an environment.
      settings: the settings of the rollout.
      addresses: the addresses of the trajectories.
    """
    count = 1 if settings.single_interaction else min(settings.environments, len(addresses))
    slots = [_Slot(make(), policy, settings) for _ in range(count)]
    try:
        yield from _in_order(slots, policy, settings, addresses)
    finally:
        for slot in slots:
            slot.environment.close()


def _in_order(
    slots: list[_Slot], policy: BehaviorPolicy, settings: RolloutSettings, addresses: Sequence[Address]
) -> Iterator[RecordedEpisode]:
    acting = _Acting(policy, slots[0].environment, settings, len(slots))
    waiting = collections.deque(enumerate(addresses))
    finished: dict[int, list[RecordedEpisode]] = {}
    given = 0
    idle, active = collections.deque(slots), list[_Slot]()
    while waiting or active:
        while idle and waiting and waiting[0][0] - given < _AHEAD * len(slots):
            slot = idle.popleft()
            slot.start(*waiting.popleft())
            active.append(slot)
        acting.act(active)
        for slot in [slot for slot in active if slot.done]:
            finished[slot.number] = slot.recordings
            active.remove(slot)
            idle.append(slot)
        while given in finished:
            yield from finished.pop(given)
            given += 1


class _Acting:
    """Chooses the next actions of several environments together."""

    def __init__(self, policy: BehaviorPolicy, environment: Environment, settings: RolloutSettings, rows: int):
        self._policy, self._unclipped = policy, settings.record_unclipped_action
        self._observation, self._action = environment.observation, environment.action
        self._rows = [
            np.empty((rows, *leaf.shape), object if leaf.kind == "text" else leaf.dtype)
            for leaf in self._observation.leaves
        ]
        uniform, normal = policy.randomness
        self._uniform, self._normal = np.empty((rows, uniform)), np.empty((rows, normal))

    def act(self, slots: Sequence[_Slot]) -> None:
        """Takes one step in each environment."""
        if isinstance(self._policy, HistoryPolicy):
            acted = self._policy.act([slot.running for slot in slots], _states(slots))
            _keep(slots, acted.state)
            self._step(slots, acted.stored, acted.for_env, acted.propensity)
        else:
            self._step(slots, *self._choose(slots))

    def _choose(self, slots: Sequence[_Slot]) -> tuple[Actions, Actions, Propensity | None]:
        """A memoryless policy's actions to store, its actions for the environments, and the propensities."""
        count = len(slots)
        for row, slot in enumerate(slots):
            for into, value in zip(self._rows, slot.observation):  # noqa: B905
                into[row] = value
            slot.noise.into(self._uniform, self._normal, row)
        observations = self._observation.build([rows[:count] for rows in self._rows])
        state = _states(slots)
        if state is None:
            distribution = self._policy.distribution(observations)
        else:
            distribution, state = self._policy.advance(observations, state)
            _keep(slots, state)
        sampled = distribution.sample(self._uniform[:count], self._normal[:count])
        self._check_actions(sampled, count)
        pairs = list(zip(self._action.leaves, sampled, strict=True))
        stored = tuple(_to_stored(leaf, values, clip=not self._unclipped) for leaf, values in pairs)
        for_env = stored
        if self._unclipped:
            for_env = tuple(_to_stored(leaf, v, clip=True) for leaf, v in zip(self._action.leaves, stored, strict=True))
        return stored, for_env, distribution.propensity(stored) if self._policy.has_propensity else None

    def _check_actions(self, actions: Actions, count: int) -> None:
        for leaf, values in zip(self._action.leaves, actions, strict=True):
            if values.shape != (count, *leaf.shape):
                raise UsageError(
                    f"{self._policy.name} returned actions of shape {values.shape} for {count} observations; expected "
                    f"{(count, *leaf.shape)}"
                )

    def _step(self, slots: Sequence[_Slot], stored: Actions, for_env: Actions, propensity: Propensity | None) -> None:
        self._check_actions(stored, len(slots))
        custom: list[dict[str, Any]] = [{}] * len(slots)
        if propensity is not None:
            values, logs = propensity
            custom = [{PROPENSITY: v, LOG_PROPENSITY: g} for v, g in zip(values.tolist(), logs.tolist(), strict=True)]
        rows = list(zip(*map(_rows, stored), strict=True))
        rows_for_env = rows if for_env is stored else list(zip(*map(_rows, for_env), strict=True))
        for row, slot in enumerate(slots):
            slot.act(rows[row], rows_for_env[row], custom[row])


def _states(slots: Sequence[_Slot]) -> State | None:
    """The policy's state in each environment; None for a policy without a state."""
    states = [slot.state for slot in slots if slot.state is not None]
    return stack_states(states) if states else None


def _keep(slots: Sequence[_Slot], state: State | None) -> None:
    if state is not None:
        for row, slot in enumerate(slots):
            slot.state = tuple(leaf[row] for leaf in state)


def _rows(values: Array) -> Any:
    """The actions one by one, with integers as Python's int, which every environment accepts."""
    return values.tolist() if values.ndim == 1 and values.dtype.kind in "iu" else values


def _to_stored(leaf: SpaceLeaf, values: Array, *, clip: bool) -> Array:
    """Actions in the dtype to store, clipped to the bounds if `clip`."""
    if clip and leaf.kind == "box":
        values = np.clip(values, leaf.low, leaf.high)
    return cast_recorded(values, np.dtype(leaf.dtype), "an action of the policy")


class _Slot:
    """One environment and its recording.

    Attributes:
      environment: the environment.
      noise: the random numbers of its actions.
      observation: the last observation, by leaf.
      state: the policy's state before its next action; None for a policy without a state.
      number: the index of the trajectory in this rollout.
      recordings: the trajectory's recorded episodes so far.
      done: whether the trajectory is finished.
    """

    def __init__(self, environment: Environment, policy: BehaviorPolicy, settings: RolloutSettings):
        self.environment, self._settings, self._randomness = environment, settings, policy.randomness
        extra = {f"{INFO}/{name}": field for name, field in settings.info.items()}
        if policy.has_propensity:
            extra |= dict.fromkeys((PROPENSITY, LOG_PROPENSITY), ("float64", ()))
        self._initial_state = self.state = self._state_at_begin = policy.initial_state()
        self._buffer = EpisodeBuffer(environment.observation, environment.action, extra, settings.reward)
        self._began = self._ended = self.done = False
        self._age = self._age_at_begin = 0
        self.number = 0
        self.recordings: list[RecordedEpisode] = []

    def start(self, number: int, address: Address) -> None:
        """Starts a trajectory."""
        settings, first = self._settings, not (self._settings.single_interaction and self._began)
        self.number, self._address, self.recordings, self.done = number, address, [], False
        self._part = self._steps = 0
        if first:
            self.noise = Noise(settings.seed, address, *self._randomness)
            self._reset(environment_seed(settings.seed, address))
            self._began = True
        elif self._ended:
            self._reset(None)
        self._warm_up = 0
        if settings.windows and not settings.single_interaction:
            between = settings.minimum_rollout_length, settings.maximum_rollout_length
            self._warm_up = warm_up(settings.seed, address, *between)
        if not self._warm_up:
            self._begin()

    @property
    def running(self) -> Episode:
        """The episode so far, with a key that is the same in every run."""
        policy, dataset, trajectory = self._address
        key = EpisodeKey(f"seed {self._settings.seed}/policy {policy}/dataset {dataset}", "train", 0, trajectory)
        return Episode(key, self._buffer.columns())

    def act(self, stored: Sequence[Any], for_env: Sequence[Any], custom: dict[str, Any]) -> None:
        """Takes a step with an action: the stored one, and the one for the environment."""
        outcome = self.environment.step(self.environment.action.build(for_env))
        self._age += 1
        self._observation(outcome.observation)
        if not self._warm_up:
            self._steps += 1
            self._left -= 1
            last = outcome.terminated or outcome.truncated or not self._left
            self._buffer.add(stored, outcome, self.observation, {**custom, **self._info_of(outcome)}, last)
        truncated = outcome.truncated or self._age == self._settings.max_episode_steps
        self._ended = outcome.terminated or truncated
        if self._warm_up:
            self._warm_up -= 1
            if self._ended:
                self._reset(None)
            if not self._warm_up:
                self._begin()
            return
        full = self._steps == self._settings.step_per_trajectory
        if self._ended or full:
            self._finish("terminated" if outcome.terminated else "truncated" if truncated else "cut", full)

    def _finish(self, end: str, full: bool) -> None:
        """Saves the recorded part; the trajectory continues if it is a window with steps left."""
        columns = self._buffer.columns()
        self.recordings.append(
            RecordedEpisode(
                self._address.trajectory, self._part, self._age_at_begin, end, columns, self._state_at_begin
            )
        )
        self.done = full or not self._settings.windows
        if not self.done:
            self._reset(None)
            self._part += 1
            self._begin()

    def _begin(self) -> None:
        """Starts recording at the current observation."""
        limits = [self._settings.max_episode_steps, self._settings.step_per_trajectory]
        left = [limit - done for limit, done in zip(limits, (self._age, self._steps), strict=True) if limit is not None]
        self._age_at_begin, self._state_at_begin = self._age, self.state
        self._left = min(left, default=_NO_LIMIT)
        self._buffer.begin(self.observation)

    def _reset(self, seed: int | None) -> None:
        self._observation(self.environment.reset(seed))
        self._age, self._ended, self.state = 0, False, self._initial_state

    def _observation(self, nested: Any) -> None:
        self.observation = self.environment.observation.flatten(nested)

    def _info_of(self, outcome: Outcome) -> dict[str, Any]:
        """The fields of the environment's info to record."""
        info = outcome.info
        try:
            return {f"{INFO}/{name}": info[name] for name in self._settings.info}
        except KeyError as error:
            raise RldsBeamError(
                f"the environment's info lacks {error} at a step; it has {', '.join(map(str, info)) or 'nothing'}: "
                "name the keys that it always has with --info_keys"
            ) from error
