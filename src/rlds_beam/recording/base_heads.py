"""What all heads have: a base policy, and the methods of SCOPE-RL's heads over a distribution of actions.

Random numbers come from the recording, or from the head's own `random_state` where it is called by hand; never from a
global generator, as SCOPE-RL's do.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, TypeAlias

import numpy as np

from rlds_beam.errors import UsageError
from rlds_beam.recording.bases import BasePolicy, as_base
from rlds_beam.recording.distributions import Actions, Distribution
from rlds_beam.recording.policies import BehaviorPolicy
from rlds_beam.recording.spaces import SpaceLeaf, Structure
from rlds_beam.recording.states import State, replay, taken

Array: TypeAlias = "np.ndarray[Any, Any]"


@dataclasses.dataclass
class BaseHead(BehaviorPolicy):
    """What all heads have.

    Attributes:
      base_policy: a function of observations (N, ...): of a discrete action it returns values (N, n), a Q function, or
        the numbers of the greedy actions, int (N,); of a continuous one actions (N, A). Or an object with `predict`, as
        d3rlpy's algorithms have; or the name of one (`bases.as_base`).
      name: of the policy.
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
        return {**vars(self), "_base": None, "_generator": None}  # each process loads the model, if it was named

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
            wanted = "one discrete action" if self.action_type == "discrete" else "an action that is a list of numbers"
            raise UsageError(f"{type(self).__name__} is for {wanted}, and the environment takes another one")
        self._leaf = leaf
        self.check(leaf)

    def check(self, leaf: SpaceLeaf) -> None:
        """Holds the arguments of the head against the action; raises UsageError."""

    def of(self, base: BasePolicy, observations: Any) -> Distribution:
        """The distribution of the actions for N observations, over a base policy."""
        raise UsageError(f"{type(self).__name__} says with `of` what its distribution is, over a base policy")

    def distribution(self, observations: Any) -> Distribution:
        return self.of(self.base, observations)

    def initial_state(self) -> State | None:
        return self.base.initial_state()

    def advance(self, observations: Any, state: State) -> tuple[Distribution, State]:
        output, after = self.base.advance(observations, state)
        return self.of(self.base.given(output), observations), after

    def replay(self, observations: Any, lengths: Array, state: State) -> Distribution:
        def step(rows: Array, before: State) -> tuple[Array, State]:
            return self.base.advance(taken(observations, rows), before)

        return self.of(self.base.given(replay(step, lengths, state)), observations)

    # What SCOPE-RL's heads have besides.

    def predict(self, x: Array) -> Array:
        """The greedy actions for observations (N, ...)."""
        return self._greedy(self.base, x)

    def _greedy(self, base: BasePolicy, x: Any) -> Array:
        values = base.greedy(x)
        discrete = self.action_type == "discrete" if self._leaf is None else self._leaf.kind == "discrete"
        return np.asarray(values.argmax(axis=1)) if discrete and values.ndim == 2 else values

    def sample_action(self, x: Array) -> Array:
        """Actions for observations (N, ...), of the head's `random_state`."""
        return self._sample(x)[1][0]

    def sample_action_and_output_pscore(self, x: Array) -> tuple[Array, Array]:
        """Actions for observations (N, ...), and their propensities (N,)."""
        distribution, actions = self._sample(x)
        return actions[0], distribution.propensity(actions).value

    def calc_pscore_given_action(self, x: Array, action: Array) -> Array:
        """The propensities (N,) of actions that are given."""
        return self.distribution(x).propensity((np.asarray(action),)).value

    def sample_action_online(self, x: Array) -> Any:
        """The action for one observation."""
        return self.sample_action(np.asarray(x)[None])[0]

    def sample_action_and_output_pscore_online(self, x: Array) -> tuple[Any, float]:
        """The action for one observation, and its propensity."""
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
