"""Converts the gripper's part of an action to the convention of OpenVLA and Octo: 1 is open, 0 is closed."""

from __future__ import annotations

import dataclasses

import numpy as np

from rlds_beam.connectors.base import EpisodeConnector
from rlds_beam.connectors.cleaning.selection import vectors
from rlds_beam.connectors.fields import StepFields
from rlds_beam.episodes.episode import Episode
from rlds_beam.typing import Array


@dataclasses.dataclass(frozen=True)
class _Gripper(EpisodeConnector):
    """Changes one dimension of the action.

    Attributes:
      action: the action field, a single array; by default `fields.actions`.
      index: the index of the gripper in the action.
    """

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
class BinarizeGripper(_Gripper):
    """Rounds a gripper that moves through intermediate values to 0 and 1: each value becomes the next end reached.

        gripper     1.0   0.7   0.3   0.0   0.0   0.5   1.0   0.6
        becomes     1     0     0     0     0     1     1     0.6     no end follows: the last value is kept

    Equals `binarize_gripper_actions` of OpenVLA and Octo.

    Attributes:
      action: the action field, a single array; by default `fields.actions`.
      index: the index of the gripper in the action.
      open: values above this are open, 1.
      closed: values below this are closed, 0.
    """

    reads_images = False

    open: float = 0.95
    closed: float = 0.05

    def decide(self, gripper: Array) -> Array:
        is_open, is_closed = gripper > self.open, gripper < self.closed
        return _fill_from_next(is_open.astype(gripper.dtype), is_open | is_closed, gripper[-1:])


@dataclasses.dataclass(frozen=True)
class InvertGripper(_Gripper):
    """Inverts a gripper for which 1 means closed: 1 - x.

        gripper     1.0   0.25   0.0   ->   0.0   0.75   1.0

    Equals `invert_gripper_actions` of OpenVLA and Octo.

    Attributes:
      action: the action field, a single array; by default `fields.actions`.
      index: the index of the gripper in the action.
    """

    reads_images = False

    def decide(self, gripper: Array) -> Array:
        return (1 - gripper).astype(gripper.dtype)


@dataclasses.dataclass(frozen=True)
class RelativeToAbsoluteGripper(_Gripper):
    """Converts close (+) and open (-) commands of a gripper to states: 1 is open, 0 is closed.

        gripper     0     0     +1    0     0     -1    0
        becomes     1     1     0     0     0     1     1      open until the first close command

    The first command is assumed to change the state. Without commands, the gripper is always open. Equals
    `rel2abs_gripper_actions` of OpenVLA and Octo.

    Attributes:
      action: the action field, a single array; by default `fields.actions`.
      index: the index of the gripper in the action.
      threshold: a command is greater than this, or less than minus this.
    """

    reads_images = False

    threshold: float = 0.1

    def decide(self, gripper: Array) -> Array:
        opens = np.where(gripper < -self.threshold, 1, np.where(gripper > self.threshold, 0, -1))
        commanded = np.flatnonzero(opens >= 0)
        start = 1 - opens[commanded[0]] if len(commanded) else 1
        last = np.maximum.accumulate(np.where(opens >= 0, np.arange(len(opens)), -1))
        return np.where(last < 0, start, opens[last]).astype(gripper.dtype)


def _fill_from_next(values: Array, decided: Array, otherwise: Array) -> Array:
    """Each decided value; for the others the next decided one, or `otherwise` after the last."""
    count = len(values)
    following = np.minimum.accumulate(np.where(decided, np.arange(count), count)[::-1])[::-1]
    filled: Array = np.concatenate([values, otherwise])[following]
    return filled
