"""Computes whether recorded propensities allow off-policy evaluation: calibration, support, effective sample size."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlds_beam.connectors.fields import StepFields
from rlds_beam.connectors.statistics.distributions import Moments
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.transitions import transitions
from rlds_beam.errors import UsageError
from rlds_beam.typing import Array

BEHAVIOR, TARGET = "propensity", "target_propensity"
MAX_ACTIONS = 1000
"""The most discrete actions for which calibration is computed."""


_WINDOW = 1000
"""Weights smaller than the largest one by a factor of more than 2**_WINDOW are ignored."""


@dataclasses.dataclass(frozen=True)
class LogMoments:
    """The count, sum, and sum of squares of weights given as logarithms, so that products do not over- or underflow.

    Immutable, mergeable, and exact, so merge order does not matter.

    Attributes:
      count: the number of weights.
      parts: exponent e -> the sums of m and of m^2 for the weights m 2^e, where m is a 53-bit integer.
    """

    count: int = 0
    parts: Mapping[int, tuple[int, int]] = dataclasses.field(default_factory=dict)

    @staticmethod
    def of(log: float) -> LogMoments:
        """Computes the moments of one weight; -inf is the logarithm of 0."""
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
        """Kish's effective sample size of weights, `sum(w)^2 / sum(w^2)`; 0 if all weights are 0."""
        least = min(self.parts, default=0)
        total = sum(part[0] << (e - least) for e, part in self.parts.items())
        squares = sum(part[1] << (2 * (e - least)) for e, part in self.parts.items())
        return total**2 / squares if squares else 0.0


