"""The steps of a recorded episode as columns, aligned as in RLDS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlds_beam.episodes.columns import find_changed, make_violation
from rlds_beam.episodes.schema import episode_flags
from rlds_beam.errors import UsageError
from rlds_beam.recording.environments import Outcome
from rlds_beam.recording.spaces import Structure
from rlds_beam.typing import Array

_ROOM = 256
"""Initial capacity of a buffer, in steps."""


class EpisodeBuffer:
    """The steps of an episode as columns.

    call              begin(o0)      add(a0, ...)      add(a1, ..., last)
    step              0              1                 2
    observation       o0             o1                o2
    action, reward    a0, r0         a1, r1            zeros                     as RLDS has it
    """

    def __init__(
        self, observation: Structure, action: Structure, extra: Mapping[str, tuple[str, tuple[int, ...]]], reward: str
    ):
        self._structures = observation, action
        self._observations = [_Column(leaf.dtype, leaf.shape) for leaf in observation.leaves]
        self._actions = [_Values(leaf.dtype, leaf.shape) for leaf in action.leaves]
        self._reward, self._discount = _Values(reward, ()), _Values("float32", ())
        self._extra = {path: _Values(dtype, shape) for path, (dtype, shape) in extra.items()}
        self._room = self._steps = 0
        self._last = self._terminal = False

    def begin(self, observation: Sequence[Any]) -> None:
        """Starts an episode with its first observation, by leaf."""
        self._steps, self._last, self._terminal = 0, False, False
        for values in (*self._actions, self._reward, self._discount, *self._extra.values()):
            values.clear()
        self._observe(observation)

    def add(
        self, action: Sequence[Any], outcome: Outcome, observation: Sequence[Any], extra: Mapping[str, Any], last: bool
    ) -> None:
        """Adds a step.

        Args:
          action: the action to store, by leaf.
          outcome: its outcome.
          observation: the next observation, by leaf.
          extra: the values of the other columns.
          last: whether the episode ends.
        """
        self._observe(observation)
        for values, value in zip(self._actions, action):  # noqa: B905
            values.append(value)
        self._reward.append(outcome.reward)
        self._discount.append(outcome.discount)
        for path, value in extra.items():
            self._extra[path].append(value)
        if last:
            self._last, self._terminal = True, outcome.discount == 0

    def _observe(self, observation: Sequence[Any]) -> None:
        t = self._steps
        if t == self._room:
            self._room = max(_ROOM, 2 * self._room)
            for column in self._observations:
                column.grow(self._room)
        for column, value in zip(self._observations, observation):  # noqa: B905
            if column.unchecked:
                column.check(value)
            column.values[t] = value  # a copy, because the environment may reuse its array
        self._steps = t + 1

    def columns(self) -> dict[str, Array]:
        """The columns of the episode so far: T steps, the last one without an action.

        Raises:
          UsageError: a value does not have the shape or dtype that the environment declares.
        """
        steps = self._steps
        observed = _paths("observation", self._structures[0], self._observations)
        taken = _paths("action", self._structures[1], self._actions)
        others = {**taken, "reward": self._reward, "discount": self._discount, **self._extra}
        return {
            **{path: column.values[:steps].copy() for path, column in observed.items()},
            **{path: values.column(path, steps) for path, values in others.items()},
            **episode_flags(steps, last=self._last, terminal=self._terminal),
        }


class _Column:
    """A buffer for the observations of an episode.

    Attributes:
      values: the buffer, [room, ...].
      unchecked: whether the next value must be checked.
    """

    def __init__(self, dtype: str, shape: tuple[int, ...]):
        self.dtype, self.shape = np.dtype("O" if dtype == "string" else dtype), shape
        self.values = np.empty((0, *shape), self.dtype)
        self.unchecked = True

    def grow(self, room: int) -> None:
        values = np.zeros((room, *self.shape), self.dtype)
        values[: len(self.values)] = self.values
        self.values = values

    def check(self, value: Any) -> None:
        """Checks the first value; if its dtype differs, checks all values, which storing may round but not change."""
        self.unchecked = False
        if self.dtype != object:
            array = np.asarray(value)
            _check_space(array, self.dtype, self.shape, "an observation")
            self.unchecked = array.dtype != self.dtype
            cast_recorded(array, self.dtype, "an observation of the environment")


class _Values(list[Any]):
    """The recorded values of another field, one for each step with an action."""

    def __init__(self, dtype: str, shape: tuple[int, ...]):
        super().__init__()
        self._dtype, self._shape, self._text = np.dtype("O" if dtype == "string" else dtype), shape, dtype == "string"

    def column(self, path: str, steps: int) -> Array:
        """The values as an array of this many steps, of which the last one is zero or empty."""
        if self._text:
            text = [v.encode() if isinstance(v, str) else v for v in self]
            return np.array([*text, b"", None], object)[:-1]
        column = np.zeros((steps, *self._shape), self._dtype)
        try:
            values = np.asarray(self)
        except ValueError:  # different shapes
            values = np.asarray(self, object)
        if self:
            _check_space(
                values[0] if values.dtype == object else values[:1].reshape(values.shape[1:]),
                self._dtype,
                self._shape,
                path,
            )
            column[:-1] = cast_recorded(values, self._dtype, path) if values.dtype != object else values
        return column


def cast_recorded(values: Array, dtype: np.dtype[Any], what: str) -> Array:
    """Casts values to the recorded dtype, which may round them.

    Raises:
      UsageError: the cast would change a value: it is out of range, or its fraction would be lost.
    """
    if values.dtype == dtype:
        return values
    with np.errstate(all="ignore"):
        cast = values.astype(dtype)
        bad = find_changed(values, cast, rounding=True)
    if bad.any():
        raise UsageError(f"{what}: {make_violation('cast', what, values, cast, bad).detail}")
    return cast


def _check_space(array: Any, dtype: Any, shape: tuple[int, ...], what: str) -> None:
    array = np.asarray(array)
    kinds = {"b": "b", "i": "biu", "u": "biu", "f": "biuf"}[dtype.kind]
    if array.shape != shape or array.dtype.kind not in kinds:
        raise UsageError(
            f"the environment returned {what} of {array.dtype} {array.shape}, but declares {dtype} {shape}"
        )


def _paths(name: str, structure: Structure, columns: Sequence[Any]) -> dict[str, Any]:
    pairs = zip(structure.leaves, columns, strict=True)
    return {f"{name}/{leaf.path}" if leaf.path else name: column for leaf, column in pairs}
