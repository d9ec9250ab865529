"""Computes returns, advantages, and n-step targets; adds the timestep that advantages need."""

from __future__ import annotations

import dataclasses
from typing import cast

import numpy as np

from rlds_beam.connectors.base import ColumnConnector, Columns, EpisodeConnector
from rlds_beam.connectors.fields import StepFields, match_fields, terminateds
from rlds_beam.episodes.columns import below, concatenate, zeros_like
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.episodes.schema import FLAGS
from rlds_beam.episodes.transitions import transitions, with_final_observation
from rlds_beam.errors import UsageError
from rlds_beam.typing import Array


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
        return {"returns_to_go": _rows(discounted_sums(_rewards(episode, fields, real), self.gamma), episode)}


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
        return {"advantages": _rows(advantages, episode), "value_targets": _rows(advantages + values[:-1], episode)}


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


def _rows(values: Array, episode: Episode) -> Array:
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
