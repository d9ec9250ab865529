"""Actions relative to the state or to the action before, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Literal, Self

import numpy as np

from rlds_beam.connectors.base import EpisodeConnector
from rlds_beam.connectors.cleaning.rotations import (
    are_rotations,
    as_indices,
    check_rotation_arguments,
    check_rotation_names,
    check_rotations,
    read_rotations,
    sound_rotations,
    turn_values,
    void_actions,
    write_rotations,
)
from rlds_beam.connectors.cleaning.selection import vectors
from rlds_beam.connectors.fields import StepFields
from rlds_beam.episodes.columns import is_numeric
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.representations import DELTA, Dimension, Dimensions, value_names
from rlds_beam.errors import RldsBeamError, UsageError
from rlds_beam.reading.base import Source
from rlds_beam.reading.meaning import LastAction
from rlds_beam.typing import Array


@dataclasses.dataclass(frozen=True)
class _Actions(EpisodeConnector, reads_images=False):
    """The arguments of `RelativeActions` and `AbsoluteActions`."""

    relative: ClassVar[bool]

    to: Literal["state", "previous"] = "state"
    state: str = "observation/state"
    absolute: Sequence[int] = ()
    rotation: str | None = None
    at: int | Sequence[int] = ()
    position: int | Sequence[int] = ()
    frame: Literal["base", "hand"] = "base"
    action: str | None = None
    last_action: LastAction | None = None
    compare_ranges: bool = True

    def __post_init__(self) -> None:
        at, position = len(as_indices(self.at)), len(as_indices(self.position))
        check_rotation_arguments(type(self).__name__, self.rotation, at, position, self.frame)

    def for_source(self, source: Source) -> Self:
        """A copy that knows what the last actions of the source are."""
        return dataclasses.replace(self, last_action=self.last_action or source.last_action)

    @property
    def _rotations(self) -> list[range]:
        """Where the values of each rotation are."""
        size = len(value_names(self.rotation or ""))
        return [range(start, start + size) for start in as_indices(self.at)]

    @property
    def _positions(self) -> list[range]:
        """Where x, y, z of each position are."""
        return [range(start, start + 3) for start in as_indices(self.position)]

    def represent(self, values: Dimensions, fields: StepFields) -> Dimensions:
        """What is known of the values of vectors after the connector, given what is known before it.

        A difference is named after its value, `delta_x`, as in LeRobot's simulators: a robot that is driven by names
        must not take it for the value itself.

        Raises:
          UsageError: the data says that rotations or references are others than the arguments.
        """
        path = self.action or fields.actions
        given, rotation = {**values}, self.rotation or ""
        for field in dict.fromkeys((self.state, path)):
            own = [*given.get(field, ())]
            check_rotations(own, as_indices(self.at), rotation, f"{type(self).__name__}: rotation", field)
            check_rotation_names(own, as_indices(self.at), rotation, f"{type(self).__name__}: at={self.at}", field)
            if field == path:
                self.check_known(path, own)
                to = self.to if self.relative else None
                frame = self.frame if to and self.rotation else None
                for i, old in enumerate(own):
                    if i not in self.absolute:
                        changed = f"{DELTA}{old.name}" if self.relative else (old.name or "").removeprefix(DELTA)
                        own[i] = old._replace(relative_to=to, frame=frame, name=old.name and changed).straighten()
            for where in self._rotations if own else ():
                part = slice(where.start, where.stop)
                own[part] = turn_values(own[part], rotation, f"{field}[{where.start}]")
            given[field] = tuple(own)
        return given

    def check_known(self, path: str, values: Sequence[Dimension]) -> None:
        """Raises UsageError if the data says of the action's values that they cannot be converted."""

    @property
    def needs_sample(self) -> bool:
        """Whether to call `check_sample`."""
        return self.compare_ranges

    def check_sample(self, episodes: Sequence[Episode], fields: StepFields) -> None:
        """Raises UsageError if the first episodes of a dataset do not have the actions that are to be converted."""
        path = self.action or fields.actions
        actions, states = stack_vectors(episodes, path, self.state)
        self.check(path, actions, states)
        self.compare(path, actions, states)

    def compare(self, path: str, actions: Array, states: Array) -> None:
        """Raises UsageError if actions and states, float64 (T, D), lie where they should not."""
        turned = {i for where in self._rotations for i in where}  # may jump by a turn
        values = [i for i in range(actions.shape[1]) if i not in self.absolute and i not in turned]
        name = type(self).__name__
        refuse_range(name, path, actions, self.state, states, values, near=not self.relative)
        if not self.relative and self.frame == "base" and self.to == "state":
            reached = states + actions
            if lie_together(reached, states, values) is False:
                raise UsageError(
                    f"{name}: {path} added to {self.state} does not lie where that does "
                    f"({describe_ranges(reached, states, values, self.state)}): ScaleDimensions converts units, for "
                    f"example those of a controller. {OVERRIDE} says that they are the same"
                )

    def _combine(self, bases: Array, actions: Array, *, inverse: bool = False) -> Array:
        """Adds relative actions to what they are relative to; or, the `inverse`, makes absolute ones relative."""
        rotation, hand = self.rotation or "", self.frame == "hand"
        made: Array = actions - bases if inverse else bases + actions
        for i, where in enumerate(self._rotations):
            base, turn = read_rotations(bases[:, where], rotation), read_rotations(actions[:, where], rotation)
            base = base.inv() if inverse else base
            made[:, where] = write_rotations(base * turn if hand else turn * base, rotation)
            if hand:
                place = self._positions[i]
                before, own = bases[:, place], actions[:, place]
                made[:, place] = base.apply(own - before) if inverse else before + base.apply(own)
        return made

    def edit(self, episode: Episode, fields: StepFields) -> Episode:
        path = self.action or fields.actions
        name = type(self).__name__
        actions, states = vectors(episode, path, f"{name}: action"), vectors(episode, self.state, f"{name}: state")
        self.check(path, actions, states)
        void = void_actions(episode, actions, self.last_action)
        if not self.relative:  # zeros are no motion, unless the representation has another identity
            void &= (self.rotation or "").startswith(("quaternion", "matrix", "6d"))
        columns = actions.astype(np.float64), states.astype(np.float64)
        for where in self._rotations:
            for field, values in zip((path, self.state), columns, strict=True):
                sound_rotations(episode, field, values[:, where], self.rotation or "", void)
        kept = ~void & np.isfinite(columns[0]).all(axis=1) & np.isfinite(columns[1]).all(axis=1)
        made = columns[0].copy()
        if not episode.key.of_probe and kept.any():
            made[kept] = self._convert(columns[0][kept], columns[1][kept])
            made[:, [*self.absolute]] = columns[0][:, [*self.absolute]]
        shape = np.asarray(episode.steps[path]).shape
        return episode.with_columns({path: made.reshape(shape).astype(actions.dtype)})

    def _convert(self, actions: Array, states: Array) -> Array:
        """The actions of steps without gaps, (T, D), in the other form."""
        raise NotImplementedError

    def chunks(self, actions: Array, states: Array, void: Array | None = None) -> Array:
        """Converts chunks of actions that are relative to the state at their first step, as in openpi and UMI.

            trained = relative.chunks(actions, states)             # (B, W, D) and (B, D)
            commands = relative.inverse.chunks(predicted, state)   # (W, D) and (D,)

        Args:
          actions: floats (..., W, D).
          states: the states at the first steps, floats (..., D).
          void: the actions that are none, bool (..., W): they stay as they are, as those do that are not finite.

        Returns:
          The converted actions, in the same shape and dtype.

        Raises:
          UsageError: the shapes do not fit, or `to` is not `state`.
          RldsBeamError: an action or a state is no rotation.
        """
        name, width = type(self).__name__, actions.shape[-1]
        if self.to != "state":
            raise UsageError(f"{name}: to={self.to}: chunks are relative to a state")
        old = actions.reshape(-1, actions.shape[-2], width).astype(np.float64)
        self.check("the action", actions.reshape(-1, width), states.reshape(-1, states.shape[-1]))
        bases = np.repeat(states.reshape(-1, 1, width).astype(np.float64), old.shape[1], axis=1)
        kept = np.isfinite(old).all(axis=2) & np.isfinite(bases).all(axis=2)
        kept &= True if void is None else ~void.reshape(kept.shape)
        for where in self._rotations:
            if not all(are_rotations(values[kept][:, where], self.rotation or "").all() for values in (old, bases)):
                said = f"values {where.start} to {where.stop - 1} of an action or a state"
                raise RldsBeamError(f"{name}: {said} are no rotation ({self.rotation})")
        made = old.copy()
        together = self.rotation is None or self.rotation.startswith(("matrix", "6d"))  # others are made continuous
        for part in [slice(None)] if together else [slice(i, i + 1) for i in range(len(made))]:
            if (mine := kept[part]).any():
                made[part][mine] = self._convert(old[part][mine], bases[part][mine])
        made[..., [*self.absolute]] = old[..., [*self.absolute]]
        return made.reshape(actions.shape).astype(actions.dtype)

    def check(self, path: str, actions: Array, states: Array) -> None:
        """Raises UsageError if actions and states, (T, D), are not the same quantities, or indices are outside.

        Args:
          path: the action field, for messages.
        """
        name, width = type(self).__name__, actions.shape[1]
        if actions.dtype.kind != "f" or states.dtype.kind != "f":
            raise UsageError(f"{name}: {path} and {self.state} must be floats: cast them first")
        if width != states.shape[1]:
            said = f"{path} has {width} values and {self.state} {states.shape[1]}"
            raise UsageError(f"{name}: {said}: they must be the same quantities in the same order")
        used = [*self.absolute, *(i for part in (*self._positions, *self._rotations) for i in part)]
        if max(used, default=0) >= width or min(used, default=0) < 0:
            raise UsageError(f"{name}: {path} has {width} values; an index of absolute, at, or position is outside")
        if len({*used}) < len(used):
            raise UsageError(f"{name}: a value of {path} is named twice by absolute, at, and position")


