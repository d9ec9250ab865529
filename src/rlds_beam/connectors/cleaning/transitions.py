"""Steps that follow: actions from the states that follow, and absorbing states after the end."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from rlds_beam.connectors.base import EpisodeConnector
from rlds_beam.connectors.fields import StepFields
from rlds_beam.connectors.statistics.used_statistics import numbers
from rlds_beam.episodes.columns import all_below, below, concatenate, is_numeric, zeros_like
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.errors import UsageError
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.typing import Array


@dataclasses.dataclass(frozen=True)
class NextStateAsAction(EpisodeConnector):
    """Sets the action of each step to the state of the next step, as for UMI's data: the pose to reach.

        state      s0       s1       s2 (last)
        action     s1       s2       s2 (void)

    The last action repeats the last state: the pose is held. Several fields are joined along their last axis, in the
    given order, and must have the same dtype. The states remain as they are.

    Attributes:
      fields: the state fields: `observation/robot0_eef_pos`.
      name: the action field to write.
    """

    fields: Sequence[str]
    name: str = "action"

    def __post_init__(self) -> None:
        names = (self.fields,) if isinstance(self.fields, str) else tuple(self.fields)
        if not names:
            raise UsageError("NextStateAsAction: fields is empty; name the state fields that the action consists of")
        object.__setattr__(self, "fields", names)

    def edit(self, episode: Episode, fields: StepFields) -> Episode:
        parts = [_numbers(episode, path) for path in self.fields]
        dtypes = {part.dtype.name for part in parts}
        if len(dtypes) > 1:
            raise UsageError(
                f"NextStateAsAction: the fields have the dtypes {', '.join(sorted(dtypes))}; choose fields of one dtype"
            )
        state = parts[0]
        if len(parts) > 1:
            rows = [part[:, None] if part.ndim == 1 else part for part in parts]
            if len({row.shape[:-1] for row in rows}) > 1:
                shapes = ", ".join(str(list(part.shape[1:])) for part in parts)
                raise UsageError(f"NextStateAsAction: the fields have the shapes {shapes}, which cannot be joined")
            state = np.concatenate(rows, axis=-1)
        return episode.with_columns({self.name: np.concatenate([state[1:], state[-1:]])})


def _numbers(episode: Episode, path: str) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    column: Column | None = episode.steps.get(path)
    if column is None:
        known = ", ".join(sorted(episode.steps))
        raise UsageError(f"NextStateAsAction: the episode has no field {path}; it has {known}")
    if isinstance(column, EncodedImages) or not (is_numeric(column) or column.dtype == np.bool_):
        raise UsageError(f"NextStateAsAction: {path} does not hold numbers")
    return column


@dataclasses.dataclass(frozen=True)
class AbsorbingStates(EpisodeConnector):
    """Ends terminated episodes in an absorbing state, so a learned reward can tell termination from a time limit.

        terminated    o0   o1   o2   (o3)          truncated     o0   o1   o2
        obs           o0 0  o1 0  o2 0  0 1  0 1   obs           o0 0  o1 0  o2 0
        action        a0    a1    a2    0    void  action        a0    a1    void
        reward        r0    r1    r2    0    void  reward        r0    r1    void
        is_terminal   F     F     F     F    T     is_terminal   F     F     F

    The observation gets one more column: 1 if the state is absorbing, 0 otherwise. The absorbing state, with zeros in
    the other columns, replaces the terminal observation and has one transition to itself with zero action and reward
    (discriminator-actor-critic, Kostrikov et al. 2019). Truncated episodes get no absorbing state. A nested observation
    gets the flag as a new leaf, float32 (number of steps,).

    Attributes:
      indicator: the name of the new leaf in a nested observation.
    """

    indicator: str = "absorbing"

    def edit(self, episode: Episode, fields: StepFields) -> Episode:
        last = len(episode) - 1
        if last < 1 or not np.asarray(episode.steps["is_terminal"], bool)[last]:
            return episode.replace(steps=self._mark(episode, fields, np.zeros(len(episode), bool)))
        longer = episode.replace(steps={p: _longer(p, column, last, fields) for p, column in episode.steps.items()})
        return longer.replace(steps=self._mark(longer, fields, np.arange(last + 2) >= last))

    def _mark(self, episode: Episode, fields: StepFields, absorbing: Array) -> dict[str, Column]:
        if not all_below(episode.steps, fields.obs):
            raise UsageError(f"AbsorbingStates: the steps have no {fields.obs}, only {', '.join(episode.steps)}")
        if fields.obs not in episode.steps:
            return {**episode.steps, f"{fields.obs}/{self.indicator}": absorbing.astype(np.float32)}
        observation = numbers(episode.steps[fields.obs], fields.obs, "AbsorbingStates")
        if observation.ndim != 2:
            raise UsageError(f"AbsorbingStates: {fields.obs} has shape {observation.shape[1:]}, expected a vector")
        marks = absorbing[:, None].astype(observation.dtype)
        return {**episode.steps, fields.obs: np.concatenate([observation, marks], axis=1)}


def _longer(path: str, column: Column, last: int, fields: StepFields) -> Column:
    """A column of steps 0 to last + 1; the last two are absorbing."""
    if path in ("is_last", "is_terminal"):
        return concatenate([zeros_like(column, last + 1), column[last:]])
    if path == "discount":  # the step into the absorbing state is an ordinary one
        discount = np.asarray(column)[[*range(last - 1), max(last - 2, 0), last - 1, last]]
        discount[: 1 if last == 1 else 0] = 1
        return discount
    if any(below(path, field) for field in (fields.obs, fields.actions, fields.rewards)):
        return concatenate([column[:last], zeros_like(column, 2)])
    return concatenate([column, column[last:]])
