"""Behavior policies, which choose the recorded actions, and the distributions of their actions."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np

from rlds_beam.episodes.episode import Episode
from rlds_beam.errors import UsageError, needs
from rlds_beam.recording.bases import State
from rlds_beam.recording.spaces import SpaceLeaf, Structure
from rlds_beam.typing import Array
from rlds_beam.user_functions import configurable

Actions: TypeAlias = "tuple[Array, ...]"
"""N actions: an array (N, ...) for each leaf of the action."""

TIED = 1e-5
"""Relative tolerance below which Q values count as tied, because their order may change in another batch."""

_LOG_SQRT_2PI = float(np.log(2 * np.pi) / 2)


class Propensity(NamedTuple):
    """Probabilities of N actions (densities for continuous actions) and their logarithms; float64 (N,)."""

    value: Array
    log: Array


class Distribution(abc.ABC):
    """A distribution of actions for each of N observations."""

    @abc.abstractmethod
    def sample(self, uniform: Array, normal: Array) -> Actions:
        """Samples N actions from random numbers: uniform in [0, 1) (N, U), and standard normal (N, V)."""

    @abc.abstractmethod
    def propensity(self, actions: Actions) -> Propensity:
        """The propensity of N actions, sampled or given."""

    def may_be(self, actions: Actions, recorded: Array) -> Array:
        """Whether the recorded propensities match up to rounding in another batch; bool (N,)."""
        return np.isclose(self.propensity(actions).value, recorded, rtol=1e-4, atol=0)


def safe_log(value: Array) -> Array:
    """The logarithm; -inf for 0."""
    with np.errstate(divide="ignore"):
        logs: Array = np.log(value)
    return logs


class EpsilonGreedy(Distribution):
    """Pr[a] = (1 - epsilon) [a is greedy] + epsilon / n.

    Args:
      greedy: the greedy action for each observation, int (N,), counted from 0.
      epsilon: the probability of a random action.
      n: the number of actions.
      start: the number of the first action.
      tied: the actions as good as the greedy one up to rounding, bool (N, n); None without a Q function.
    """

    uniform = 2

    def __init__(self, greedy: Array, epsilon: float, n: int, start: int, tied: Array | None):
        self._greedy, self._epsilon, self._n, self._start, self._tied = greedy, epsilon, n, start, tied

    def sample(self, uniform: Array, normal: Array) -> Actions:
        explored = np.minimum((uniform[:, 1] * self._n).astype(np.int64), self._n - 1)
        return (np.where(uniform[:, 0] < self._epsilon, explored, self._greedy) + self._start,)

    def propensity(self, actions: Actions) -> Propensity:
        return self._of(actions[0] - self._start == self._greedy)

    def _of(self, is_greedy: Array) -> Propensity:
        low = self._epsilon / self._n
        value = np.where(is_greedy, 1 - self._epsilon + low, low)
        return Propensity(value, safe_log(value))

    def may_be(self, actions: Actions, recorded: Array) -> Array:
        same = super().may_be(actions, recorded)
        if self._tied is None or same.all():
            return same
        chosen = np.clip(actions[0] - self._start, 0, self._n - 1)
        of_tied = self._tied[np.arange(len(chosen)), chosen] & (self._tied.sum(axis=1) > 1)
        ones = np.ones(len(chosen), bool)
        possible = np.isclose(self._of(ones).value, recorded) | np.isclose(self._of(~ones).value, recorded)
        return np.asarray(same | (of_tied & possible))


class SoftmaxDistribution(Distribution):
    """Pr[a] = softmax(values)[a].

    Args:
      values: Q(s, a) / tau for each action, float (N, n).
      start: the number of the first action.
    """

    uniform = 1

    def __init__(self, values: Array, start: int):
        shifted = values - values.max(axis=1, keepdims=True)
        self._logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        self._start = start

    def sample(self, uniform: Array, normal: Array) -> Actions:
        bounds = np.cumsum(np.exp(self._logs), axis=1)
        return ((uniform[:, :1] * bounds[:, -1:] >= bounds[:, :-1]).sum(axis=1) + self._start,)

    def propensity(self, actions: Actions) -> Propensity:
        logs = self._logs[np.arange(len(self._logs)), actions[0] - self._start]
        return Propensity(np.exp(logs), logs)


class Gaussian(Distribution):
    """Independent normal distributions: the density is the product over the dimensions of the action.

    Args:
      mean: the means, float64 (N, A).
      sigma: the standard deviations, (A,) or (N, A).
    """

    def __init__(self, mean: Array, sigma: Array):
        self._mean, self._sigma = mean, np.broadcast_to(sigma, mean.shape)

    def sample(self, uniform: Array, normal: Array) -> Actions:
        return (self._mean + self._sigma * normal,)

    def propensity(self, actions: Actions) -> Propensity:
        logs = self._logs(np.asarray(actions[0], np.float64)).sum(axis=1)
        return Propensity(np.exp(logs), logs)

    def _logs(self, action: Array) -> Array:
        z = (action - self._mean) / self._sigma
        return np.asarray(-z * z / 2 - np.log(self._sigma) - _LOG_SQRT_2PI)


class TruncatedGaussian(Gaussian):
    """Normal distributions truncated to bounds: each dimension's density is divided by its mass between them."""

    def __init__(self, mean: Array, sigma: Array, low: Array, high: Array):
        super().__init__(mean, sigma)
        with needs("record", "TruncatedGaussianHead needs scipy"):
            from scipy import special
        self._special, self._low, self._high = special, low, high
        a, b = (low - mean) / self._sigma, (high - mean) / self._sigma
        self._right = a > 0  # mirrored, because the logarithm of a mass on the right loses all digits
        a, b = np.where(self._right, -b, a), np.where(self._right, -a, b)
        self._log_a, log_b = special.log_ndtr(a), special.log_ndtr(b)
        self._log_mass = log_b + np.log1p(-np.exp(self._log_a - log_b))

    def sample(self, uniform: Array, normal: Array) -> Actions:
        logs = np.logaddexp(self._log_a, safe_log(uniform) + self._log_mass)
        z = self._special.ndtri_exp(logs)
        z = np.where(self._right, -z, z)
        return (np.clip(self._mean + self._sigma * z, self._low, self._high),)

    def propensity(self, actions: Actions) -> Propensity:
        action = np.asarray(actions[0], np.float64)
        inside = np.clip(action, self._low, self._high)
        near = np.isclose(action, inside, rtol=1e-6, atol=1e-9)  # rounding to float32 may move a value past its bound
        logs = np.where(near, self._logs(inside) - self._log_mass, -np.inf).sum(axis=1)
        return Propensity(np.exp(logs), logs)


