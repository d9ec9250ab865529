"""Importance weights of recorded episodes, for off-policy evaluation, and statistics of their propensities."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from rlds_beam.connectors.base import Batch, EpisodeConnector, FittedConnector, edit_each
from rlds_beam.connectors.fields import (
    IMPORTANCE_RATIO,
    STEP_WISE_WEIGHT,
    TRAJECTORY_WISE_WEIGHT,
    StepFields,
    match_fields,
)
from rlds_beam.connectors.statistics.distributions import Moments
from rlds_beam.episodes.columns import transitions
from rlds_beam.episodes.episode import Episode
from rlds_beam.errors import BadEpisode, UsageError, Violation
from rlds_beam.typing import Array

BEHAVIOR, TARGET = "propensity", "target_propensity"
MAX_ACTIONS = 1000
"""The most discrete actions for which calibration is computed."""


@dataclasses.dataclass(frozen=True)
class AddImportanceWeights(EpisodeConnector):
    """Adds importance weights to the steps, float64 (number of steps,), from the propensities of two policies.

        step                                 0      1      2      3 (last)
        behavior   propensity                0.5    0.8    0.5    (void)
        target     target_propensity         0.25   0.8    1.0    (void)

        importance_ratio                     0.5    1.0    2.0    1        rho[t] = target[t] / behavior[t]
        step_wise_importance_weight          0.5    0.5    1.0    1.0      rho[0] * ... * rho[t]
        trajectory_wise_importance_weight    1.0    1.0    1.0    1.0      rho[0] * ... * rho[T-1]

    Formulas: Precup, Sutton, and Singh 2000. The weights are step fields, so every output can hold them. The void
    action of the last step has ratio 1. Compute the target propensities with `AddModelOutputs`, for example. Episodes
    with invalid propensities are rejected (`propensity_out_of_range`). A weight that overflows float64 ends the job;
    use `clip` or `log`.

    Attributes:
      target: the step field with the recorded actions' propensities under the target policy.
      behavior: the step field with their propensities under the behavior policy.
      clip: the largest ratio and weight (truncated importance sampling, Ionides 2008).
      log: add natural logarithms instead, which do not overflow or underflow: `log_importance_ratio`,
        `log_step_wise_importance_weight`, and `log_trajectory_wise_importance_weight`; -inf for a weight of 0.
    """

    target: str = "target_propensity"
    behavior: str = "propensity"
    clip: float | None = None
    log: bool = False

    def __post_init__(self) -> None:
        if self.clip is not None and not 0 < self.clip < np.inf:
            raise UsageError(f"AddImportanceWeights: clip={self.clip}, expected a finite number above 0")

    def edit(self, episode: Episode, fields: StepFields) -> Episode:
        ratios, logs = np.ones(len(episode)), np.zeros(len(episode))
        count = transitions(episode)
        target, behavior = (self._propensities(episode, path)[:count] for path in (self.target, self.behavior))
        for name, values, good in (("target", target, target >= 0), ("behavior", behavior, behavior > 0)):
            if not (good := good & np.isfinite(values)).all():
                step = int(np.argmin(good))
                detail = f"the propensity of the {name} policy at step {step} is {values[step]:g}"
                raise BadEpisode(Violation("propensity_out_of_range", detail, None, step))
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            ratios[:count] = target / behavior
            logs[:count] = np.log(target) - np.log(behavior)
            sums, products = np.cumsum(logs), np.cumprod(ratios)
            products = np.where(np.isfinite(products), products, np.exp(sums))  # once a product overflows
        single, step_wise = (logs, sums) if self.log else (ratios, products)
        names = (IMPORTANCE_RATIO, STEP_WISE_WEIGHT, TRAJECTORY_WISE_WEIGHT)
        whole = np.full(len(single), step_wise[-1] if len(single) else 1.0)
        weights = dict(zip(names, (single, step_wise, whole), strict=True))
        if self.clip is not None:
            most = np.log(self.clip) if self.log else self.clip
            weights = {name: np.minimum(values, most) for name, values in weights.items()}
        if self.log:
            return episode.with_columns({f"log_{name}": values for name, values in weights.items()})
        for name, values in weights.items():
            if (infinite := np.isinf(values)).any():
                raise UsageError(
                    f"AddImportanceWeights: {episode.key}: {name} at step {np.argmax(infinite)} overflows float64. Add "
                    "logarithms with `log: true`, or limit it with `clip: 1000`"
                )
        return episode.with_columns(weights)

    def _propensities(self, episode: Episode, path: str) -> Array:
        match_fields(episode.steps, path, "AddImportanceWeights", "name the fields with `target` and `behavior`")
        values = np.asarray(episode.steps[path])
        if values.shape != (len(episode),) or not (values.dtype.kind in "fiu" or values.dtype.name == "bfloat16"):
            raise UsageError(
                f"AddImportanceWeights: {path} is {values.dtype} {values.shape[1:]}, not one number a step"
            )
        return values.astype(np.float64)


_NORMALIZED = {name: f"self_normalized_{name}" for name in (STEP_WISE_WEIGHT, TRAJECTORY_WISE_WEIGHT)}


@dataclasses.dataclass(frozen=True)
class SelfNormalizeImportanceWeights(FittedConnector):
    """Divides the weights of `AddImportanceWeights` by their means over all episodes, float64.

        step-wise weights      t = 0    1      2             mean                             1.0    0.75   1.0
          of episode 0             0.5    0.5    1.0
          of episode 1             1.5    1.0    1.0*        of episode 0, self-normalized    0.5    0.67   1.0
                                                 * after the end of an episode, its last weight counts

        self_normalized_step_wise_importance_weight           w[t] / mean of w[t] over the episodes
        self_normalized_trajectory_wise_importance_weight     w / mean of w over the episodes

    Formulas: the weighted estimators of Precup, Sutton, and Singh 2000; for episodes of unequal length, Thomas 2015,
    section 3. The means are computed before anything is written. If a mean is 0, the result is 0.

    Attributes:
      means: weight field -> list of means per step; the last mean also applies to later steps. By default the
        dataset's own means.
    """

    means: Mapping[str, Sequence[float]] | None = None

    @property
    def fitted(self) -> bool:
        return self.means is not None

    def accumulator(self) -> WeightSums:
        return WeightSums()

    def fit(self, result: Mapping[str, Sequence[float]]) -> SelfNormalizeImportanceWeights:
        return SelfNormalizeImportanceWeights(result)

    def transform(self, batch: Batch) -> Batch:
        return edit_each(self, batch, self._edit)

    def _edit(self, episode: Episode, fields: StepFields) -> Episode:
        assert self.means is not None
        added = {}
        for path, normalized in _NORMALIZED.items():
            weights, means = _weights(episode, path), np.asarray(self.means[path])
            of_step = means[np.minimum(np.arange(len(episode)), len(means) - 1)]
            added[normalized] = np.divide(weights, of_step, out=np.zeros_like(weights), where=of_step > 0)
        return episode.with_columns(added)


class WeightSums:
    """An `Accumulator` of the mean weight at each step."""

    def __init__(self) -> None:
        self._sums: dict[str, Array] = {}
        self._count = 0

    def add(self, batch: Batch) -> None:
        """Adds the weights of a batch's episodes."""
        for episode in batch.episodes:
            if transitions(episode):
                weights = {path: _weights(episode, path)[: transitions(episode)] for path in _NORMALIZED}
                self._sums = {path: _sum(self._sums.get(path), values) for path, values in weights.items()}
                self._count += 1

    def merge(self, *others: WeightSums) -> WeightSums:
        """Merges the sums."""
        merged = WeightSums()
        for sums in (self, *others):
            merged._count += sums._count
            merged._sums |= {path: _sum(merged._sums.get(path), values) for path, values in sums._sums.items()}
        return merged

    def finish(self) -> dict[str, list[float]]:
        """The mean weights by field: a list over the steps of the longest episode, or [1.0] without episodes.

        Raises:
          UsageError: a sum overflows float64.
        """
        if not self._count:
            return {path: [1.0] for path in _NORMALIZED}
        for path, values in self._sums.items():
            if not (finite := np.isfinite(values)).all():
                raise UsageError(
                    f"SelfNormalizeImportanceWeights: the sum of {path} at step {np.argmin(finite)} over "
                    f"{self._count:,} episodes overflows float64. Limit the weights with `clip: 1000`"
                )
        return {path: (values / self._count).tolist() for path, values in self._sums.items()}


