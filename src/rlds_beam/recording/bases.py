"""Base policies of heads: a function of observations, an object with `predict`, or a saved model."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import numpy as np

from rlds_beam.connectors.learner.actions import as_numpy
from rlds_beam.errors import UsageError
from rlds_beam.recording.states import State, check_state, like, list_leaves
from rlds_beam.typing import Array
from rlds_beam.user_functions import configurable


@configurable
class BasePolicy(abc.ABC):
    """A deterministic policy, with the values of its actions if known."""

    @abc.abstractmethod
    def greedy(self, observations: Any) -> Array:
        """The best actions: their numbers, int (N,), or the actions themselves (N, A)."""

    def values(self, observations: Any, n_actions: int | None) -> Array:
        """The values of all actions, (N, n); raises UsageError if unknown."""
        raise UsageError(f"{self!r} returns actions, but SoftmaxHead needs a Q function: values (N, number of actions)")

    def values_or_greedy(self, observations: Any, n_actions: int | None) -> Array:
        """`values` if known, else `greedy`."""
        return self.greedy(observations)

    def initial_state(self) -> State | None:
        """The state at the start of an episode; None for a policy without a state."""
        return None

    def advance(self, observations: Any, state: State) -> tuple[Array, State]:
        """The policy's output for the observations of N environments (see `given`), and their next states."""
        raise UsageError(f"{self!r} has no state")

    def given(self, output: Array) -> BasePolicy:
        """The output of `advance` as a policy for the same observations."""
        return Function(lambda observations: output, repr(self))

    def _needs_its_state(self) -> UsageError:
        return UsageError(f"{self!r} has a state, so it cannot act on an observation alone")


class Function(BasePolicy):
    """A function of observations: a Q function, or a policy."""

    def __init__(self, function: Callable[[Any], Any], name: str):
        self._function, self._name = function, name

    def __repr__(self) -> str:
        return self._name

    def _call(self, observations: Any) -> Array:
        array = as_numpy(self._function(observations))
        if array.ndim == 0 or array.ndim > 2 or array.dtype.kind not in "iuf":
            raise UsageError(
                f"{self} returned {array.dtype} {array.shape}; expected values (N, number of actions), action numbers "
                "(N,), or actions (N, A)"
            )
        return array

    def greedy(self, observations: Any) -> Array:
        return self._call(observations)

    def values(self, observations: Any, n_actions: int | None) -> Array:
        output = self.values_or_greedy(observations, n_actions)
        return output if output.ndim == 2 else super().values(observations, n_actions)

    def values_or_greedy(self, observations: Any, n_actions: int | None) -> Array:
        output = self._call(observations)
        if output.ndim == 1 and output.dtype.kind == "f":
            raise UsageError(f"{self} returned {output.dtype} {output.shape}; action numbers must be integers")
        if output.ndim == 2 and n_actions not in (None, output.shape[1]):
            raise UsageError(f"{self} returned {output.shape[1]} values for {n_actions} actions")
        return output


class StatefulFunction(BasePolicy):
    """A stateful callable: takes observations and a state, returns an output and the next state.

    It has `get_initial_state()`. A state is an array, or arrays nested in dicts, lists, and tuples.
    """

    def __init__(self, model: Any, name: str):
        self._model, self._name = model, name
        self._nested = model.get_initial_state()

    def __repr__(self) -> str:
        return self._name

    def initial_state(self) -> State:
        return list_leaves(self._nested)

    def advance(self, observations: Any, state: State) -> tuple[Array, State]:
        returned = self._model(observations, like(self._nested, state))
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise UsageError(f"{self} has get_initial_state, so it must return a pair: an output and the next state")
        output, after = as_numpy(returned[0]), list_leaves(returned[1])
        check_state(self, state, after)
        return output, after

    def greedy(self, observations: Any) -> Array:
        raise self._needs_its_state()


class Predictor(BasePolicy):
    """An object with `predict`, and optionally `predict_value`, like d3rlpy's algorithms."""

    def __init__(self, algorithm: Any):
        self._algorithm = algorithm

    def __repr__(self) -> str:
        return type(self._algorithm).__name__

    def greedy(self, observations: Any) -> Array:
        return as_numpy(self._algorithm.predict(observations))

    def values(self, observations: Any, n_actions: int | None) -> Array:
        if n_actions is None or not hasattr(self._algorithm, "predict_value"):
            return super().values(observations, n_actions)
        repeated = np.repeat(observations, n_actions, axis=0)
        actions = np.tile(np.arange(n_actions), len(observations))
        return as_numpy(self._algorithm.predict_value(repeated, actions)).reshape(-1, n_actions)
