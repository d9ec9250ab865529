"""Distributions of actions given observations: what a head samples from, and the propensity of any action."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from rlds_beam.errors import needs

Array: TypeAlias = "np.ndarray[Any, Any]"
Actions: TypeAlias = "tuple[Array, ...]"
"""N actions: an array (N, ...) for each leaf of the action."""

TIED = 1e-5
"""Values of a Q function that differ by less, relative to the largest, may change their order in another batch."""

_LOG_SQRT_2PI = float(np.log(2 * np.pi) / 2)


class Propensity(NamedTuple):
    """Of N actions: probabilities, or densities where the action is continuous, and their logarithms; float64 (N,)."""

    value: Array
    log: Array


class Distribution(abc.ABC):
    """Of the actions for N observations."""

    @abc.abstractmethod
    def sample(self, uniform: Array, normal: Array) -> Actions:
        """N actions, of random numbers: uniform in [0, 1) (N, U), and standard normal (N, V)."""

    @abc.abstractmethod
    def propensity(self, actions: Actions) -> Propensity:
        """Of N actions, whoever chose them."""

    def may_be(self, actions: Actions, recorded: Array) -> Array:
        """Whether rounding in another batch may have given these propensities; bool (N,)."""
        return np.isclose(self.propensity(actions).value, recorded, rtol=1e-4, atol=0)


def log_of(value: Array) -> Array:
    """The logarithm; -inf of 0."""
    with np.errstate(divide="ignore"):
        logs: Array = np.log(value)
    return logs


class EpsilonGreedy(Distribution):
    """Pr[a] = (1 - epsilon) [a is greedy] + epsilon / n.

    Args:
      greedy: the greedy action of each observation, int (N,), from 0 on.
      tied: bool (N, n), of a Q function: which actions are as good as the greedy one, up to rounding.
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
        return Propensity(value, log_of(value))

    def may_be(self, actions: Actions, recorded: Array) -> Array:
        same = super().may_be(actions, recorded)
        if self._tied is None or same.all():
            return same
        chosen = np.clip(actions[0] - self._start, 0, self._n - 1)
        of_tied = self._tied[np.arange(len(chosen)), chosen] & (self._tied.sum(axis=1) > 1)
        one = np.ones(len(chosen), bool)
        possible = np.isclose(self._of(one).value, recorded) | np.isclose(self._of(~one).value, recorded)
        return np.asarray(same | (of_tied & possible))


class Categorical(Distribution):
    """Pr[a] = softmax(values)[a].

    Args:
      values: Q(s, a) / tau of each action, float (N, n).
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
      mean: float64 (N, A).
      sigma: standard deviations, (A,) or (N, A).
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
    """Normal distributions between bounds: the density of each dimension is divided by its mass between them."""

    def __init__(self, mean: Array, sigma: Array, low: Array, high: Array):
        super().__init__(mean, sigma)
        with needs("record", "TruncatedGaussianHead needs scipy"):
            from scipy import special
        self._special, self._low, self._high = special, low, high
        a, b = (low - mean) / self._sigma, (high - mean) / self._sigma
        self._right = a > 0  # computed as its mirror image: the logarithm of a mass on the right has no digits left
        a, b = np.where(self._right, -b, a), np.where(self._right, -a, b)
        self._log_a, log_b = special.log_ndtr(a), special.log_ndtr(b)
        self._log_mass = log_b + np.log1p(-np.exp(self._log_a - log_b))

    def sample(self, uniform: Array, normal: Array) -> Actions:
        logs = np.logaddexp(self._log_a, log_of(uniform) + self._log_mass)
        z = self._special.ndtri_exp(logs)
        z = np.where(self._right, -z, z)
        return (np.clip(self._mean + self._sigma * z, self._low, self._high),)

    def propensity(self, actions: Actions) -> Propensity:
        action = np.asarray(actions[0], np.float64)
        inside = np.clip(action, self._low, self._high)
        near = np.isclose(action, inside, rtol=1e-6, atol=1e-9)  # rounded to float32, a bound may lie beyond itself
        logs = np.where(near, self._logs(inside) - self._log_mass, -np.inf).sum(axis=1)
        return Propensity(np.exp(logs), logs)


class Independent(Distribution):
    """Leaves of an action, each with a distribution of its own.

    Args:
      parts: of each leaf, and how many uniform and normal random numbers it takes.
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
