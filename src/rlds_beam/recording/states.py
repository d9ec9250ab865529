"""States of recurrent policies, carried from step to step for each environment.

A state is a tuple of arrays (leaves). With a leading axis N it holds the states of N environments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from rlds_beam.errors import UsageError
from rlds_beam.typing import Array

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


def unstack_states(state: State, count: int) -> list[State]:
    """The state of each environment."""
    return [tuple(leaf[i] for leaf in state) for i in range(count)]


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
