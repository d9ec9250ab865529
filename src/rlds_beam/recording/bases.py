"""Base policies of heads: a function of observations, an object with `predict`, or a saved model; and their states.

The state of a recurrent policy is a tuple of arrays (leaves), carried from step to step for each environment. With a
leading axis N it holds the states of N environments.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from rlds_beam.connectors.learner.actions import as_numpy
from rlds_beam.errors import UsageError
from rlds_beam.typing import Array
from rlds_beam.user_functions import configurable

State: TypeAlias = "tuple[Array, ...]"


def list_leaves(nested: Any) -> State:
    """The arrays (or tensors) nested in dicts, lists, and tuples; dicts are traversed in the order of their names."""
    if isinstance(nested, Mapping):
        return tuple(leaf for name in sorted(nested) for leaf in list_leaves(nested[name]))
    if isinstance(nested, (list, tuple)):
        return tuple(leaf for part in nested for leaf in list_leaves(part))
    if hasattr(nested, "detach"):  # torch's
        nested = nested.detach().cpu()
    return (np.asarray(nested),)


def like(nested: Any, state: State) -> Any:
    """The leaves of a state, nested like `nested`."""
    return _nest(nested, iter(state))


def _nest(nested: Any, leaves: Iterator[Array]) -> Any:
    if isinstance(nested, Mapping):
        by_name = {name: _nest(nested[name], leaves) for name in sorted(nested)}
        return {name: by_name[name] for name in nested}
    if isinstance(nested, (list, tuple)):
        parts = [_nest(part, leaves) for part in nested]
        if isinstance(nested, list):
            return parts
        return type(nested)(*parts) if hasattr(nested, "_fields") else tuple(parts)
    return next(leaves)


def check_state(policy: object, before: State, after: State) -> None:
    """Raises UsageError if the state's dtypes or shapes differ before and after a step."""
    shapes = [[(leaf.dtype.name, leaf.shape) for leaf in state] for state in (before, after)]
    if shapes[0] != shapes[1]:
        raise UsageError(
            f"{policy}: the state must keep its dtypes and shapes, but {shapes[0]} became {shapes[1]} in a step"
        )


def stack_states(states: Sequence[State]) -> State:
    """Stacks the states of several environments."""
    return tuple(np.stack(leaf) for leaf in zip(*states, strict=True))


def take_rows(nested: Any, rows: Any) -> Any:
    """These rows of an array, or of arrays nested in dicts and tuples."""
    if isinstance(nested, dict):
        return {name: take_rows(part, rows) for name, part in nested.items()}
    if isinstance(nested, tuple):
        return tuple(take_rows(part, rows) for part in nested)
    return nested[rows]


def replay(step: Callable[[Array, State], tuple[Array, State]], lengths: Array, state: State) -> Array:
    """Runs a stateful policy over concatenated episodes, step by step for all episodes together.

    Args:
      step: takes row numbers and the states before them; returns the policy's outputs and the states after them.
      lengths: the lengths of the episodes.
      state: the state of each episode before its first step.

    Returns:
      The outputs of all rows.
    """
    order = np.argsort(-lengths, kind="stable")  # longest first, so that running episodes come first
    starts, lengths = (np.cumsum(lengths) - lengths)[order], lengths[order]
    state = tuple(leaf[order] for leaf in state)
    outputs: Array | None = None
    for t in range(int(lengths[0])):
        going = int(np.count_nonzero(lengths > t))
        rows = starts[:going] + t
        output, state = step(rows, tuple(leaf[:going] for leaf in state))
        if outputs is None:
            outputs = np.zeros((int(lengths.sum()), *output.shape[1:]), output.dtype)
        outputs[rows] = output
    assert outputs is not None, "every episode has a step"
    return outputs


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