class RelativeActions(_Actions, reads_images=False):
    """Makes absolute actions relative: to the state of their step, or to the action before.

        to=state       a[t] becomes a[t] - s[t]                      for chunks: a[t+k] - s[t], by `chunks`
        to=previous    a[t] becomes a[t] - a[t-1]; a[0] - s[0]       changes of the command

    Rotations are not subtracted value by value. With `rotation` and `at`, the difference is a rotation in the same
    representation, which turns the base's axes or the hand's:

        frame=base     dR = R_a R_s^T      dp = p_a - p_s
        frame=hand     dR = R_s^T R_a      dp = R_s^T (p_a - p_s)        UMI's relative poses

    A value named `x` becomes `delta_x`. Void last actions stay zeros. `inverse` is `AbsoluteActions` with the same
    arguments. `Dataset.batches(chunk=16, relative_actions=...)` makes chunks relative to the state at their first step,
    as openpi's DeltaActions does. Convert rotations (`ConvertRotation`) and normalize after it.

    Attributes:
      to: `state` or `previous`.
      state: the field with the same quantities as the action, in the same order.
      absolute: the indices of values that stay absolute, for example of the gripper.
      rotation: the representation of rotations in the action and the state, as in `ConvertRotation`; None: there are
        none.
      at: the index of the first value of the rotation; a list for several.
      position: the index of x, before y and z; a list for several; needed with `frame=hand`.
      frame: the axes of the differences: the robot's `base`, or the `hand`.
      action: the action field, a single array; by default `fields.actions`.
      last_action: whether the action of the last step is `real` or `void`; by default what the dataset says. A void one
        of zeros is no motion.
      compare_ranges: whether to refuse data whose first episodes show that the actions are relative already.
    """

    relative = True

    @property
    def inverse(self) -> AbsoluteActions:
        """The connector that converts back."""
        return AbsoluteActions(**vars(self))

    def check_known(self, path: str, values: Sequence[Dimension]) -> None:
        for i, value in enumerate(values):
            if value.relative_to is not None and i not in self.absolute:
                said = f"value {i} of {path} is already {_reference(value)}"
                raise UsageError(
                    f"RelativeActions: {said}: leave it out, or convert back with AbsoluteActions before it"
                )

    def _convert(self, actions: Array, states: Array) -> Array:
        bases = states if self.to == "state" else np.concatenate([states[:1], actions[:-1]])
        return self._combine(bases, actions, inverse=True)


