"""States of recurrent policies: carried from step to step, for each environment on its own.

A state is a tuple of arrays, its leaves. With a leading axis N it is that of N environments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from rlds_beam.errors import UsageError

Array: TypeAlias = "np.ndarray[Any, Any]"
State: TypeAlias = "tuple[Array, ...]"


def leaves_of(nested: Any) -> State:
    """The arrays (or tensors) that are nested in dicts, lists and tuples, those of a dict by the order of its names."""
    if isinstance(nested, Mapping):
        return tuple(leaf for name in sorted(nested) for leaf in leaves_of(nested[name]))
    if isinstance(nested, (list, tuple)):
        return tuple(leaf for part in nested for leaf in leaves_of(part))
    if hasattr(nested, "detach"):  # torch's
        nested = nested.detach().cpu()
    return (np.asarray(nested),)


def like(nested: Any, state: State) -> Any:
    """A state nested as another one is."""
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
    """Raises UsageError where the state after a step is not of the shapes of that before it."""
    shapes = [[(leaf.dtype.name, leaf.shape) for leaf in state] for state in (before, after)]
    if shapes[0] != shapes[1]:
        raise UsageError(f"{policy}: the state was {shapes[0]} before a step, and {shapes[1]} after it")


def stacked(states: Sequence[State]) -> State:
    """The states of several environments as one."""
    return tuple(np.stack(leaf) for leaf in zip(*states, strict=True))


def unstacked(state: State, count: int) -> list[State]:
    """The state of each environment."""
    return [tuple(leaf[i] for leaf in state) for i in range(count)]


def taken(nested: Any, rows: Any) -> Any:
    """Some rows of an array, or of arrays nested in dicts and tuples."""
    if isinstance(nested, dict):
        return {name: taken(part, rows) for name, part in nested.items()}
    if isinstance(nested, tuple):
        return tuple(taken(part, rows) for part in nested)
    return nested[rows]


def replay(step: Callable[[Array, State], tuple[Array, State]], lengths: Array, state: State) -> Array:
    """What a policy gives for episodes that lie end to end, one step after the other, for all episodes together.

    Args:
      step: is given the numbers of rows, and the states before them; returns what the policy gives, and the states
        after them.
      lengths: of the episodes.
      state: of each episode, before its first step.
    """
    order = np.argsort(-lengths, kind="stable")  # the longest first: those that go on are the first so many
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
    assert outputs is not None, "an episode has a step"
    return outputs
