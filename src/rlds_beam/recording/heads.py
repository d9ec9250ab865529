"""Heads, which turn a deterministic policy into a stochastic one, with SCOPE-RL's names and formulas.

Random numbers come from the recording, or from the head's `random_state` if you call it directly; never from a global
generator, as in SCOPE-RL.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import numpy as np

from rlds_beam.errors import UsageError
from rlds_beam.recording.bases import BasePolicy, State, replay, take_rows
from rlds_beam.recording.models import as_base
from rlds_beam.recording.policies import (
    TIED,
    Actions,
    BehaviorPolicy,
    Distribution,
    EpsilonGreedy,
    Gaussian,
    Propensity,
    SoftmaxDistribution,
    TruncatedGaussian,
)
from rlds_beam.recording.spaces import SpaceLeaf, Structure
from rlds_beam.typing import Array


@dataclasses.dataclass
class BaseHead(BehaviorPolicy):
    """The base class of heads, which turn a deterministic policy into a stochastic one.

    Attributes:
      base_policy: a function of observations (N, ...). For discrete actions it returns Q values (N, n), or the numbers
        of the greedy actions, int (N,); for continuous ones, actions (N, A). Or an object with `predict`, like d3rlpy's
        algorithms, or the name of one (`models.as_base`).
      name: the name of the policy.
    """

    base_policy: Any
    name: str = ""
    action_type: ClassVar[str] = "discrete"

    def __post_init__(self) -> None:
        self.name = self.name or type(self).__name__
        self._base: BasePolicy | None = None
        self._leaf: SpaceLeaf | None = None
        self._generator: np.random.Generator | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_base": None, "_generator": None}  # each process loads a named model itself

    @property
    def base(self) -> BasePolicy:
        """The base policy, loaded."""
        if self._base is None:
            self._base = as_base(self.base_policy)
        return self._base

    def bind(self, observation: Structure, action: Structure) -> None:
        leaf = action.alone
        kind = "discrete" if leaf is not None and leaf.kind == "discrete" else "continuous"
        of_one = leaf is not None and leaf.kind in ("discrete", "box") and len(leaf.shape) <= 1
        if leaf is None or not of_one or kind != self.action_type:
            wanted = "one discrete action" if self.action_type == "discrete" else "one action that is a list of numbers"
            raise UsageError(f"{type(self).__name__} needs an environment with {wanted}")
        self._leaf = leaf
        self.check(leaf)

    def check(self, leaf: SpaceLeaf) -> None:
        """Checks the head's arguments against the action; raises UsageError."""

    def distribution_for(self, base: BasePolicy, observations: Any) -> Distribution:
        """The distribution of actions for N observations, given a base policy."""
        raise UsageError(
            f"{type(self).__name__} must implement `distribution_for`, which returns its distribution of actions"
        )

    def distribution(self, observations: Any) -> Distribution:
        return self.distribution_for(self.base, observations)

    def initial_state(self) -> State | None:
        return self.base.initial_state()

    def advance(self, observations: Any, state: State) -> tuple[Distribution, State]:
        output, after = self.base.advance(observations, state)
        return self.distribution_for(self.base.given(output), observations), after

    def replay(self, observations: Any, lengths: Array, state: State) -> Distribution:
        def step(rows: Array, before: State) -> tuple[Array, State]:
            return self.base.advance(take_rows(observations, rows), before)

        return self.distribution_for(self.base.given(replay(step, lengths, state)), observations)

    # The other methods of SCOPE-RL's heads.

    def predict(self, x: Array) -> Array:
        """The greedy actions for observations (N, ...)."""
        return self._greedy(self.base, x)

    def _greedy(self, base: BasePolicy, x: Any) -> Array:
        values = base.greedy(x)
        discrete = self.action_type == "discrete" if self._leaf is None else self._leaf.kind == "discrete"
        return np.asarray(values.argmax(axis=1)) if discrete and values.ndim == 2 else values

    def sample_action(self, x: Array) -> Array:
        """Samples actions for observations (N, ...) with the head's `random_state`."""
        return self._sample(x)[1][0]

    def sample_action_and_output_pscore(self, x: Array) -> tuple[Array, Array]:
        """Samples actions for observations (N, ...); returns them and their propensities (N,)."""
        distribution, actions = self._sample(x)
        return actions[0], distribution.propensity(actions).value

    def calc_pscore_given_action(self, x: Array, action: Array) -> Array:
        """The propensities (N,) of the given actions."""
        return self.distribution(x).propensity((np.asarray(action),)).value

    def sample_action_online(self, x: Array) -> Any:
        """Samples an action for one observation."""
        return self.sample_action(np.asarray(x)[None])[0]

    def sample_action_and_output_pscore_online(self, x: Array) -> tuple[Any, float]:
        """Samples an action for one observation; returns it and its propensity."""
        action, propensity = self.sample_action_and_output_pscore(np.asarray(x)[None])
        return action[0], float(propensity[0])

    def _sample(self, x: Array) -> tuple[Distribution, Actions]:
        if self._generator is None:
            self._generator = np.random.default_rng(getattr(self, "random_state", None))
        distribution = self.distribution(x)
        uniform, normal = self.randomness
        random = self._generator
        return distribution, distribution.sample(
            random.random((len(x), uniform)), random.standard_normal((len(x), normal))
        )

    @property
    def _start(self) -> int:
        return 0 if self._leaf is None else int(self._leaf.start)


