"""The gripper's part of an action, as OpenVLA and Octo want it: 1 is open, 0 is closed."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from rlds_beam.connectors.base import EpisodeConnector
from rlds_beam.connectors.cleaning.dropping import vectors
from rlds_beam.connectors.fields import StepFields
from rlds_beam.episodes.episode import Episode

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True)
class _Gripper(EpisodeConnector):
    """Changes one number of the action.

    Attributes:
      action: the field of the action, one array; by default that of `fields`.
      index: of the gripper in it.
    """

    action: str | None = None
    index: int = -1

    def edit(self, episode: Episode, fields: StepFields) -> Episode:
        path = self.action or fields.actions
        values = vectors(episode, path, f"{type(self).__name__}: action").copy()
        values[:, self.index] = self.changed(values[:, self.index])
        return episode.with_columns({path: values.reshape(np.asarray(episode.steps[path]).shape)})

    def changed(self, gripper: Array) -> Array:
        """The numbers (T,) of the gripper."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class BinarizeGripper(_Gripper):
    """Makes 0 and 1 of a gripper that passes through other values when it moves: each becomes what is reached next.

        gripper     1.0   0.7   0.3   0.0   0.0   0.5   1.0   0.6
        becomes     1     0     0     0     0     1     1     0.6     nothing follows: the last value stays

    As `binarize_gripper_actions` of OpenVLA and Octo.

    Attributes:
      action: the field of the action, one array; by default that of `fields`.
      index: of the gripper in it.
      open: above this it is open, 1.
      closed: below this it is closed, 0.
    """

    open: float = 0.95
    closed: float = 0.05

    def changed(self, gripper: Array) -> Array:
        is_open, is_closed = gripper > self.open, gripper < self.closed
        return _reached_next(is_open.astype(gripper.dtype), is_open | is_closed, gripper[-1:])


@dataclasses.dataclass(frozen=True)
class InvertGripper(_Gripper):
    """Turns a gripper whose 1 is closed into one whose 1 is open: 1 - x.

        gripper     1.0   0.25   0.0   ->   0.0   0.75   1.0

    As `invert_gripper_actions` of OpenVLA and Octo.

    Attributes:
      action: the field of the action, one array; by default that of `fields`.
      index: of the gripper in it.
    """

    def changed(self, gripper: Array) -> Array:
        return (1 - gripper).astype(gripper.dtype)


@dataclasses.dataclass(frozen=True)
class RelativeToAbsoluteGripper(_Gripper):
    """Makes states, 1 for open and 0 for closed, of a gripper that is told to close (+) or to open (-).

        gripper     0     0     +1    0     0     -1    0
        becomes     1     1     0     0     0     1     1      open before it is closed for the first time

    The first command is taken for a change. Without any command it is open all the time. As `rel2abs_gripper_actions`
    of OpenVLA and Octo.

    Attributes:
      action: the field of the action, one array; by default that of `fields`.
      index: of the gripper in it.
      threshold: a command is above it, or below minus it.
    """

    threshold: float = 0.1

    def changed(self, gripper: Array) -> Array:
        opens = np.where(gripper < -self.threshold, 1, np.where(gripper > self.threshold, 0, -1))
        commanded = np.flatnonzero(opens >= 0)
        start = 1 - opens[commanded[0]] if len(commanded) else 1
        last = np.maximum.accumulate(np.where(opens >= 0, np.arange(len(opens)), -1))
        return np.where(last < 0, start, opens[last]).astype(gripper.dtype)


def _reached_next(values: Array, decided: Array, otherwise: Array) -> Array:
    """Each value, or where it is not decided, the next one that is; after the last of these, `otherwise`."""
    count = len(values)
    following = np.minimum.accumulate(np.where(decided, np.arange(count), count)[::-1])[::-1]
    filled: Array = np.concatenate([values, otherwise])[following]
    return filled
