"""Turns model outputs into actions, and passes them on to the environments (module-to-env connectors).

Batch.modules    {"p0": {"actions": (2, 3)}, "p1": {"actions": (1, 3)}}         model outputs
Batch.columns    ({"actions": (1, 3)}, {...}, {...})                            one row per running episode
Batch.vector     {"actions": (3, 3)}, or [{"left": ..., "right": ...}, ...]     inputs of the environments
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from rlds_beam.connectors.base import Batch, Columns, Connector, find_agent, find_module, short_name
from rlds_beam.connectors.fields import check_choices
from rlds_beam.episodes.columns import below, concatenate, nest
from rlds_beam.episodes.episode import Episode
from rlds_beam.errors import UsageError
from rlds_beam.typing import Array

_LOG_SQRT_2PI = math.log(2 * math.pi) / 2  # a Python float, so that sums keep their dtype
_LOG_STD = (-5.0, 2.0)
"""The log standard deviation of a squashed Gaussian is clipped to this range, as in RLlib."""


@dataclasses.dataclass(frozen=True)
class Categorical:
    """Distributions over actions int64 (N,), from logits (N, number of actions).

    Like all distributions, it samples with random numbers `noise` (N, `width(K)`): standard normal ones if `normal`,
    else uniform ones in [0, 1). Log-probabilities and log-densities are (N,).

    Attributes:
      sizes: the number of actions of each of several choices, whose logits are concatenated (N, sum(sizes)). The
        actions are (N, len(sizes)) then.
    """

    sizes: Sequence[int] = ()
    normal = False

    def width(self, inputs: int) -> int:
        """The number of random numbers per action; raises UsageError if the number of `inputs` is invalid."""
        if self.sizes and inputs != sum(self.sizes):
            raise UsageError(f"GetActions: {inputs} logits, but sizes={list(self.sizes)} needs {sum(self.sizes)}")
        return len(self.sizes) or 1

    def mode(self, inputs: Array) -> Array:
        """The most likely actions."""
        return self._join([np.argmax(part, axis=-1) for part in self._parts(inputs)])

    def sample(self, inputs: Array, noise: Array) -> tuple[Array, Array]:
        """Samples actions; returns them and their log-probabilities."""
        actions = []
        for i, part in enumerate(self._parts(inputs)):
            bounds = np.cumsum(np.exp(log_softmax(part).astype(np.float64)), axis=-1)
            actions.append((noise[:, i : i + 1] * bounds[:, -1:] >= bounds).sum(axis=-1))
        joined = self._join(actions)
        return joined, self.log_probability(inputs, joined)

    def log_probability(self, inputs: Array, actions: Array) -> Array:
        """The log-probabilities of given actions."""
        parts, chosen = self._parts(inputs), actions.reshape(len(actions), -1).astype(np.int64)
        logs = [np.take_along_axis(log_softmax(p), chosen[:, i : i + 1], axis=-1)[:, 0] for i, p in enumerate(parts)]
        return cast(Array, np.sum(logs, axis=0))

    def _parts(self, inputs: Array) -> list[Array]:
        return np.split(inputs, np.cumsum(self.sizes)[:-1], axis=-1) if self.sizes else [inputs]

    def _join(self, parts: list[Array]) -> Array:
        return np.stack(parts, axis=-1) if self.sizes else parts[0]


@dataclasses.dataclass(frozen=True)
class DiagonalGaussian:
    """Distributions over actions (N, A), from means and log standard deviations (N, 2 A).

    Attributes:
      squashed: whether tanh squashes actions to [-1, 1] (Haarnoja et al. 2018, equation 21).
    """

    squashed: bool = False
    normal = True

    def width(self, inputs: int) -> int:
        if inputs % 2:
            raise UsageError(f"GetActions: {inputs} inputs, but a Gaussian needs an even number: means and log stds")
        return inputs // 2

    def mode(self, inputs: Array) -> Array:
        mean, _ = self._parts(inputs)
        return cast(Array, np.tanh(mean)) if self.squashed else mean

    def sample(self, inputs: Array, noise: Array) -> tuple[Array, Array]:
        mean, log_std = self._parts(inputs)
        noise = noise.astype(inputs.dtype)
        x, logp = mean + np.exp(log_std) * noise, self._log_density(noise, log_std).astype(inputs.dtype)
        if not self.squashed:
            return x, logp
        slope = 2 * (math.log(2) - x - np.logaddexp(0, -2 * x))  # log(1 - tanh(x)**2)
        return np.tanh(x), (logp - slope.sum(axis=-1)).astype(inputs.dtype)

    def log_probability(self, inputs: Array, actions: Array) -> Array:
        mean, log_std = self._parts(inputs)
        slope: Any = 0
        if self.squashed:
            inside = 1 - np.finfo(inputs.dtype).eps
            actions = np.clip(actions, -inside, inside)
            slope = np.log1p(-np.square(actions)).sum(axis=-1)
            actions = np.arctanh(actions)
        return cast(Array, self._log_density((actions - mean) / np.exp(log_std), log_std) - slope)

    def _parts(self, inputs: Array) -> tuple[Array, Array]:
        mean, log_std = np.split(inputs, 2, axis=-1)
        return mean, np.clip(log_std, *_LOG_STD) if self.squashed else log_std

    def _log_density(self, noise: Array, log_std: Array) -> Array:
        return cast(Array, -(np.square(noise) / 2 + log_std + _LOG_SQRT_2PI).sum(axis=-1))


def log_softmax(logits: Array) -> Array:
    """The log-probabilities, in the dtype of the logits."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return cast(Array, shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


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
        check_choices(self, distribution=_DISTRIBUTIONS)

    def __call__(self, batch: Batch) -> Batch:
        modules = get_outputs(self, batch)
        return batch.replace(modules={m: self._actions(batch, m, columns) for m, columns in modules.items()})

    def _actions(self, batch: Batch, module: str, columns: Columns) -> Columns:
        if any(below(name, "actions") for name in columns):
            return columns
        if "action_dist_inputs" not in columns:
            said = f"neither actions nor action_dist_inputs, only {', '.join(columns)}"
            raise UsageError(f"GetActions: the model of {module} returned {said}")
        inputs = as_numpy(columns["action_dist_inputs"])
        flat, rows = inputs.reshape(-1, inputs.shape[-1]), inputs.shape[:-1]  # there may be a time axis of 1
        of, episodes = self._distribution(), get_episodes(batch, module)
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

    def _distribution(self) -> Categorical | DiagonalGaussian:
        if self.distribution.endswith("gaussian"):
            return DiagonalGaussian(self.distribution == "squashed_gaussian")
        return Categorical(self.sizes if self.distribution == "multi_categorical" else ())

    def _noise(self, episode: Episode, width: int, *, normal: bool) -> Array:
        """The random numbers for an episode's last step."""
        name = f"{self.seed}/{episode.key}/{find_agent(episode)}"
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
        for_env = {}
        for name in columns:
            if below(name, "actions"):
                for_env[name.replace("actions", "actions_for_env", 1)] = self._one(name, as_numpy(columns[name]))
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