@dataclasses.dataclass
class EpsilonGreedyHead(BaseHead):
    """Pr[a | s] = (1 - epsilon) [a is greedy] + epsilon / n_actions.

    Attributes:
      n_actions: the number of actions; by default the environment's.
      epsilon: the probability of a random action, which may be the greedy one.
      random_state: the seed, if you call the head directly.
    """

    n_actions: int | None = None
    epsilon: float = 0.1
    random_state: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.epsilon <= 1:
            raise UsageError(f"EpsilonGreedyHead: epsilon={self.epsilon}, expected 0 to 1")

    def check(self, leaf: SpaceLeaf) -> None:
        self.n_actions = _number(self, leaf, self.n_actions)

    @property
    def randomness(self) -> tuple[int, int]:
        return EpsilonGreedy.uniform, 0

    def distribution_for(self, base: BasePolicy, observations: Any) -> EpsilonGreedy:
        values = base.values_or_greedy(observations, self.n_actions)
        if values.ndim == 1:
            return EpsilonGreedy(values, self.epsilon, _require_actions(self, self.n_actions), self._start, None)
        best = values.max(axis=1, keepdims=True)
        tied = values >= best - TIED * np.maximum(1, np.abs(best))
        return EpsilonGreedy(values.argmax(axis=1), self.epsilon, values.shape[1], self._start, tied)

    def calc_action_choice_probability(self, x: Array) -> Array:
        """The probabilities of all actions, (N, n)."""
        return _probabilities(self, x, self.n_actions)


@dataclasses.dataclass
class SoftmaxHead(BaseHead):
    """Pr[a | s] = exp(Q(s, a) / tau) / sum over a' of exp(Q(s, a') / tau); needs a Q function as base policy.

    Attributes:
      n_actions: the number of actions; by default the environment's.
      tau: the temperature; higher values make actions more uniform. Below 0, the worst actions are the most likely.
      random_state: the seed, if you call the head directly.
    """

    n_actions: int | None = None
    tau: float = 1.0
    random_state: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tau == 0:
            raise UsageError("SoftmaxHead: tau must not be 0")

    def check(self, leaf: SpaceLeaf) -> None:
        self.n_actions = _number(self, leaf, self.n_actions)

    @property
    def randomness(self) -> tuple[int, int]:
        return SoftmaxDistribution.uniform, 0

    def distribution_for(self, base: BasePolicy, observations: Any) -> SoftmaxDistribution:
        values = base.values(observations, self.n_actions)
        return SoftmaxDistribution(values.astype(np.float64) / self.tau, self._start)

    def calc_action_choice_probability(self, x: Array) -> Array:
        """The probabilities of all actions, (N, n)."""
        return _probabilities(self, x, self.n_actions)


@dataclasses.dataclass
class GaussianHead(BaseHead):
    """a ~ Normal(pi(s), sigma), independently in each dimension; the propensity is the product of the densities.

    Attributes:
      sigma: the standard deviations, (A,), or one for all dimensions.
      random_state: the seed, if you call the head directly.
    """

    sigma: Any = 1.0
    random_state: int | None = None
    action_type: ClassVar[str] = "continuous"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.sigma = np.asarray(self.sigma, np.float64)
        if not (self.sigma > 0).all():
            raise UsageError(f"{type(self).__name__}: sigma={self.sigma}, expected positive numbers")

    def check(self, leaf: SpaceLeaf) -> None:
        _broadcast(self, "sigma", self.sigma, leaf)

    @property
    def randomness(self) -> tuple[int, int]:
        return 0, _width(self)

    def distribution_for(self, base: BasePolicy, observations: Any) -> Gaussian:
        return Gaussian(base.greedy(observations).astype(np.float64), self.sigma)

    def calc_action_choice_probability(self, greedy_action: Array, action: Array) -> Array:
        """The densities (N,) of actions, given the greedy ones."""
        return Gaussian(np.asarray(greedy_action, np.float64), self.sigma).propensity((action,)).value