class AbsoluteActions(_Actions, reads_images=False):
    """Makes relative actions absolute; the inverse of `RelativeActions`, which explains the arguments.

        to=state       a[t] becomes s[t] + a[t]
        to=previous    a[t] becomes a[t-1] + a[t]; s[0] + a[0]

    A last action of zeros, void or not, is no motion: it becomes the state, or the action before.

    Attributes:
      to, state, absolute, rotation, at, position, frame, action, last_action: as in `RelativeActions`.
      compare_ranges: whether to refuse data whose first episodes show that the actions are absolute already, or scaled.
    """

    relative = False

    @property
    def inverse(self) -> RelativeActions:
        """The connector that converts back."""
        return RelativeActions(**vars(self))

    def check_known(self, path: str, values: Sequence[Dimension]) -> None:
        known = any(value.relative_to is not None for value in values)
        for i, value in enumerate(values) if known else ():
            if i in self.absolute:
                continue
            if value.relative_to is None:
                raise UsageError(f"AbsoluteActions: value {i} of {path} is absolute already: add {i} to absolute")
            if value.relative_to not in (self.to, "unknown") or value.frame not in (None, self.frame):
                given = f"to={self.to}, frame={self.frame}"
                raise UsageError(f"AbsoluteActions: {given}, but value {i} of {path} is {_reference(value)}: give that")
            if value.rotation is not None and not any(i in where for where in self._rotations):
                said = f"{path} has a rotation as {value.rotation} at {i - value.place}"
                raise UsageError(f"AbsoluteActions: {said}: give rotation and at")

    def _convert(self, actions: Array, states: Array) -> Array:
        if self.to == "state":
            return self._combine(states, actions)
        if not self._rotations:
            made: Array = np.cumsum(np.concatenate([states[:1] + actions[:1], actions[1:]]), axis=0)
            return made
        absolute, rows = states[:1], []
        for t in range(len(actions)):
            absolute = self._combine(absolute, actions[t : t + 1])
            rows.append(absolute)
        made = np.concatenate(rows)
        for where in self._rotations:  # without jumps along the episode
            made[:, where] = write_rotations(read_rotations(made[:, where], self.rotation or ""), self.rotation or "")
        return made