class TensorToNumpy:
    """Converts model outputs, tensors of torch, TensorFlow, or JAX on any device, to numpy arrays.

    {"actions": tensor (2, 3)}   ->   {"actions": array (2, 3)}       the same dtype
    """

    def __call__(self, batch: Batch) -> Batch:
        return map_columns(self, batch, lambda columns: {name: as_numpy(column) for name, column in columns.items()})


class UnBatchToIndividualItems:
    """Gives each running episode its row of its module's outputs: the inverse of `BatchIndividualItems`.

    modules   {"p0": {"actions": [a0 a1]}, "p1": {"actions": [a2]}}     episodes of p0, p1, p0
    columns   ({"actions": [a0]}, {"actions": [a2]}, {"actions": [a1]})
    """

    def __call__(self, batch: Batch) -> Batch:
        modules = get_outputs(self, batch)
        for module, outputs in modules.items():
            lengths, count = {name: len(column) for name, column in outputs.items()}, len(get_episodes(batch, module))
            if {*lengths.values()} - {count} or not lengths:
                raise UsageError(f"UnBatchToIndividualItems: {module} has {count} episodes, but rows {lengths}")
        taken: dict[str, int] = {}
        columns: list[Columns] = []
        for module in map(find_module, batch.episodes):
            if module not in modules:
                raise UsageError(f"UnBatchToIndividualItems: no outputs for {module}, only for {', '.join(modules)}")
            row = taken[module] = taken.get(module, -1) + 1
            columns.append({name: column[row : row + 1] for name, column in modules[module].items()})
        return batch.replace(columns=tuple(columns), modules=None)


