"""Adds the columns of RLlib's training batches, one row per transition; returns and advantages; any other field."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import numpy as np

from rlds_beam.connectors.base import ColumnConnector, Columns, EpisodeConnector, find_agent, find_module
from rlds_beam.connectors.fields import StepFields, leaves, match_fields, name_leaves, terminateds, truncateds
from rlds_beam.episodes.columns import (
    all_below,
    below,
    concatenate,
    is_text,
    transitions,
    with_final_observation,
    zeros_like,
)
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.episodes.schema import ADD_ACTIONS, FLAGS
from rlds_beam.errors import UsageError
from rlds_beam.typing import Array


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


def discounted_sums(values: Array, discount: float) -> Array:
    """Computes `y[t] = values[t] + discount * y[t + 1]`, float64 (T,), in log2(T) passes over the array.

    values        v0          v1          v2     v3
    after k=1     v0+c.v1     v1+c.v2     v2+c.v3   v3
    after k=2     each element adds c^2 times the element two places later, which already sums two values
    """
    sums = np.array(values, np.float64)
    k = 1
    while k < len(sums):
        sums[:-k] += discount**k * sums[k:].copy()
        k *= 2
    return sums


@dataclasses.dataclass(frozen=True)
class ComputeReturnsToGo(ColumnConnector):
    """Adds `returns_to_go`, float32: the discounted sum of rewards from each transition to the end of the episode.

        gamma=0.5    rewards          1      2      4
                     returns_to_go    3      4      4         (T,)    R[t] = r[t] + gamma R[t+1]

    Rewards after a truncation are unknown and count as 0.

    Attributes:
      gamma: the discount factor.
    """

    gamma: float = 1.0

    def add(self, episode: Episode, columns: Columns, fields: StepFields) -> Columns:
        real = real_transitions(episode)
        return {"returns_to_go": _pad_rows(discounted_sums(_rewards(episode, fields, real), self.gamma), episode)}


@dataclasses.dataclass(frozen=True)
class GeneralAdvantageEstimation(ColumnConnector):
    """Adds `advantages` and `value_targets`, float32 (T,): GAE (Schulman et al. 2016, equation 16).

        delta[t]      = r[t] + gamma * V[t+1] - V[t]          V after a terminal state is 0
        advantages[t] = delta[t] + gamma * lambda_ * advantages[t+1]
        value_targets = advantages + V

    A truncated episode bootstraps from the value of its last observation, so the last step must hold V as well.

    Attributes:
      gamma: the discount factor.
      lambda_: the GAE parameter: 0 for one-step TD errors, 1 for full returns.
      values: the step field that holds V.
    """

    gamma: float = 0.99
    lambda_: float = 1.0
    values: str = "vf_preds"

    def add(self, episode: Episode, columns: Columns, fields: StepFields) -> Columns:
        match_fields(episode.steps, self.values, "GeneralAdvantageEstimation")
        real = real_transitions(episode)
        values = np.array(episode.steps[self.values][: real + 1], np.float64).reshape(real + 1)
        if real and terminateds(episode)[real - 1]:
            values[real] = 0
        deltas = _rewards(episode, fields, real) + self.gamma * values[1:] - values[:-1]
        advantages = discounted_sums(deltas, self.gamma * self.lambda_)
        return {
            "advantages": _pad_rows(advantages, episode),
            "value_targets": _pad_rows(advantages + values[:-1], episode),
        }


@dataclasses.dataclass(frozen=True)
class NStepReturns(ColumnConnector):
    """Adds n-step `rewards`, `new_obs`, `terminateds`, `truncateds`, and `n_step`, int32.

        n=2, T=3      t      rewards           new_obs    n_step
                      0      r0 + gamma r1     o2         2
                      1      r1 + gamma r2     o3         2
                      2      r2                o3         1       stops at the end

    `n_step` is the number of summed rewards: learners discount the value of `new_obs` by `gamma ** n_step`. Must come
    before connectors that add the same columns.

    Attributes:
      n: the number of transitions.
      gamma: the discount factor.
    """

    n: int = 1
    gamma: float = 0.99

    def __post_init__(self) -> None:
        if self.n < 1:
            raise UsageError(f"NStepReturns: n={self.n}, expected 1 or more")

    def add(self, episode: Episode, columns: Columns, fields: StepFields) -> Columns:
        count = transitions(episode)
        rewards = _rewards(episode, fields, count)
        summed = np.zeros(count)
        for k in range(min(self.n, count)):
            summed[: count - k] += self.gamma**k * rewards[k:]
        after = np.minimum(np.arange(count) + self.n, count)
        observations = {
            "new_obs" + path[len(fields.obs) :]: column[after]
            for path, column in episode.steps.items()
            if below(path, fields.obs)
        }
        last, terminal = (np.asarray(episode.steps[name], bool) for name in ("is_last", "is_terminal"))
        return {
            "rewards": summed.astype(np.asarray(episode.steps[fields.rewards]).dtype),
            **observations,
            "terminateds": terminal[after],
            "truncateds": last[after] & ~terminal[after],
            "n_step": (after - np.arange(count)).astype(np.int32),
        }


def real_transitions(episode: Episode) -> int:
    """The number of transitions, without the timestep that `AddOneTsToEpisodesAndTruncate` added."""
    mask = episode.steps.get("loss_mask")
    return transitions(episode) if mask is None else int(np.count_nonzero(cast(Array, mask)))


def _rewards(episode: Episode, fields: StepFields, count: int) -> Array:
    match_fields(episode.steps, fields.rewards, "rewards", "name it in `fields`")
    return np.asarray(episode.steps[fields.rewards][:count], np.float64).reshape(count)


def _pad_rows(values: Array, episode: Episode) -> Array:
    """Rows (T,), float32, with 0 for a timestep that was added."""
    rows = np.zeros(transitions(episode), np.float32)
    rows[: len(values)] = values
    return rows


class AddOneTsToEpisodesAndTruncate(EpisodeConnector):
    """Adds one timestep to each episode, so that a model also computes a value for the last observation.

        obs          o0 o1 o2   ->   o0 o1 o2 o3        plus the last observation
        actions      a0 a1 a2        a0 a1 a2 a2        the last one repeated
        rewards      r0 r1 r2        r0 r1 r2 0
        loss_mask                    1  1  1  0

    `terminateds` and `truncateds` stay at the last real transition. A partly recorded episode becomes truncated. Other
    model outputs (`vf_preds`) take the value of the last step.
    """

    def edit(self, episode: Episode, fields: StepFields) -> Episode:
        episode = with_final_observation(episode)
        last = len(episode) - 1
        if last < 1:
            return episode.with_columns({"loss_mask": np.zeros(len(episode), bool)})
        steps = {path: _longer(path, column, last, fields) for path, column in episode.steps.items()}
        flags = {name: np.array(steps[name], bool) for name in FLAGS}
        for flag in flags.values():
            flag[last + 1] = False
        flags["is_last"][last] = True
        return episode.replace(steps={**steps, **flags, "loss_mask": np.arange(last + 2) < last})


def _longer(path: str, column: Column, last: int, fields: StepFields) -> Column:
    """A column of steps 0 to last + 1."""
    if below(path, fields.actions):
        return concatenate([column[:last], column[last - 1 : last], column[last - 1 : last]])
    if below(path, fields.rewards):
        return concatenate([column[:last], zeros_like(column, 2)])
    return concatenate([column, column[last:]])
