"""Whether recorded propensities allow off-policy evaluation: calibration, support, effective sample size."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np

from rlds_beam.connectors.fields import StepFields, transitions
from rlds_beam.episodes.episode import Episode
from rlds_beam.errors import UsageError

Array: TypeAlias = "np.ndarray[Any, Any]"

BEHAVIOR, TARGET = "propensity", "target_propensity"
MOST_ACTIONS = 1000
"""Discrete actions that are told apart; of more, nothing is said about calibration."""


@dataclasses.dataclass(frozen=True)
class Moments:
    """Number, sum and sum of squares of values. Immutable, mergeable."""

    count: int = 0
    sum: float = 0.0
    squares: float = 0.0

    @staticmethod
    def of(values: Array) -> Moments:
        return Moments(len(values), float(values.sum()), float(np.square(values).sum()))

    def __add__(self, other: Moments) -> Moments:
        return Moments(self.count + other.count, self.sum + other.sum, self.squares + other.squares)

    @property
    def mean(self) -> float:
        return self.sum / self.count

    @property
    def error(self) -> float:
        """The standard error of the mean."""
        variance = max(0.0, self.squares / self.count - self.mean**2)
        return math.sqrt(variance / max(1, self.count - 1))

    @property
    def effective(self) -> float:
        """Kish's effective sample size of weights, `sum(w)^2 / sum(w^2)`: 0 where all are 0."""
        return self.sum**2 / self.squares if self.squares else 0.0


@dataclasses.dataclass(frozen=True)
class LogMoments:
    """Number, sum and sum of squares of values that are given as logarithms, as multiples of `exp(scale)` and its
    square: products of many ratios neither overflow nor become 0. Immutable, mergeable."""

    count: int = 0
    scale: float = -math.inf
    sum: float = 0.0
    squares: float = 0.0

    @staticmethod
    def of(log: float) -> LogMoments:
        """Of one value; -inf is the logarithm of 0."""
        return LogMoments(1) if log == -math.inf else LogMoments(1, log, 1.0, 1.0)

    def __add__(self, other: LogMoments) -> LogMoments:
        scale = max(self.scale, other.scale)
        if scale == -math.inf:
            return LogMoments(self.count + other.count)
        a, b = (math.exp(one.scale - scale) for one in (self, other))
        return LogMoments(
            self.count + other.count, scale, self.sum * a + other.sum * b, self.squares * a * a + other.squares * b * b
        )

    @property
    def effective(self) -> float:
        """As of `Moments`."""
        return self.sum**2 / self.squares if self.squares else 0.0


