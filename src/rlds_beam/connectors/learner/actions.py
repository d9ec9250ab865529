"""Turns model outputs into actions."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rlds_beam.connectors.base import Batch, Columns
from rlds_beam.connectors.fields import agent_of
from rlds_beam.connectors.learner.distributions import (
    ActionDistribution,
    Categorical,
    DiagonalGaussian,
    MultiCategorical,
    SquashedGaussian,
)
from rlds_beam.connectors.learner.outputs import as_numpy, episodes_of, map_columns, outputs_of
from rlds_beam.episodes.columns import below
from rlds_beam.episodes.episode import Episode
from rlds_beam.errors import UsageError
from rlds_beam.typing import Array

_DISTRIBUTIONS = ("categorical", "multi_categorical", "diagonal_gaussian", "squashed_gaussian")


@dataclasses.dataclass(frozen=True)
class GetActions:
    """Adds `actions` and `action_logp`, computed from the `action_dist_inputs` of a model, for running episodes.

        distribution          action_dist_inputs              actions
        categorical           logits (N, number of actions)   int64 (N,)
        multi_categorical     logits (N, sum(sizes))          int64 (N, len(sizes))
        diagonal_gaussian     means, log stds (N, 2 A)        float (N, A)
        squashed_gaussian     the same                        float (N, A), through tanh: -1 to 1

    If the model returned `actions`, they are kept. With `explore`, actions are sampled; the random numbers depend only
    on the seed, the episode's key and agent, and the step, not on the other running episodes. Without it, the most
    likely actions are taken and there is no `action_logp`. (RLlib then returns a logp of 0, and does not apply tanh to
    the squashed Gaussian's mean.)

    Attributes:
      distribution: one of the four names in the table.
      sizes: the number of actions of each choice, for `multi_categorical`.
      explore: whether to sample actions or take the most likely ones.
      seed: seeds the random numbers.
    """

    distribution: str = "categorical"
    sizes: Sequence[int] = ()
    explore: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if self.distribution not in _DISTRIBUTIONS:
            raise UsageError(
                f"GetActions: distribution={self.distribution}, expected one of {', '.join(_DISTRIBUTIONS)}"
            )

    def __call__(self, batch: Batch) -> Batch:
        modules = outputs_of(self, batch)
        return batch.replace(modules={m: self._actions(batch, m, columns) for m, columns in modules.items()})

    def _actions(self, batch: Batch, module: str, columns: Columns) -> Columns:
        if any(below(name, "actions") for name in columns):
            return columns
        if "action_dist_inputs" not in columns:
            raise UsageError(
                f"GetActions: the model of {module} returned neither actions nor action_dist_inputs, only "
                f"{', '.join(columns)}"
            )
        inputs = as_numpy(columns["action_dist_inputs"])
        flat, rows = inputs.reshape(-1, inputs.shape[-1]), inputs.shape[:-1]  # there may be a time axis of 1
        of, episodes = self._distribution(), episodes_of(batch, module)
        if len(flat) != len(episodes):
            raise UsageError(f"GetActions: {len(flat)} rows for {module}, which has {len(episodes)} running episodes")
        width = of.width(flat.shape[-1])
        if not self.explore:
            actions = of.mode(flat)
            return {**columns, "actions": actions.reshape(*rows, *actions.shape[1:])}
        noise = [self._noise(episode, width, normal=of.normal) for episode in episodes]
        actions, logp = of.sample(flat, np.stack(noise))
        added = {"actions": actions.reshape(*rows, *actions.shape[1:]), "action_logp": logp.reshape(rows)}
        return {**added, **columns}

    def log_probability(self, inputs: Array, actions: Array) -> Array:
        """Returns the log-probabilities or log-densities (N,) of `actions`, given `inputs` (N, K)."""
        return self._distribution().log_probability(inputs, actions)

    def _distribution(self) -> ActionDistribution:
        if self.distribution == "multi_categorical":
            return MultiCategorical(self.sizes)
        distributions: dict[str, Callable[[], ActionDistribution]] = {
            "categorical": Categorical,
            "diagonal_gaussian": DiagonalGaussian,
            "squashed_gaussian": SquashedGaussian,
        }
        return distributions[self.distribution]()

    def _noise(self, episode: Episode, width: int, *, normal: bool) -> Array:
        """The random numbers for an episode's last step."""
        name = f"{self.seed}/{episode.key}/{agent_of(episode)}"
        key = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=16).digest(), "little")
        random = np.random.Generator(np.random.Philox(key=key, counter=len(episode) << 64))
        return random.standard_normal(width) if normal else random.random(width)


@dataclasses.dataclass(frozen=True)
class NormalizeAndClipActions:
    """Adds `actions_for_env`: the actions, scaled from [-1, 1] to the bounds of the action space.

        actions             -1     0     1     2          low=0, high=10
        normalize_actions    0     5    10    10          low + (a + 1) (high - low) / 2, then clipped
        clip_actions         0     0     1     2          clipped only

    `actions` does not change. Integer actions and actions with infinite bounds are not scaled.

    Attributes:
      low, high: the bounds: a number, a list with one number per dimension, or a mapping of these by leaf of the
        action.
      normalize_actions: whether to scale, and then clip.
      clip_actions: whether to clip if not scaling.
    """

    low: Any = -1.0
    high: Any = 1.0
    normalize_actions: bool = True
    clip_actions: bool = False

    def __call__(self, batch: Batch) -> Batch:
        return map_columns(self, batch, self._for_env) if self.normalize_actions or self.clip_actions else batch

    def _for_env(self, columns: Columns) -> Columns:
        actions = {name: as_numpy(column) for name, column in columns.items() if below(name, "actions")}
        for_env = {name.replace("actions", "actions_for_env", 1): self._one(name, a) for name, a in actions.items()}
        return {**columns, **for_env}

    def _one(self, name: str, actions: Array) -> Array:
        low, high = (self._bound(bound, name, actions) for bound in (self.low, self.high))
        if self.normalize_actions:
            if actions.dtype.kind != "f" or not (np.isfinite(low).all() and np.isfinite(high).all()):
                return actions
            actions = low + (actions + 1) * (high - low) / 2
        return np.clip(actions, low, high)

    def _bound(self, bound: Any, name: str, actions: Array) -> Array:
        if isinstance(bound, Mapping):
            leaf = name.partition("/")[2]
            if leaf not in bound:
                raise UsageError(f"NormalizeAndClipActions: no bound for {name}, only for {', '.join(bound)}")
            bound = bound[leaf]
        return np.asarray(bound, actions.dtype if actions.dtype.kind == "f" else None)
