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
from rlds_beam.connectors.statistics.exact_sums import UNIT, ExactSums, ratio, variance
from rlds_beam.episodes.episode import Episode
from rlds_beam.errors import UsageError

Array: TypeAlias = "np.ndarray[Any, Any]"

BEHAVIOR, TARGET = "propensity", "target_propensity"
MOST_ACTIONS = 1000
"""Discrete actions that are told apart; of more, nothing is said about calibration."""


_WINDOW = 1000
"""Weights that are smaller than the largest one by a factor of more than 2**_WINDOW do not count."""


@dataclasses.dataclass(frozen=True)
class Moments:
    """Number, sum and sum of squares of values. Immutable, mergeable; exact, so the order of merging does not matter.

    Attributes:
      count: how many values.
      total, squares: as of `ExactSums`.
    """

    count: int = 0
    total: int = 0
    squares: int = 0

    @staticmethod
    def of(values: Array) -> Moments:
        """Of finite values (N,)."""
        sums = ExactSums.of(values[None])
        return Moments(sums.count, sums.totals[0], sums.squares[0])

    def __add__(self, other: Moments) -> Moments:
        return Moments(self.count + other.count, self.total + other.total, self.squares + other.squares)

    @property
    def mean(self) -> float:
        return ratio(self.total, self.count * UNIT)

    @property
    def error(self) -> float:
        """The standard error of the mean."""
        return math.sqrt(variance(self.count, self.total, self.squares) / max(1, self.count - 1))

    @property
    def effective(self) -> float:
        """Kish's effective sample size of weights, `sum(w)^2 / sum(w^2)`: 0 if all are 0."""
        return self.total**2 / (self.squares * UNIT) if self.squares else 0.0


@dataclasses.dataclass(frozen=True)
class LogMoments:
    """Number, sums and sums of squares of weights given as logarithms: products of many ratios neither overflow nor
    become 0. Immutable, mergeable; exact, so the order of merging does not matter.

    Attributes:
      count: how many weights.
      parts: by exponent e, the sums of m and of m^2 of the weights m 2^e, where m is an integer of 53 bits.
    """

    count: int = 0
    parts: Mapping[int, tuple[int, int]] = dataclasses.field(default_factory=dict)

    @staticmethod
    def of(log: float) -> LogMoments:
        """Of one weight; -inf is the logarithm of 0."""
        if log == -math.inf:
            return LogMoments(1)
        exponent = math.floor(log / math.log(2))
        mantissa = round(math.exp(log - exponent * math.log(2)) * 2**52)
        return LogMoments(1, {exponent: (mantissa, mantissa**2)})

    def __add__(self, other: LogMoments) -> LogMoments:
        least = max((*self.parts, *other.parts), default=0) - _WINDOW
        parts: dict[int, tuple[int, int]] = {}
        for exponent, (total, squares) in (*self.parts.items(), *other.parts.items()):
            if exponent >= least:
                before = parts.get(exponent, (0, 0))
                parts[exponent] = (before[0] + total, before[1] + squares)
        return LogMoments(self.count + other.count, parts)

    @property
    def effective(self) -> float:
        """As of `Moments`."""
        least = min(self.parts, default=0)
        total = sum(part[0] << (e - least) for e, part in self.parts.items())
        squares = sum(part[1] << (2 * (e - least)) for e, part in self.parts.items())
        return total**2 / squares if squares else 0.0


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
          standard error. If the recorded propensities are right and the policy may choose k in every state, it is 1
          (Li, Kim and Zitouni 2015, the harmonic mean test). `largest_deviation` says how far the means are from 1
          (see `_deviation`).
        support: the mean of target_propensity / propensity, with its standard error. It is 1 if the recorded policy
          may choose whatever the target policy does, and less if it may not (the arithmetic mean test).
        effective_sample_size: `sum(w)^2 / sum(w^2)` (Kish 1965) of the ratios of all transitions, and of the
          trajectory-wise weights of all episodes, each with the number of them.
        """
        content: dict[str, Any] = {"transitions": self.total, "smallest": self.smallest}
        if self.actions is not None:
            tests = {str(action): self._calibration(moments) for action, moments in self.actions.items()}
            worst = max((self._deviation(test["mean"], test["error"]) for test in tests.values()), default=0.0)
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

    def _deviation(self, mean: float, error: float) -> float:
        """How far a mean of 1 / propensity is from 1: x of the empirical Bernstein bound.

        Of N values between 0 and b, the mean is off by at most `x error + 7 x^2 b / (6 (N - 1))`, but for a chance of
        `2 exp(-x^2 / 2)` on either side (Maurer and Pontil 2009, theorem 4, with x^2 = 2 ln(2 / delta)); b is 1 over
        the smallest propensity. The standard error alone is far too small if propensities vary a lot: the largest
        values are then so rare that they are missing in both the mean and the error. For large N, x counts standard
        errors.
        """
        off = abs(mean - 1)
        spread = 7 / (6 * self.smallest * max(1, self.total - 1))
        return 2 * off / (error + math.sqrt(error**2 + 4 * spread * off)) if off else 0.0


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
    with np.errstate(over="ignore"):
        values = np.minimum(1 / behavior, np.finfo(np.float64).max)
    return {int(action): Moments.of(values[inverse == i]) for i, action in enumerate(actions)}


def _sum(parts: Sequence[_M | None], nothing: _M) -> _M | None:
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts):
        return None
    return functools.reduce(operator.add, known, nothing)
