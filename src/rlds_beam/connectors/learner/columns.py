"""Adds the columns of RLlib's training batches, one row per transition; and columns from any field."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from rlds_beam.connectors.base import ColumnConnector, Columns
from rlds_beam.connectors.fields import (
    StepFields,
    find_agent,
    find_module,
    leaves,
    match_fields,
    name_leaves,
    terminateds,
    truncateds,
)
from rlds_beam.episodes.columns import all_below, below, is_text
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.episodes.schema import ADD_ACTIONS
from rlds_beam.episodes.transitions import transitions
from rlds_beam.errors import UsageError


class AddObservationsFromEpisodesToBatch(ColumnConnector):
    """Adds `obs`: the observation of each transition. The episode's last observation is left out.

    observation (T+1)   o0 o1 o2 o3
    obs (T)             o0 o1 o2
    """

    def add(self, episode: Episode, columns: Columns, fields: StepFields) -> Columns:
        return {} if is_there(columns, "obs") else _first(_require(episode, fields.obs, "obs"), transitions(episode))


class AddNextObservationsFromEpisodesToTrainBatch(ColumnConnector):
    """Adds `new_obs`: the observation after each transition.

    observation (T+1)   o0 o1 o2 o3
    new_obs (T)         o1 o2 o3
    """

    def add(self, episode: Episode, columns: Columns, fields: StepFields) -> Columns:
        if is_there(columns, "new_obs"):
            return {}
        observations = _require(episode, fields.obs, "new_obs")
        return {name: column[1:] for name, column in observations.items() if not is_text(column)}


class AddColumnsFromEpisodesToTrainBatch(ColumnConnector):
    """Adds `actions`, `rewards`, `terminateds`, `truncateds`, and other outputs of the behavior policy (`extras`).

        step          0    1    2    3 (last, terminal)
        action        a0   a1   a2   (void)               actions       a0  a1  a2     (T, ...), dtypes as recorded
        reward        r0   r1   r2   (void)               rewards       r0  r1  r2     (T,)
        is_terminal   F    F    F    T                    terminateds   F   F   T      bool (T,)
        action_logp   l0   l1   l2   (void)               action_logp   l0  l1  l2     (T,)

    The values of the last step are void in RLDS and left out. Only the last transition is terminated or truncated; it
    is neither if only a part of the episode was recorded.
    """

    def add(self, episode: Episode, columns: Columns, fields: StepFields) -> Columns:
        pairs = _of_transitions(tuple(episode.steps), tuple(columns), fields)
        added = _first({name: episode.steps[path] for path, name in pairs}, transitions(episode))
        ends = terminateds(episode)
        return {**added, "terminateds": ends, "truncateds": truncateds(episode, ends)}


@functools.lru_cache(maxsize=256)  # episodes of a dataset have the same paths
def _of_transitions(paths: tuple[str, ...], there: tuple[str, ...], fields: StepFields) -> tuple[tuple[str, str], ...]:
    """The paths of actions, rewards, and extras in the steps, each with its column name, except existing columns."""
    roles = {"actions": fields.actions, "rewards": fields.rewards, **{n: n for n in (*fields.extras, "loss_mask")}}
    pairs: list[tuple[str, str]] = []
    for column, field in roles.items():
        if not is_there(there, column):
            matches = name_leaves(paths, field, column)
            if not matches and column in ("actions", "rewards"):
                raise _missing(column, field, paths)
            pairs += matches
    return tuple(pairs)


class AddInfosFromEpisodesToBatch(ColumnConnector):
    """Adds `infos`: the environment's info dicts, if recorded, without the one of the last step.

    info/distance (T+1,)   i0 i1 i2 i3
    infos/distance (T,)    i0 i1 i2
    """

    def add(self, episode: Episode, columns: Columns, fields: StepFields) -> Columns:
        infos = {} if is_there(columns, "infos") else leaves(episode, fields.infos, "infos")
        return _first(infos, transitions(episode))


@dataclasses.dataclass(frozen=True)
class AddIdsToBatch(ColumnConnector):
    """Adds `eps_id`, `agent_id`, `module_id` (bytes), and `t` (int64): the origin of each row.

        eps_id      toy/1.0.0/train/0/7   toy/1.0.0/train/0/7      (T,)
        agent_id    left                  left                     empty for a single agent
        module_id   p0                    p0                       default_policy if the episode has none
        t           0                     1

    `eps_id` is the episode's key, the same in every run; RLlib's is random.

    Attributes:
      columns: the columns to add, out of these four.
    """

    columns: tuple[str, ...] = ("eps_id", "agent_id", "module_id", "t")

    def add(self, episode: Episode, columns: Columns, fields: StepFields) -> Columns:
        count = transitions(episode)
        ids = {"eps_id": str(episode.key), "agent_id": find_agent(episode), "module_id": find_module(episode)}
        available: dict[str, Column] = {name: np.full(count, value.encode(), object) for name, value in ids.items()}
        available["t"] = np.arange(count)
        if unknown := {*self.columns} - available.keys():
            raise UsageError(f"AddIdsToBatch: there is no column {min(unknown)}, only {', '.join(available)}")
        return {name: available[name] for name in self.columns}


def is_there(columns: Iterable[str], name: str) -> bool:
    """Whether the column, or leaves of it, exist: earlier connectors' columns are kept, as in RLlib."""
    return any(below(column, name) for column in columns)


def _require(episode: Episode, field: str, column: str) -> dict[str, Column]:
    required = leaves(episode, field, column)
    if not required:
        raise _missing(column, field, episode.steps)
    return required


def _missing(column: str, field: str, paths: Iterable[str]) -> UsageError:
    known = ", ".join(paths)
    hint = f" ({ADD_ACTIONS})" if field == "action" else ""
    return UsageError(
        f"column {column}: the steps have no field {field}, only {known}; name the field in `fields`{hint}"
    )


def _first(columns: Columns, count: int) -> dict[str, Column]:
    return {name: column[:count] for name, column in columns.items() if not is_text(column)}


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
                said = f"{values.dtype} {values.shape[1:]}"
                raise UsageError(f"AddWeightsToBatch: {self.field} is not a number per step: {said}")
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
    match_fields([*episode.steps, *episode.metadata], field, connector)
    paths = all_below(episode.metadata, field)
    repeated: dict[str, Column] = {}
    for path in paths:
        value = episode.metadata[path]
        value = value.encode() if isinstance(value, str) else value
        array = np.asarray(value, object if isinstance(value, bytes) else None)
        repeated[column + path[len(field) :]] = np.repeat(array[None], count, axis=0)
    return repeated
