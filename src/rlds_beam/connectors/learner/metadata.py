"""Adds columns from any field: text, episode metadata, weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlds_beam.connectors.base import ColumnConnector, Columns
from rlds_beam.connectors.fields import StepFields, leaves, transitions
from rlds_beam.episodes.columns import all_below
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.errors import UsageError
from rlds_beam.text import did_you_mean


@dataclasses.dataclass(frozen=True)
class AddFieldsToBatch(ColumnConnector):
    """Adds a column for each named field of the steps or of the episode: text, metadata, `state_out`.

        {task: episode_metadata/task, text: language_instruction, state_out: state_out}

        step          0     1     2 (last)
        language      l0    l1    l2            text     l0  l1        bytes (T,)
        task          b"push" (episode field)   task     b"push"  b"push"

    Text is bytes (UTF-8); numbers keep their dtype. The last step's values are left out, as for actions. Episode fields
    are repeated in every row.

    Attributes:
      fields: column -> field; or a list of fields, which become columns of the same name. A field includes everything
        below it.
    """

    fields: Mapping[str, str] | Sequence[str]

    def add(self, episode: Episode, columns: Columns, fields: StepFields) -> Columns:
        named = self.fields if isinstance(self.fields, Mapping) else {field: field for field in self.fields}
        added: dict[str, Column] = {}
        for column, field in named.items():
            added |= field_columns(episode, field, column, "AddFieldsToBatch")
        return added


@dataclasses.dataclass(frozen=True)
class AddWeightsToBatch(ColumnConnector):
    """Adds `weights`, float32 (T,): the weight of each transition in the loss.

        weight=1            1   1   1           as in RLlib's replay buffers without priorities
        field=quality       q0  q1  q2          a step field; or an episode field, repeated

    Attributes:
      weight: the weight of each transition.
      field: a step field or episode field by which the weight is multiplied.
    """

    weight: float = 1.0
    field: str = ""

    def add(self, episode: Episode, columns: Columns, fields: StepFields) -> Columns:
        weights = np.full(transitions(episode), self.weight, np.float32)
        if self.field:
            values = np.asarray(field_columns(episode, self.field, self.field, "AddWeightsToBatch").get(self.field))
            if values.shape != weights.shape or values.dtype.kind not in "fiub":
                raise UsageError(
                    f"AddWeightsToBatch: {self.field} is not a number per step: {values.dtype} {values.shape[1:]}"
                )
            weights = weights * values.astype(np.float32)
        return {"weights": weights}


def field_columns(episode: Episode, field: str, column: str, connector: str) -> dict[str, Column]:
    """The columns of a step field or an episode field, one row per transition.

    Raises:
      UsageError: there is no such field.
    """
    count = transitions(episode)
    of_steps = {name: values[:count] for name, values in leaves(episode, field, column).items()}
    if of_steps:
        return of_steps
    paths = all_below(episode.metadata, field)
    if not paths:
        known = [*episode.steps, *episode.metadata]
        hint = did_you_mean(field, known, otherwise=f"there are {', '.join(known)}")
        raise UsageError(f"{connector}: there is no field {field}{hint}")
    return {column + path[len(field) :]: _repeat(episode.metadata[path], count) for path in paths}


def _repeat(value: Any, count: int) -> Column:
    """Repeats an episode field: (count, ...)."""
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, bytes):
        return np.full(count, value, object)
    array = np.asarray(value)
    return np.repeat(array[None], count, axis=0)
