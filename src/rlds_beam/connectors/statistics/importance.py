"""Computes importance weights of recorded episodes, for off-policy evaluation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np

from rlds_beam.connectors.base import Batch, EpisodeConnector, FittedConnector, edit_each
from rlds_beam.connectors.fields import (
    IMPORTANCE_RATIO,
    STEP_WISE_WEIGHT,
    TRAJECTORY_WISE_WEIGHT,
    StepFields,
    match_fields,
)
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.transitions import transitions
from rlds_beam.errors import BadEpisode, UsageError, Violation
from rlds_beam.typing import Array


def importance_ratios(target: Array, behavior: Array) -> Array:
    """The importance ratios `target / behavior`, float64 (T,).

    Raises:
      BadEpisode: a propensity is negative or not finite, or a behavior propensity is 0.
    """
    target, behavior = np.asarray(target, np.float64), np.asarray(behavior, np.float64)
    for name, values, good in (("target", target, target >= 0), ("behavior", behavior, behavior > 0)):
        bad = np.flatnonzero(~(good & np.isfinite(values)))
        if len(bad):
            step = int(bad[0])
            detail = f"the propensity of the {name} policy at step {step} is {values[step]:g}"
            raise BadEpisode(Violation("propensity_out_of_range", detail, None, step))
    return cast(Array, target / behavior)


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
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            ratios[:count] = importance_ratios(target, behavior)
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
            if np.isinf(values).any():
                step = int(np.argmax(np.isinf(values)))
                raise UsageError(
                    f"AddImportanceWeights: {episode.key}: {name} at step {step} overflows float64 "
                    f"({np.finfo(np.float64).max:.2g}). Add logarithms with `log: true`, or limit it with `clip: 1000`"
                )
        return episode.with_columns(weights)

    def _propensities(self, episode: Episode, path: str) -> Array:
        match_fields(episode.steps, path, "AddImportanceWeights", "name the fields with `target` and `behavior`")
        values = np.asarray(episode.steps[path])
        if values.shape != (len(episode),) or not (values.dtype.kind in "fiu" or values.dtype.name == "bfloat16"):
            raise UsageError(
                f"AddImportanceWeights: {path} is {values.dtype} of shape {values.shape[1:]} per step, expected one "
                "number"
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
            over = np.flatnonzero(~np.isfinite(values))
            if len(over):
                raise UsageError(
                    f"SelfNormalizeImportanceWeights: the sum of {path} at step {over[0]} over {self._count:,} "
                    "episodes overflows float64. Limit the weights with `clip: 1000` of AddImportanceWeights"
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
