"""RLlib's action distributions, in numpy."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Sequence
from typing import cast

import numpy as np

from rlds_beam.errors import UsageError
from rlds_beam.typing import Array

_LOG_SQRT_2PI = math.log(2 * math.pi) / 2  # a Python float, so that sums keep their dtype
_LOG_STD = (-5.0, 2.0)
"""The log standard deviation of a squashed Gaussian is clipped to this range, as in RLlib."""


class ActionDistribution(abc.ABC):
    """A distribution over actions (N, ...), with parameters `inputs` (N, K) and random numbers `noise` (N, ...)."""

    normal = False
    """Whether the noise is standard normal; otherwise it is uniform in [0, 1)."""

    @abc.abstractmethod
    def width(self, inputs: int) -> int:
        """The number of random numbers per action; raises UsageError if the number of `inputs` is invalid."""

    @abc.abstractmethod
    def mode(self, inputs: Array) -> Array:
        """The most likely actions; for a Gaussian, its mean."""

    @abc.abstractmethod
    def sample(self, inputs: Array, noise: Array) -> tuple[Array, Array]:
        """Samples actions; returns them and their log-probabilities or log-densities (N,)."""

    @abc.abstractmethod
    def log_probability(self, inputs: Array, actions: Array) -> Array:
        """The log-probabilities or log-densities (N,) of given actions."""


class Categorical(ActionDistribution):
    """Actions int64 (N,), from logits (N, number of actions)."""

    def width(self, inputs: int) -> int:
        return 1

    def mode(self, inputs: Array) -> Array:
        return cast(Array, np.argmax(inputs, axis=-1))

    def sample(self, inputs: Array, noise: Array) -> tuple[Array, Array]:
        logp = log_softmax(inputs)
        bounds = np.cumsum(np.exp(logp.astype(np.float64)), axis=-1)
        actions = (noise[:, :1] * bounds[:, -1:] >= bounds).sum(axis=-1)
        return actions, np.take_along_axis(logp, actions[:, None], axis=-1)[:, 0]

    def log_probability(self, inputs: Array, actions: Array) -> Array:
        return np.take_along_axis(log_softmax(inputs), actions[:, None].astype(np.int64), axis=-1)[:, 0]


@dataclasses.dataclass(frozen=True)
class MultiCategorical(ActionDistribution):
    """Actions int64 (N, len(sizes)), from logits (N, sum(sizes)), concatenated choice by choice."""

    sizes: Sequence[int]

    def width(self, inputs: int) -> int:
        if inputs != sum(self.sizes):
            raise UsageError(f"GetActions: {inputs} logits, but sizes={list(self.sizes)} needs {sum(self.sizes)}")
        return len(self.sizes)

    def mode(self, inputs: Array) -> Array:
        return np.stack([np.argmax(part, axis=-1) for part in self._parts(inputs)], axis=-1)

    def sample(self, inputs: Array, noise: Array) -> tuple[Array, Array]:
        categorical = Categorical()
        samples = [categorical.sample(part, noise[:, i : i + 1]) for i, part in enumerate(self._parts(inputs))]
        return np.stack([actions for actions, _ in samples], axis=-1), np.sum([logp for _, logp in samples], axis=0)

    def log_probability(self, inputs: Array, actions: Array) -> Array:
        parts, categorical = self._parts(inputs), Categorical()
        return cast(Array, np.sum([categorical.log_probability(p, actions[:, i]) for i, p in enumerate(parts)], axis=0))

    def _parts(self, inputs: Array) -> list[Array]:
        return np.split(inputs, np.cumsum(self.sizes)[:-1], axis=-1)


class DiagonalGaussian(ActionDistribution):
    """Actions (N, A), from means and log standard deviations (N, 2 A)."""

    normal = True

    def width(self, inputs: int) -> int:
        if inputs % 2:
            raise UsageError(f"GetActions: {inputs} inputs, but a Gaussian needs an even number: means and log stds")
        return inputs // 2

    def mode(self, inputs: Array) -> Array:
        return self._parts(inputs)[0]

    def sample(self, inputs: Array, noise: Array) -> tuple[Array, Array]:
        mean, log_std = self._parts(inputs)
        noise = noise.astype(inputs.dtype)
        logp = -(np.square(noise) / 2 + log_std + _LOG_SQRT_2PI).sum(axis=-1)
        return mean + np.exp(log_std) * noise, logp.astype(inputs.dtype)

    def log_probability(self, inputs: Array, actions: Array) -> Array:
        mean, log_std = self._parts(inputs)
        z = (actions - mean) / np.exp(log_std)
        return cast(Array, -(np.square(z) / 2 + log_std + _LOG_SQRT_2PI).sum(axis=-1))

    def _parts(self, inputs: Array) -> tuple[Array, Array]:
        mean, log_std = np.split(inputs, 2, axis=-1)
        return mean, log_std


class SquashedGaussian(DiagonalGaussian):
    """A Gaussian squashed by tanh to [-1, 1] (Haarnoja et al. 2018, equation 21)."""

    def mode(self, inputs: Array) -> Array:
        return cast(Array, np.tanh(super().mode(inputs)))

    def sample(self, inputs: Array, noise: Array) -> tuple[Array, Array]:
        x, logp = super().sample(inputs, noise)
        slope = 2 * (math.log(2) - x - np.logaddexp(0, -2 * x))  # log(1 - tanh(x)**2)
        return np.tanh(x), (logp - slope.sum(axis=-1)).astype(inputs.dtype)

    def log_probability(self, inputs: Array, actions: Array) -> Array:
        inside = 1 - np.finfo(inputs.dtype).eps
        actions = np.clip(actions, -inside, inside)
        slope = np.log1p(-np.square(actions))
        return cast(Array, super().log_probability(inputs, np.arctanh(actions)) - slope.sum(axis=-1))

    def _parts(self, inputs: Array) -> tuple[Array, Array]:
        mean, log_std = np.split(inputs, 2, axis=-1)
        return mean, np.clip(log_std, *_LOG_STD)


def log_softmax(logits: Array) -> Array:
    """The log-probabilities, in the dtype of the logits."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return cast(Array, shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))