class Independent(Distribution):
    """Independent distributions for the leaves of an action.

    Args:
      parts: the distribution of each leaf, with the number of uniform and normal random numbers that it takes.
    """

    def __init__(self, parts: Sequence[tuple[Distribution, int, int]]):
        self._parts = parts

    def sample(self, uniform: Array, normal: Array) -> Actions:
        actions: list[Array] = []
        u = v = 0
        for part, of_uniform, of_normal in self._parts:
            actions += part.sample(uniform[:, u : u + of_uniform], normal[:, v : v + of_normal])
            u, v = u + of_uniform, v + of_normal
        return tuple(actions)

    def propensity(self, actions: Actions) -> Propensity:
        logs = np.zeros(len(actions[0]))
        for (part, _, _), action in zip(self._parts, actions, strict=True):
            logs = logs + part.propensity((action,)).log
        return Propensity(np.exp(logs), logs)


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
        if self._real:
            logs = self._log_density(flat).sum(axis=1)
        else:
            number = self._high - self._low + 1.0 if self._leaf.kind == "box" else self._sizes
            logs = np.broadcast_to(-safe_log(np.asarray(number, np.float64)), flat.shape).sum(axis=1)
        return Propensity(np.exp(logs), logs)

    def _log_density(self, flat: Array) -> Array:
        low, high = np.where(self._below, self._low, 0), np.where(self._above, self._high, 0)
        both = self._below & self._above
        return np.select(
            [np.broadcast_to(of, flat.shape) for of in (both, self._below, self._above)],
            [np.broadcast_to(-safe_log(np.where(both, high - low, 1.0)), flat.shape), low - flat, flat - high],
            -flat * flat / 2 - np.log(2 * np.pi) / 2,
        )
