"""Splits, joins, arranges, scales, and names the values of vectors; converts grippers."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from rlds_beam.connectors.base import EpisodeConnector
from rlds_beam.connectors.cleaning.selection import vectors
from rlds_beam.connectors.fields import StepFields, check_new
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.representations import DIFFERENCE, Dimension, Dimensions
from rlds_beam.errors import UsageError
from rlds_beam.typing import Array


@dataclasses.dataclass(frozen=True)
class JoinFields(EpisodeConnector, reads_images=False):
    """Joins vectors to one, in the order given, and drops the single ones. Names of values follow.

        fields=[action/arm, action/gripper], to=action

        action/arm        j1 j2 j3 j4 j5 j6       (T, 6)
        action/gripper    g                       (T, 1) or (T,)
        becomes action    j1 j2 j3 j4 j5 j6 g     (T, 7)

    LeRobot, for example, has one vector of actions.

    Attributes:
      fields: numbers of one dtype.
      to: the new field.
    """

    fields: Sequence[str]
    to: str

    def edit(self, episode: Episode, fields: StepFields) -> Episode:
        parts = [vectors(episode, path, "JoinFields: fields") for path in self.fields]
        if len(dtypes := {str(part.dtype) for part in parts}) != 1:
            raise UsageError(f"JoinFields: expected fields of one dtype, got {sorted(dtypes)}: cast them first")
        kept = {path: column for path, column in episode.steps.items() if path not in self.fields}
        check_new(self.to, kept, "JoinFields: to")
        return episode.replace(steps={**kept, self.to: np.concatenate(parts, axis=1)})


@dataclasses.dataclass(frozen=True)
class SplitField(EpisodeConnector, reads_images=False):
    """Splits a vector into several, and drops it; the inverse of `JoinFields`. Names of values follow.

        field=action, into={action/arm: 6, action/gripper: 1}

        action            j1 j2 j3 j4 j5 j6 g     (T, 7)
        action/arm        j1 j2 j3 j4 j5 j6       (T, 6)
        action/gripper    g                       (T, 1)

    Attributes:
      field: a vector of numbers.
      into: new field -> its number of values, in order; together all values of the vector.
    """

    field: str
    into: Mapping[str, int]

    def edit(self, episode: Episode, fields: StepFields) -> Episode:
        values = vectors(episode, self.field, "SplitField: field")
        sizes = [*self.into.values()]
        if min(sizes, default=0) < 1 or sum(sizes) != values.shape[1]:
            raise UsageError(f"SplitField: into={dict(self.into)}, but {self.field} has {values.shape[1]} values")
        ends = [*itertools.accumulate(sizes)]
        steps = {path: column for path, column in episode.steps.items() if path != self.field}
        for path, size, end in zip(self.into, sizes, ends, strict=True):
            check_new(path, steps, "SplitField: into")
            steps[path] = values[:, end - size : end]
        return episode.replace(steps=steps)


@dataclasses.dataclass(frozen=True)
class RenameDimensions(EpisodeConnector, reads_images=False):
    """Renames values of a vector; the numbers stay as they are. LeRobot drives a robot by these names.

        field=action, names={joint_0: shoulder_pan.pos, joint_1: shoulder_lift.pos}

    `--names` and `names` of a connectors file name the values of a field that has no names.

    Attributes:
      field: a vector whose values have names.
      names: old name -> new name; others stay.
    """

    field: str
    names: Mapping[str, str]

    def edit(self, episode: Episode, fields: StepFields) -> Episode:
        vectors(episode, self.field, "RenameDimensions: field")
        return episode

    def represent(self, values: Dimensions, fields: StepFields) -> Dimensions:
        own = values.get(self.field, ())
        old = [value.name for value in own if value.name is not None]
        for name in self.names:
            if name not in old:
                raise UsageError(f"RenameDimensions: {self.field} has no value {name}; its names are {old}")
        new = [self.names.get(name, name) for name in old]
        if len(set(new)) < len(new):
            raise UsageError(f"RenameDimensions: two values of {self.field} would have one name: {', '.join(new)}")
        renamed = tuple(value._replace(name=name) for value, name in zip(own, new, strict=False))
        return {**values, self.field: renamed or own}


@dataclasses.dataclass(frozen=True)
class ArrangeDimensions(EpisodeConnector, reads_images=False):
    """Reorders, drops, and adds values of a vector; added ones are zeros.

        field=action, order=[0, 1, 2, null, 3], mask=mask/action

        action         x y z gripper          (T, 4)
        becomes        x y z 0 gripper        (T, 5)
        mask/action    T T T F T              bool (T, 5)

    So vectors of robots with different joints get one length. A policy that is trained on them needs the mask.

    Attributes:
      field: a vector of numbers.
      order: for each value of the result, its index in the vector; null for zeros.
      names: the names of the result; by default those of the values, if there are only such. An added value that is
        named as a change (`delta_x`) is one if others are.
      mask: a new field that says which values are not added; none by default.
    """

    field: str
    order: Sequence[int | None]
    names: Sequence[str] | None = None
    mask: str | None = None

    def __post_init__(self) -> None:
        if not self.order or (self.names is not None and len(self.names) != len(self.order)):
            raise UsageError("ArrangeDimensions: expected an order of one or more values, and as many names or none")

    def edit(self, episode: Episode, fields: StepFields) -> Episode:
        values = vectors(episode, self.field, "ArrangeDimensions: field")
        if not {*self.order} <= {None, *range(values.shape[1])}:
            raise UsageError(f"ArrangeDimensions: order={self.order}, but {self.field} has {values.shape[1]} values")
        there = np.array([i is not None for i in self.order])
        arranged = values[:, [i or 0 for i in self.order]]
        arranged[:, ~there] = 0
        steps = {**episode.steps, self.field: arranged}
        if self.mask is not None:
            check_new(self.mask, episode.steps, "ArrangeDimensions: mask")
            steps[self.mask] = np.broadcast_to(there, arranged.shape)
        return episode.replace(steps=steps)

    def represent(self, values: Dimensions, fields: StepFields) -> Dimensions:
        old = values.get(self.field, ())
        new = [Dimension() if i is None or not old else old[i] for i in self.order]
        if self.names is not None:
            new = [value._replace(name=name) for value, name in zip(new, self.names, strict=True)]
        change = next((value for value in old if value.relative_to), None)
        for place, i in enumerate(self.order):
            if i is None and change and DIFFERENCE.fullmatch(new[place].name or ""):
                new[place] = new[place]._replace(relative_to=change.relative_to, frame=change.frame)
        return {**values, self.field: tuple(new)}


@dataclasses.dataclass(frozen=True)
class ScaleDimensions(EpisodeConnector, reads_images=False):
    """Multiplies the values of a vector, so that datasets have the same units: 0.0174533 makes radians of degrees.

        field=observation/state, factor=0.0174533
        field=action, factor=[1, 1, 1, 0.01]           the gripper from percents to 0..1

    Attributes:
      field: floats of any shape.
      factor: one number, or one for each value of a vector.
    """

    field: str
    factor: float | Sequence[float]

    def edit(self, episode: Episode, fields: StepFields) -> Episode:
        column = vectors(episode, self.field, "ScaleDimensions: field")
        shape = np.asarray(episode.steps[self.field]).shape
        factor = np.asarray(self.factor, np.float64)
        if column.dtype.kind != "f" or (factor.ndim and factor.shape != (column.shape[1],)):
            said = f"{column.shape[1]} values of {column.dtype}"
            raise UsageError(f"ScaleDimensions: {self.field} has {said}: expected floats, and one factor or as many")
        scaled = (column.astype(np.float64) * factor).astype(column.dtype)
        return episode.with_columns({self.field: scaled.reshape(shape)})

    def represent(self, values: Dimensions, fields: StepFields) -> Dimensions:
        old = values.get(self.field, ())
        factors = np.broadcast_to(np.asarray(self.factor, np.float64), len(old)).tolist()
        new = (v if factor == 1 else v.straighten() for v, factor in zip(old, factors, strict=True))
        return {**values, self.field: tuple(new)}  # scaled values are no rotation


@dataclasses.dataclass(frozen=True)
class _Gripper(EpisodeConnector):
    """Changes the gripper in the action: the convention of OpenVLA and Octo is that 1 is open, and 0 is closed."""

    action: str | None = None
    index: int = -1

    def edit(self, episode: Episode, fields: StepFields) -> Episode:
        path = self.action or fields.actions
        values = vectors(episode, path, f"{type(self).__name__}: action").copy()
        values[:, self.index] = self.decide(values[:, self.index])
        return episode.with_columns({path: values.reshape(np.asarray(episode.steps[path]).shape)})

    def decide(self, gripper: Array) -> Array:
        """Returns the new gripper values (T,)."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class BinarizeGripper(_Gripper, reads_images=False):
    """Rounds a gripper that moves through intermediate values to 0 and 1: each value becomes the next end reached.

        gripper     1.0   0.7   0.3   0.0   0.0   0.5   1.0   0.6
        becomes     1     0     0     0     0     1     1     0.6     no end follows: the last value is kept

    Equals `binarize_gripper_actions` of OpenVLA and Octo.

    Attributes:
      action, index: the action field, by default `fields.actions`, and the index of the gripper in it.
      open: values above this are open, 1.
      closed: values below this are closed, 0.
    """

    open: float = 0.95
    closed: float = 0.05

    def decide(self, gripper: Array) -> Array:
        is_open, is_closed = gripper > self.open, gripper < self.closed
        count = len(gripper)
        decided = np.where(is_open | is_closed, np.arange(count), count)
        following = np.minimum.accumulate(decided[::-1])[::-1]  # after the last end, the last value
        filled: Array = np.concatenate([is_open.astype(gripper.dtype), gripper[-1:]])[following]
        return filled


