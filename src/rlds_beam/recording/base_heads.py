"""The base class of heads: a base policy, and the methods of SCOPE-RL's heads.

Random numbers come from the recording, or from the head's `random_state` if you call it directly; never from a global
generator, as in SCOPE-RL.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import numpy as np

from rlds_beam.errors import UsageError
from rlds_beam.recording.bases import BasePolicy
from rlds_beam.recording.distributions import Actions, Distribution
from rlds_beam.recording.models import as_base
from rlds_beam.recording.policies import BehaviorPolicy
from rlds_beam.recording.spaces import SpaceLeaf, Structure
from rlds_beam.recording.states import State, replay, take_rows
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

    def of(self, base: BasePolicy, observations: Any) -> Distribution:
        """The distribution of actions for N observations, given a base policy."""
        raise UsageError(f"{type(self).__name__} must implement `of`, which returns its distribution of actions")

    def distribution(self, observations: Any) -> Distribution:
        return self.of(self.base, observations)

    def initial_state(self) -> State | None:
        return self.base.initial_state()

    def advance(self, observations: Any, state: State) -> tuple[Distribution, State]:
        output, after = self.base.advance(observations, state)
        return self.of(self.base.given(output), observations), after

    def replay(self, observations: Any, lengths: Array, state: State) -> Distribution:
        def step(rows: Array, before: State) -> tuple[Array, State]:
            return self.base.advance(take_rows(observations, rows), before)

        return self.of(self.base.given(replay(step, lengths, state)), observations)

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
