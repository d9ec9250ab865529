"""Behavior policies, which choose the recorded actions."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from rlds_beam.episodes.episode import Episode
from rlds_beam.errors import UsageError
from rlds_beam.recording.policy_distributions import Actions, Distribution, Independent, Propensity, safe_log
from rlds_beam.recording.spaces import SpaceLeaf, Structure
from rlds_beam.recording.states import State
from rlds_beam.typing import Array
from rlds_beam.user_functions import configurable


@configurable
class BehaviorPolicy(abc.ABC):
    """Samples actions from a distribution that depends on the observation alone, or also on a state.

    A policy is pure: the same observations give the same distribution in any process and batch, up to rounding. Its
    random numbers come from outside, so an episode does not depend on those that run next to it. It must be picklable.

    Attributes:
      name: the name of the policy, stored in the episodes.
      has_propensity: whether the propensity of an action is known.
    """

    name: str
    has_propensity: ClassVar[bool] = True

    @abc.abstractmethod
    def bind(self, observation: Structure, action: Structure) -> None:
        """Binds the policy to an environment's observations and actions; called first.

        Raises:
          UsageError: the policy cannot act in this environment.
        """

    @property
    def randomness(self) -> tuple[int, int]:
        """The number of uniform and of normal random numbers that an action takes."""
        return 0, 0

    @abc.abstractmethod
    def distribution(self, observations: Any) -> Distribution:
        """The distribution of actions for N observations: an array (N, ...), or arrays nested like an observation."""

    def initial_state(self) -> State | None:
        """The state at the start of an episode; None for a policy without a state."""
        return None

    def advance(self, observations: Any, state: State) -> tuple[Distribution, State]:
        """`distribution` for a policy with a state: takes the states of N environments and returns the next ones."""
        raise UsageError(f"{self.name} has no state")

    def replay(self, observations: Any, lengths: Array, state: State) -> Distribution:
        """`advance` over concatenated episodes, each of which starts with its own state."""
        raise UsageError(f"{self.name} has no state")


class Acted(NamedTuple):
    """The actions of a policy for N running episodes.

    Attributes:
      stored: the actions to store, (N, ...) for each leaf.
      propensity: the propensity of the stored actions.
      for_env: the actions for the environments.
      state: the state after the step; unchanged for a policy without a state.
    """

    stored: Actions
    propensity: Propensity
    for_env: Actions
    state: State | None = None


class HistoryPolicy(BehaviorPolicy):
    """A policy that depends on the whole episode so far, with its own random numbers for each step."""

    @abc.abstractmethod
    def act(self, episodes: Sequence[Episode], state: State | None = None) -> Acted:
        """The next actions for running episodes, whose last step holds the current observation."""

    @abc.abstractmethod
    def propensity(self, episodes: Sequence[Episode]) -> Propensity:
        """The propensity of all recorded actions of finished episodes, concatenated; starts from the initial state."""

    def distribution(self, observations: Any) -> Distribution:
        raise UsageError(f"{self.name} is not a function of the observation alone")


class Random(BehaviorPolicy):
    """`random`: uniform over the action space; normal or exponential in unbounded dimensions, as in gymnasium."""

    def __init__(self, name: str = "random"):
        self.name = name
        self._action: Structure | None = None

    def bind(self, observation: Structure, action: Structure) -> None:
        for leaf in action.leaves:
            if leaf.kind == "text":
                raise UsageError(f"--policy={self.name}: the action is text, which cannot be sampled")
        self._action = action

    @property
    def randomness(self) -> tuple[int, int]:
        return sum(leaf.size for leaf in self._leaves), sum(_unbounded(leaf) for leaf in self._leaves)

    @property
    def _leaves(self) -> tuple[SpaceLeaf, ...]:
        assert self._action is not None, "bind comes first"
        return self._action.leaves

    def distribution(self, observations: Any) -> Distribution:
        return Independent([(UniformOver(leaf), leaf.size, _unbounded(leaf)) for leaf in self._leaves])


def _unbounded(leaf: SpaceLeaf) -> int:
    """The number of normal random numbers that a leaf takes."""
    return leaf.size if leaf.kind == "box" and np.dtype(leaf.dtype).kind == "f" else 0


class UniformOver(Distribution):
    """The uniform distribution over a leaf of an action space."""

    def __init__(self, leaf: SpaceLeaf):
        self._leaf = leaf
        if leaf.kind == "box":
            self._low, self._high = np.asarray(leaf.low).reshape(-1), np.asarray(leaf.high).reshape(-1)
            self._below, self._above = np.isfinite(self._low), np.isfinite(self._high)
        else:
            self._sizes = np.asarray(leaf.sizes, np.int64).reshape(-1)
            self._start = np.broadcast_to(leaf.start, np.shape(leaf.sizes)).reshape(-1)
        self._real = leaf.kind == "box" and np.dtype(leaf.dtype).kind == "f"

    def sample(self, uniform: Array, normal: Array) -> Actions:
        if not self._real:
            low = self._low if self._leaf.kind == "box" else self._start
            number = self._high - self._low + 1 if self._leaf.kind == "box" else self._sizes
            flat = low + np.minimum((uniform * number).astype(np.int64), number - 1)
        else:
            low, high = np.where(self._below, self._low, 0), np.where(self._above, self._high, 0)
            exponential = -np.log1p(-uniform)
            flat = np.select(
                [self._below & self._above, self._below, self._above],
                [low + uniform * (high - low), low + exponential, high - exponential],
                normal,
            )
        return (flat.reshape(len(uniform), *self._leaf.shape),)

    def propensity(self, actions: Actions) -> Propensity:
        flat = np.asarray(actions[0], np.float64).reshape(len(actions[0]), -1)
        logs = (self._log_density(flat) if self._real else np.broadcast_to(self._log_choice(), flat.shape)).sum(axis=1)
        return Propensity(np.exp(logs), logs)

    def _log_choice(self) -> Array:
        number = self._high - self._low + 1.0 if self._leaf.kind == "box" else self._sizes
        return -safe_log(np.asarray(number, np.float64))

    def _log_density(self, flat: Array) -> Array:
        low, high = np.where(self._below, self._low, 0), np.where(self._above, self._high, 0)
        both = self._below & self._above
        return np.select(
            [np.broadcast_to(of, flat.shape) for of in (both, self._below, self._above)],
            [np.broadcast_to(-safe_log(np.where(both, high - low, 1.0)), flat.shape), low - flat, flat - high],
            -flat * flat / 2 - np.log(2 * np.pi) / 2,
        )