def _sum(a: Array | None, b: Array) -> Array:
    """The sum of two arrays over steps; the shorter one is extended with its last value."""
    if a is None:
        return b
    longest = max(len(a), len(b))
    with np.errstate(over="ignore"):  # `finish` reports it
        return cast(Array, sum(np.pad(values, (0, longest - len(values)), mode="edge") for values in (a, b)))


def _weights(episode: Episode, path: str) -> Array:
    hint = "put AddImportanceWeights before it, without `log`"
    match_fields(episode.steps, path, "SelfNormalizeImportanceWeights", hint)
    return np.asarray(episode.steps[path], np.float64)


@dataclasses.dataclass(frozen=True)
class PropensityStatistics:
    """Statistics of transitions with recorded propensities. Immutable, mergeable, picklable.

    Attributes:
      smallest: the smallest propensity; its inverse is the largest possible factor of a weight.
      total: the number of transitions.
      actions: discrete action -> the moments of 1 / propensity over its transitions, for calibration; None if
        actions are not single integers, or too many.
      ratios: the ratios of the target policy's propensities to the recorded ones, over all transitions.
      weights: the logarithms of the products of these ratios over each episode, which may over- or underflow.
    """

    smallest: float
    total: int
    actions: Mapping[int, Moments] | None
    ratios: Moments | None
    weights: Array | None

    @staticmethod
    def from_episode(episode: Episode, fields: StepFields | None = None, part: str = "") -> PropensityStatistics | None:
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
            weight = (np.log(target) - np.log(behavior)).sum()
        moments = Moments.from_columns(ratios[None], part)
        return PropensityStatistics(float(behavior.min()), count, actions, moments, np.array([weight]))

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
            np.concatenate(weights) if len(weights) == len(parts) else None,
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
                "episodes": _effective_size(self.weights),
                "of_episodes": len(self.weights),
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


def _effective_size(logs: Array) -> float:
    """Kish's effective sample size of weights, given their logarithms; 0 if all weights are 0."""
    logs = np.sort(logs)  # the sums are the same in any order of merging
    if logs[-1] == -np.inf:
        return 0.0
    weights = np.exp(logs - logs[-1])
    return float(weights.sum() ** 2 / np.square(weights).sum())


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
    return {int(action): Moments.from_columns(values[None, inverse == i], part) for i, action in enumerate(actions)}