class ModuleToAgentUnmapping:
    """Removes the module that `AgentToModuleMapping` assigned, so that later connectors group episodes by agent.

    metadata   {"agent_id": "left", "module_id": "p0"}   ->   {"agent_id": "left"}
    """

    def __call__(self, batch: Batch) -> Batch:
        if batch.modules is not None:
            raise ValueError("ModuleToAgentUnmapping must come after UnBatchToIndividualItems")
        return batch.replace(
            episodes=tuple(
                episode.replace(metadata={k: v for k, v in episode.metadata.items() if k != "module_id"})
                for episode in batch.episodes
            )
        )


class RemoveSingleTsTimeRankFromBatch:
    """Removes the time axis that `AddTimeDimToBatchAndZeroPad` added to the rows of running episodes.

    actions (1, 1, 3)   ->   actions (1, 3)        state_out (1, 8) has no time axis and is unchanged
    """

    def __call__(self, batch: Batch) -> Batch:
        if batch.modules is not None:
            raise ValueError("RemoveSingleTsTimeRankFromBatch must come after UnBatchToIndividualItems")
        if batch.time is None:
            return batch
        pairs = zip(batch.columns, batch.starts, strict=True)
        columns = tuple(columns if start is None else self._without(columns) for columns, start in pairs)
        return batch.replace(columns=columns, time=None, starts=())

    def _without(self, columns: Columns) -> Columns:
        without = dict(columns)
        for name, column in columns.items():
            if not below(name, "state_out"):
                array = as_numpy(column)
                if array.ndim < 2 or array.shape[1] != 1:
                    raise UsageError(f"RemoveSingleTsTimeRankFromBatch: {name} {array.shape} has no time axis of 1")
                without[name] = array[:, 0]
        return without


class ListifyDataForVectorEnv:
    """Sets `Batch.vector`: the inputs of the environments, in the order of episodes, nested like the action.

        one agent        {"actions": (3, A), "actions_for_env": {"arm": (3, 6), "hand": (3,)}}
        several agents   {"actions": [{"left": (A,), "right": (A,)}, ...]}    one dict per environment

    The agents' episodes of one environment have the same key.
    """

    def __call__(self, batch: Batch) -> Batch:
        if batch.modules is not None:
            raise ValueError("ListifyDataForVectorEnv must come after UnBatchToIndividualItems")
        if not any(map(find_agent, batch.episodes)):
            names = batch.columns[0] if batch.columns else {}
            whole = {name: concatenate([columns[name] for columns in batch.columns]) for name in names}
            return batch.replace(vector=nest(whole))
        environments: dict[Any, int] = {}
        vector: dict[str, list[dict[str, Any]]] = {}
        for episode in batch.episodes:
            environments.setdefault(episode.key, len(environments))
        for episode, columns in zip(batch.episodes, batch.columns, strict=True):
            for name, item in nest({name: column[0] for name, column in columns.items()}).items():
                of = vector.setdefault(name, [{} for _ in environments])
                of[environments[episode.key]][find_agent(episode)] = item
        return batch.replace(vector=vector)


def map_columns(connector: Connector, batch: Batch, change: Callable[[Columns], Columns]) -> Batch:
    """Applies `change` to the columns, whether they are per module or per episode."""
    if batch.modules is not None:
        return batch.replace(modules={module: change(columns) for module, columns in batch.modules.items()})
    if not batch.running:
        raise ValueError(f"{short_name(connector)} needs model outputs for running episodes")
    return batch.replace(columns=tuple(map(change, batch.columns)))


def get_outputs(connector: Connector, batch: Batch) -> Mapping[str, Columns]:
    """The model outputs; raises ValueError if there are none."""
    if batch.modules is None or not batch.running:
        fix = "batch.replace(modules={module: outputs})"
        raise ValueError(f"{short_name(connector)} needs model outputs for running episodes: {fix}")
    return batch.modules


def get_episodes(batch: Batch, module: str) -> list[Episode]:
    """The episodes of a module's rows, in order."""
    return [episode for episode in batch.episodes if find_module(episode) == module]


def as_numpy(value: Any) -> Array:
    """Converts a tensor to an array."""
    if hasattr(value, "detach"):  # torch
        value = value.detach().cpu()
    return np.asarray(value)