@dataclasses.dataclass
class TruncatedGaussianHead(BaseHead):
    """a ~ TruncNorm(pi(s), sigma) between the bounds, independently in each dimension.

    Attributes:
      sigma: the standard deviations, (A,), or one for all dimensions.
      minimum, maximum: the bounds, (A,); by default those of the action space.
      random_state: the seed, if you call the head directly.
    """

    sigma: Any = 1.0
    minimum: Any = None
    maximum: Any = None
    random_state: int | None = None
    action_type: ClassVar[str] = "continuous"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.sigma = np.asarray(self.sigma, np.float64)
        if not (self.sigma > 0).all():
            raise UsageError(f"{type(self).__name__}: sigma={self.sigma}, expected positive numbers")

    def check(self, leaf: SpaceLeaf) -> None:
        self.minimum = leaf.low if self.minimum is None else self.minimum
        self.maximum = leaf.high if self.maximum is None else self.maximum
        for name in ("sigma", "minimum", "maximum"):
            _broadcast(self, name, np.asarray(getattr(self, name), np.float64), leaf)
        if not (np.asarray(self.minimum) < np.asarray(self.maximum)).all():
            raise UsageError("TruncatedGaussianHead: the minimum must be less than the maximum")

    @property
    def randomness(self) -> tuple[int, int]:
        return _width(self), 0

    def distribution_for(self, base: BasePolicy, observations: Any) -> TruncatedGaussian:
        return self._of(base.greedy(observations))

    def calc_action_choice_probability(self, greedy_action: Array, action: Array) -> Array:
        """The densities (N,) of actions, given the greedy ones."""
        return self._of(greedy_action).propensity((np.asarray(action),)).value

    def _of(self, greedy: Array) -> TruncatedGaussian:
        mean = np.asarray(greedy, np.float64)
        low, high = (np.broadcast_to(np.asarray(b, np.float64), mean.shape[1:]) for b in (self.minimum, self.maximum))
        return TruncatedGaussian(mean, self.sigma, low, high)


@dataclasses.dataclass
class OnlineHead(BaseHead):
    """The actions of the base policy unchanged, without propensities."""

    has_propensity: ClassVar[bool] = False

    def bind(self, observation: Structure, action: Structure) -> None:
        if action.alone is None:
            raise UsageError("OnlineHead needs an environment with one action; this one takes several")
        self._leaf = action.alone

    def distribution_for(self, base: BasePolicy, observations: Any) -> Distribution:
        start = self._start if self._leaf is None or self._leaf.kind == "discrete" else 0
        return _Greedy(self._greedy(base, observations) + start)


class _Greedy(Distribution):
    """One action for each observation."""

    def __init__(self, actions: Array):
        self._actions = actions

    def sample(self, uniform: Array, normal: Array) -> Actions:
        return (self._actions,)

    def propensity(self, actions: Actions) -> Propensity:
        raise UsageError("the propensities of OnlineHead are unknown")


def _number(head: BaseHead, leaf: SpaceLeaf, given: int | None) -> int:
    if given not in (None, leaf.choices):
        raise UsageError(f"{type(head).__name__}: n_actions={given}, but the environment has {leaf.choices}")
    return leaf.choices


def _probabilities(head: BaseHead, x: Array, n_actions: int | None) -> Array:
    distribution, n = head.distribution(x), _require_actions(head, n_actions)
    return np.stack([distribution.propensity((np.full(len(x), a + head._start),)).value for a in range(n)], axis=1)


def _require_actions(head: BaseHead, n_actions: int | None) -> int:
    if n_actions is None:
        raise UsageError(f"{type(head).__name__}: n_actions is missing")
    return n_actions


def _width(head: BaseHead) -> int:
    """The number of dimensions of the action."""
    if head._leaf is not None:
        return max(1, head._leaf.size)
    return int(np.size(getattr(head, "sigma", 1)))


def _broadcast(head: BaseHead, name: str, value: Array, leaf: SpaceLeaf) -> None:
    if value.ndim > 1 or (value.ndim == 1 and value.shape != leaf.shape):
        raise UsageError(f"{type(head).__name__}: {name} has shape {value.shape}, but the action has {leaf.shape}")


HEADS: dict[str, type[BaseHead]] = {
    "EpsilonGreedyHead": EpsilonGreedyHead,
    "SoftmaxHead": SoftmaxHead,
    "GaussianHead": GaussianHead,
    "TruncatedGaussianHead": TruncatedGaussianHead,
    "OnlineHead": OnlineHead,
}
"""The heads by name."""
