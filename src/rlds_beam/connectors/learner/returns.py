"""Returns, advantages and n-step targets."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeAlias, cast

import numpy as np

from rlds_beam.connectors.base import ColumnConnector, Columns
from rlds_beam.connectors.fields import StepFields, terminateds, transitions
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.nesting import below
from rlds_beam.errors import UsageError

Array: TypeAlias = "np.ndarray[Any, Any]"


def discounted_sums(values: Array, discount: float) -> Array:
    """`y[t] = values[t] + discount * y[t + 1]`, float64 (T,), in log2(T) passes over the whole array.

    values        v0          v1          v2     v3
    after k=1     v0+c.v1     v1+c.v2     v2+c.v3   v3
    after k=2     ... + c^2 times what stands two further on, which sums two values already
    """
    sums = np.array(values, np.float64)
    k = 1
    while k < len(sums):
        sums[:-k] += discount**k * sums[k:].copy()
        k *= 2
    return sums


@dataclasses.dataclass(frozen=True)
class ComputeReturnsToGo(ColumnConnector):
    """`returns_to_go`, float32: the discounted sum of the rewards from a transition to the end of its episode.

        gamma=0.5    rewards          1      2      4
                     returns_to_go    3      4      4         (T,)    R[t] = r[t] + gamma R[t+1]

    Nothing is added for what might come after a truncation.

    Attributes:
      gamma: the discount factor.
    """

    gamma: float = 1.0

    def add(self, episode: Episode, columns: Columns, fields: StepFields) -> Columns:
        real = real_transitions(episode)
        return {"returns_to_go": _rows(discounted_sums(_rewards(episode, fields, real), self.gamma), episode)}


@dataclasses.dataclass(frozen=True)
class GeneralAdvantageEstimation(ColumnConnector):
    """`advantages` and `value_targets`, float32, over whole episodes (Schulman et al. 2016, equation 16).

        delta[t]      = r[t] + gamma * V[t+1] - V[t]          V after a terminal state is 0
        advantages[t] = delta[t] + gamma * lambda_ * advantages[t+1]
        value_targets = advantages + V

    After a truncation the value of the last observation is taken in: V has one value more than there are transitions,
    and the last step of the episode has to hold it.

    Attributes:
      gamma: the discount factor.
      lambda_: 0 gives one-step TD errors, 1 the whole returns.
      values: the step field that holds V.
    """

    gamma: float = 0.99
    lambda_: float = 1.0
    values: str = "vf_preds"

    def add(self, episode: Episode, columns: Columns, fields: StepFields) -> Columns:
        if self.values not in episode.steps:
            raise UsageError(
                f"GeneralAdvantageEstimation: the steps have no {self.values}, the values of the observations"
            )
        real = real_transitions(episode)
        values = np.array(episode.steps[self.values][: real + 1], np.float64).reshape(real + 1)
        if real and terminateds(episode)[real - 1]:
            values[real] = 0
        deltas = _rewards(episode, fields, real) + self.gamma * values[1:] - values[:-1]
        advantages = discounted_sums(deltas, self.gamma * self.lambda_)
        return {"advantages": _rows(advantages, episode), "value_targets": _rows(advantages + values[:-1], episode)}


@dataclasses.dataclass(frozen=True)
class NStepReturns(ColumnConnector):
    """`rewards`, `new_obs`, `terminateds`, `truncateds` over n transitions instead of one, and `n_step`, int32.

        n=2, T=3      t      rewards           new_obs    n_step
                      0      r0 + gamma r1     o2         2
                      1      r1 + gamma r2     o3         2
                      2      r2                o3         1       the end: never past it

    `n_step` says how many rewards were summed, so that a learner discounts the value of `new_obs` by `gamma ** n_step`.
    It comes before the connectors whose columns it makes.

    Attributes:
      n: transitions.
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
    """The transitions of the episode without the timestep that `AddOneTsToEpisodesAndTruncate` added."""
    mask = episode.steps.get("loss_mask")
    return transitions(episode) if mask is None else int(np.count_nonzero(cast(Array, mask)))


def _rewards(episode: Episode, fields: StepFields, count: int) -> Array:
    if fields.rewards not in episode.steps:
        raise UsageError(f"the steps have no {fields.rewards}, only {', '.join(episode.steps)}; say which field it is")
    return np.asarray(episode.steps[fields.rewards][:count], np.float64).reshape(count)


def _rows(values: Array, episode: Episode) -> Array:
    """float32, with zeros for a timestep that was added."""
    rows = np.zeros(transitions(episode), np.float32)
    rows[: len(values)] = values
    return rows