@dataclasses.dataclass(frozen=True)
class PropensityStatistics:
    """Of the transitions whose propensity is recorded. Immutable, mergeable, picklable.

    Attributes:
      smallest: the smallest propensity: 1 over it is the largest factor of a weight.
      actions: by discrete action: 1 / propensity of the transitions with it, for the calibration. None where the
        actions are not single integers, or too many.
      total: transitions.
      ratios: of the target policy's propensity to the recorded one, over all transitions.
      weights: the products of them over each episode.
    """

    smallest: float
    total: int
    actions: Mapping[int, Moments] | None
    ratios: Moments | None
    weights: LogMoments | None

    @staticmethod
    def of(episode: Episode, fields: StepFields | None = None) -> PropensityStatistics | None:
        """Of one episode; None where it has no transition, or records no propensity above 0 for each of them.

        Raises:
          UsageError: a propensity under the target policy is negative, or its ratio to the recorded one overflows.
        """
        count = transitions(episode)
        behavior = _numbers(episode, BEHAVIOR, count)
        if behavior is None or not (behavior > 0).all():
            return None
        actions = _by_action(episode, fields or StepFields(), behavior)
        target = _numbers(episode, TARGET, count)
        if target is None:
            return PropensityStatistics(float(behavior.min()), count, actions, None, None)
        with np.errstate(divide="ignore", over="ignore"):
            ratios = target / behavior
            _check(episode, ratios, target)
            weight = LogMoments.of(float((np.log(target) - np.log(behavior)).sum()))
        return PropensityStatistics(float(behavior.min()), count, actions, Moments.of(ratios), weight)

    @staticmethod
    def merged(parts: Sequence[PropensityStatistics]) -> PropensityStatistics | None:
        """All of them; of the target policy, if every part knows it."""
        if not parts:
            return None
        actions: dict[int, Moments] = {}
        for part in parts:
            for action, moments in (part.actions or {}).items():
                actions[action] = actions.get(action, Moments()) + moments
        told_apart = len(actions) <= MOST_ACTIONS and all(part.actions is not None for part in parts)
        return PropensityStatistics(
            min(part.smallest for part in parts),
            sum(part.total for part in parts),
            dict(sorted(actions.items())) if told_apart else None,
            _sum([part.ratios for part in parts], Moments()),
            _sum([part.weights for part in parts], LogMoments()),
        )

    def to_json(self) -> dict[str, Any]:
        """`transitions`, `smallest`, and what is known of `calibration`, `support` and `effective_sample_size`.

        calibration: the mean of 1{action = k} / propensity over all transitions, for each discrete action k, with its
          standard error. Where the recorded propensities are right and the policy may choose k in every state, it is 1
          (Li, Kim and Zitouni 2015, the harmonic mean test). `largest_deviation` is in standard errors.
        support: the mean of target_propensity / propensity, with its standard error. It is 1 where the recorded policy
          may choose whatever the target policy does, and less where it may not (the arithmetic mean test).
        effective_sample_size: `sum(w)^2 / sum(w^2)` (Kish 1965) of the ratios of all transitions, and of the
          trajectory-wise weights of all episodes, each with the number of them.
        """
        content: dict[str, Any] = {"transitions": self.total, "smallest": self.smallest}
        if self.actions is not None:
            tests = {str(action): self._calibration(moments) for action, moments in self.actions.items()}
            worst = max((abs(t["mean"] - 1) / t["error"] if t["error"] else 0.0 for t in tests.values()), default=0.0)
            content["calibration"] = {"actions": tests, "largest_deviation": worst}
        if self.ratios is not None and self.weights is not None:
            content["support"] = {"mean": self.ratios.mean, "error": self.ratios.error}
            content["effective_sample_size"] = {
                "transitions": self.ratios.effective, "of_transitions": self.ratios.count,
                "episodes": self.weights.effective, "of_episodes": self.weights.count,
            }  # fmt: skip
        return content

    def _calibration(self, moments: Moments) -> dict[str, float]:
        whole = dataclasses.replace(moments, count=self.total)  # the other transitions count 0
        return {"mean": whole.mean, "error": whole.error, "count": moments.count}


_M = TypeVar("_M", Moments, LogMoments)


def _numbers(episode: Episode, path: str, count: int) -> Array | None:
    """float64 (T,); None where there are no such finite numbers."""
    column = np.asarray(episode.steps[path]) if path in episode.steps else None
    if column is None or not count or column.ndim != 1 or column.dtype.kind != "f":
        return None
    values = column[:count].astype(np.float64)
    return values if np.isfinite(values).all() else None


def _check(episode: Episode, ratios: Array, target: Array) -> None:
    """Raises UsageError where nothing can be said about ratios."""
    bad = np.flatnonzero(np.isinf(ratios) | (target < 0))
    if len(bad):
        step = int(bad[0])
        wrong = "is negative" if target[step] < 0 else f"is more than float64 holds, divided by the {BEHAVIOR}"
        raise UsageError(f"{episode.key}: the {TARGET} at step {step}, {target[step]:g}, {wrong}")


def _by_action(episode: Episode, fields: StepFields, behavior: Array) -> dict[int, Moments] | None:
    column = episode.steps.get(fields.actions)
    if column is None or not isinstance(column, np.ndarray) or column.ndim != 1 or column.dtype.kind not in "iu":
        return None
    actions, inverse = np.unique(column[: len(behavior)], return_inverse=True)
    return {int(action): Moments.of(1 / behavior[inverse == i]) for i, action in enumerate(actions)}


def _sum(parts: Sequence[_M | None], nothing: _M) -> _M | None:
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts):
        return None
    return functools.reduce(operator.add, known, nothing)