@dataclasses.dataclass(frozen=True)
class PropensityStatistics:
    """Statistics of transitions with recorded propensities. Immutable, mergeable, picklable.

    Attributes:
      smallest: the smallest propensity; its inverse is the largest possible factor of a weight.
      total: the number of transitions.
      actions: discrete action -> the moments of 1 / propensity over its transitions, for calibration; None if
        actions are not single integers, or too many.
      ratios: the ratios of the target policy's propensities to the recorded ones, over all transitions.
      weights: the products of these ratios over each episode.
    """

    smallest: float
    total: int
    actions: Mapping[int, Moments] | None
    ratios: Moments | None
    weights: LogMoments | None

    @staticmethod
    def of(episode: Episode, fields: StepFields | None = None, part: str = "") -> PropensityStatistics | None:
        """Computes the statistics of one episode; None unless it has transitions that all record a propensity above 0.

        Args:
          part: the name of the part of the data that the episode is from (`Moments`).

        Raises:
          UsageError: a target propensity is negative, or its ratio to the recorded one overflows.
        """
        count = transitions(episode)
        behavior = _numbers(episode, BEHAVIOR, count)
        if behavior is None or not (behavior > 0).all():
            return None
        actions = _by_action(episode, fields or StepFields(), behavior, part)
        target = _numbers(episode, TARGET, count)
        if target is None:
            return PropensityStatistics(float(behavior.min()), count, actions, None, None)
        with np.errstate(divide="ignore", over="ignore"):
            ratios = target / behavior
            bad = np.isinf(ratios) | (target < 0)
            if bad.any():
                step = int(np.argmax(bad))
                wrong = "is negative" if target[step] < 0 else f"overflows float64 when divided by the {BEHAVIOR}"
                raise UsageError(f"{episode.key}: the {TARGET} at step {step}, {target[step]:g}, {wrong}")
            weight = LogMoments.of(float((np.log(target) - np.log(behavior)).sum()))
        return PropensityStatistics(float(behavior.min()), count, actions, Moments.of(ratios[None], part), weight)

    @staticmethod
    def merged(parts: Sequence[PropensityStatistics]) -> PropensityStatistics | None:
        """Merges statistics; those of the target policy only if every part has them."""
        if not parts:
            return None
        of_actions: dict[int, list[Moments]] = {}
        for part in parts:
            for action, moments in (part.actions or {}).items():
                of_actions.setdefault(action, []).append(moments)
        actions = {action: first.merge(*others) for action, (first, *others) in sorted(of_actions.items())}
        ratios = [part.ratios for part in parts if part.ratios is not None]
        weights = [part.weights for part in parts if part.weights is not None]
        told_apart = len(actions) <= MAX_ACTIONS and all(part.actions is not None for part in parts)
        return PropensityStatistics(
            min(part.smallest for part in parts),
            sum(part.total for part in parts),
            actions if told_apart else None,
            ratios[0].merge(*ratios[1:]) if len(ratios) == len(parts) else None,
            functools.reduce(operator.add, weights) if len(weights) == len(parts) else None,
        )

    def to_json(self) -> dict[str, Any]:
        """`transitions`, `smallest`, and, if known, `calibration`, `support`, and `effective_sample_size`.

        calibration: the mean of 1{action = k} / propensity over all transitions, for each discrete action k, with its
          standard error. It is 1 if the recorded propensities are correct and the policy can choose k in every state
          (the harmonic mean test of Li, Kim, and Zitouni 2015). `largest_deviation` is how far the means are from 1
          (see `_deviation`).
        support: the mean of target_propensity / propensity, with its standard error. It is 1 if the recorded policy
          can choose every action that the target policy chooses, and less otherwise (the arithmetic mean test).
        effective_sample_size: `sum(w)^2 / sum(w^2)` (Kish 1965) of the ratios of all transitions, and of the
          trajectory-wise weights of all episodes, each with its count.
        """
        content: dict[str, Any] = {"transitions": self.total, "smallest": self.smallest}
        if self.actions is not None:
            tests: dict[str, dict[str, float]] = {}
            for action, moments in self.actions.items():
                whole = moments.merge(Moments.zeros(self.total - moments.count))  # the other transitions count 0
                tests[str(action)] = {**_mean_and_error(whole), "count": moments.count}
            worst = max((self._deviation(test["mean"], test["error"]) for test in tests.values()), default=0.0)
            content["calibration"] = {"actions": tests, "largest_deviation": worst}
        if self.ratios is not None and self.weights is not None:
            content["support"] = _mean_and_error(self.ratios)
            mean, std = float(self.ratios.mean[0]), float(self.ratios.std[0])
            content["effective_sample_size"] = {
                "transitions": self.ratios.count / (1 + (std / mean) ** 2) if mean else 0.0,
                "of_transitions": self.ratios.count,
                "episodes": self.weights.effective,
                "of_episodes": self.weights.count,
            }
        return content

    def _deviation(self, mean: float, error: float) -> float:
        """The distance of a mean of 1 / propensity from 1: x of the empirical Bernstein bound.

        The mean of N values in [0, b] is off by at most `x error + 7 x^2 b / (6 (N - 1))`, except with probability
        `2 exp(-x^2 / 2)` on either side (Maurer and Pontil 2009, theorem 4, with x^2 = 2 ln(2 / delta)); b is the
        inverse of the smallest propensity. The standard error alone is far too small if propensities vary a lot,
        because the largest values are too rare to appear in the mean or in the error. For large N, x counts standard
        errors.
        """
        off = abs(mean - 1)
        spread = 7 / (6 * self.smallest * max(1, self.total - 1))
        return 2 * off / (error + math.sqrt(error**2 + 4 * spread * off)) if off else 0.0


def _mean_and_error(moments: Moments) -> dict[str, float]:
    """The mean of one dimension, and its standard error."""
    error = moments.std[0] / math.sqrt(max(1, moments.count - 1))
    return {"mean": float(moments.mean[0]), "error": float(error)}


def _numbers(episode: Episode, path: str, count: int) -> Array | None:
    """A step field as float64 (T,); None if it is missing, not one finite float per step, or empty."""
    column = np.asarray(episode.steps[path]) if path in episode.steps else None
    if column is None or not count or column.ndim != 1 or column.dtype.kind != "f":
        return None
    values = column[:count].astype(np.float64)
    return values if np.isfinite(values).all() else None


def _by_action(episode: Episode, fields: StepFields, behavior: Array, part: str) -> dict[int, Moments] | None:
    column = episode.steps.get(fields.actions)
    if column is None or not isinstance(column, np.ndarray) or column.ndim != 1 or column.dtype.kind not in "iu":
        return None
    actions, inverse = np.unique(column[: len(behavior)], return_inverse=True)
    with np.errstate(over="ignore"):
        values = np.minimum(1 / behavior, np.finfo(np.float64).max)
    return {int(action): Moments.of(values[None, inverse == i], part) for i, action in enumerate(actions)}