def _reference(value: Dimension) -> str:
    """`relative (to=state, frame=hand)`."""
    if value.relative_to == "unknown":
        return "a difference"
    return f"relative (to={value.relative_to}{f', frame={value.frame}' if value.frame else ''})"


_APART = 0.5
"""The distance of actions that are not near the states: BridgeData's next states have up to 0.03, its differences 0.85
and more."""

OVERRIDE = "compare_ranges: false"
"""What a connector's arguments say to skip the comparison."""


def lie_together(actions: Array, states: Array, values: Sequence[int]) -> bool | None:
    """Whether most of some values of actions, (T, D), lie where those of states do, (T, D); None if they are constant.

    The distance of a value is the mean square of the action minus the state, divided by the sum of both variances: 0
    for equal numbers, 1 for independent ones around the same mean.
    """
    known = _distances(actions, states)[[*values]]
    known = known[np.isfinite(known)]
    return bool(np.median(known) < _APART) if known.size else None


def refuse_range(
    connector: str, path: str, actions: Array, state: str, states: Array, values: Sequence[int], *, near: bool
) -> None:
    """Raises UsageError if actions lie where the states do, and `near` is True; or if they do not, and it is False."""
    if lie_together(actions, states, values) is near:
        lie, seem, override = (
            ("lies", "absolute", "differences") if near else ("does not lie", "differences", "no differences")
        )
        raise UsageError(
            f"{connector}: {path} {lie} where {state} does ({describe_ranges(actions, states, values, state)}), so its "
            f"values seem to be {seem} already. {OVERRIDE} says that they are {override}"
        )


def describe_ranges(actions: Array, states: Array, values: Sequence[int], state: str) -> str:
    """The ranges of the value that differs most: `value 0 is -0.02 to 0.02, and 0.2 to 0.36 in observation/state`."""
    i = max(values, key=np.nan_to_num(_distances(actions, states)).__getitem__)
    first, second = (f"{column[:, i].min():.3g} to {column[:, i].max():.3g}" for column in (actions, states))
    return f"value {i} is {first}, and {second} in {state}"


def _distances(actions: Array, states: Array) -> Array:
    squares, spread = ((actions - states) ** 2).mean(axis=0), actions.var(axis=0) + states.var(axis=0)
    moves = spread > 1e-12 * (actions**2 + states**2).mean(axis=0)
    return np.where(moves, squares / np.where(moves, spread, 1), np.nan)


def stack_vectors(episodes: Sequence[Episode], *paths: str) -> list[Array]:
    """Fields that are vectors, float64 (T, D), at all steps but the last of episodes, if all are finite there."""
    stacked = []
    for episode in episodes:
        columns = [vectors(episode, path, "action").astype(np.float64)[:-1] for path in paths]
        finite = np.all([np.isfinite(column).all(axis=1) for column in columns], axis=0)
        stacked.append([column[finite] for column in columns])
    return [np.concatenate(columns) for columns in zip(*stacked, strict=True)]


def find_state(episode: Episode, width: int) -> str | None:
    """The observed vector of floats with as many values as the action: `observation/state`, or the only one."""
    observed = {path: column for path, column in episode.steps.items() if path.partition("/")[0] == "observation"}
    numbers = {path: np.asarray(column) for path, column in observed.items() if is_numeric(column)}
    alike = [path for path, n in numbers.items() if n.dtype.kind == "f" and n.shape[1:] == (width,)]
    return "observation/state" if "observation/state" in alike else alike[0] if len(alike) == 1 else None