@dataclasses.dataclass(frozen=True)
class InvertGripper(_Gripper, reads_images=False):
    """Inverts a gripper for which 1 means closed: 1 - x.

        gripper     1.0   0.25   0.0   ->   0.0   0.75   1.0

    Equals `invert_gripper_actions` of OpenVLA and Octo.

    Attributes:
      action, index: the action field, by default `fields.actions`, and the index of the gripper in it.
    """

    def decide(self, gripper: Array) -> Array:
        return (1 - gripper).astype(gripper.dtype)


@dataclasses.dataclass(frozen=True)
class RelativeToAbsoluteGripper(_Gripper, reads_images=False):
    """Converts close (+) and open (-) commands of a gripper to states: 1 is open, 0 is closed.

        gripper     0     0     +1    0     0     -1    0
        becomes     1     1     0     0     0     1     1      open until the first close command

    The first command is assumed to change the state. Without commands, the gripper is always open. Equals
    `rel2abs_gripper_actions` of OpenVLA and Octo.

    Attributes:
      action, index: the action field, by default `fields.actions`, and the index of the gripper in it.
      threshold: a command is greater than this, or less than minus this.
    """

    threshold: float = 0.1

    def decide(self, gripper: Array) -> Array:
        opens = np.where(gripper < -self.threshold, 1, np.where(gripper > self.threshold, 0, -1))
        commanded = np.flatnonzero(opens >= 0)
        start = 1 - opens[commanded[0]] if len(commanded) else 1
        last = np.maximum.accumulate(np.where(opens >= 0, np.arange(len(opens)), -1))
        return np.where(last < 0, start, opens[last]).astype(gripper.dtype)
