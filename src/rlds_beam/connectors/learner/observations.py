"""Changes observations: flattens them, or adds previous actions and rewards."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from rlds_beam.connectors.base import Batch, ColumnConnector, Columns, Connector, check_not_batched, name_of
from rlds_beam.connectors.fields import StepFields, leaves, transitions
from rlds_beam.connectors.learner.columns import is_there
from rlds_beam.episodes.columns import below, is_text, nest_order
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.errors import UsageError
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.typing import Array


@dataclasses.dataclass(frozen=True)
class FlattenObservations:
    """Adds `obs`, float32 (T, n): all leaves of the observation, flattened and concatenated in the order of paths.

        observation/a (T+1, 2)                    a0 a1 | one-hot of b
        observation/b (T+1,), 3 categories     -> obs (T, 5)

    If an earlier connector (PrevActionsPrevRewards) added `obs`, it is flattened instead. Must come before
    AddObservationsFromEpisodesToBatch.

    Attributes:
      categories: the number of categories of each discrete leaf, by path below the observation (`""` if the
        observation is a single array); such a leaf becomes one-hot.
      next_obs: also add `new_obs`; not supported if an earlier connector added `obs`.
    """

    categories: Mapping[str, int] = dataclasses.field(default_factory=dict)
    next_obs: bool = False

    def __call__(self, batch: Batch) -> Batch:
        check_not_batched(self, batch)
        if batch.time is not None:
            raise ValueError("FlattenObservations must come before AddTimeDimToBatchAndZeroPad")
        pairs = zip(batch.episodes, batch.columns, strict=True)
        return batch.replace(columns=tuple(self._flatten(e, c, batch) for e, c in pairs))

    def _flatten(self, episode: Episode, columns: Columns, batch: Batch) -> Columns:
        fields, count = batch.fields, transitions(episode)
        earlier_obs = {name[len("obs") :]: column for name, column in columns.items() if below(name, "obs")}
        obs = earlier_obs or leaves(episode, fields.obs, "")
        if earlier_obs and self.next_obs:
            raise UsageError("FlattenObservations: next_obs is set, but an earlier connector added obs without new_obs")
        parts = [self._flat(path.lstrip("/"), obs[path]) for path in nest_order(obs)]
        if not parts:
            raise UsageError(f"FlattenObservations: the steps have no {fields.obs}, only {', '.join(episode.steps)}")
        flat = np.concatenate(parts, axis=1)
        others = {name: column for name, column in columns.items() if not below(name, "obs")}
        rows = flat if earlier_obs else flat[-1:] if batch.running else flat[:count]
        return {"obs": rows, **({"new_obs": flat[1:]} if self.next_obs else {}), **others}

    def _flat(self, path: str, column: Column) -> Array:
        if isinstance(column, EncodedImages) or is_text(column):
            what = "images" if isinstance(column, EncodedImages) else "text"
            raise UsageError(f"FlattenObservations: {path} holds {what}")
        if path in self.categories:
            return one_hot(column, self.categories[path], f"FlattenObservations: {path}").reshape(len(column), -1)
        return np.asarray(column, np.float32).reshape(len(column), -1)


@dataclasses.dataclass(frozen=True)
class PrevActionsPrevRewards(ColumnConnector):
    """Adds the previous actions and rewards to each observation, for models without memory.

        n_prev_actions=2   t=0    0   0        obs/prev_n_actions   (T, 2, num_actions), one-hot with num_actions
                           t=1    0  a0        obs/prev_n_rewards   (T, n_prev_rewards)
                           t=2   a0  a1        obs/_orig_obs        the observation itself

    Zeros pad the start of the episode. (RLlib returns the same values, but declares a flat space for them.) Must come
    before AddObservationsFromEpisodesToBatch.

    Attributes:
      n_prev_actions, n_prev_rewards: how many previous actions and rewards to add.
      num_actions: the number of discrete actions, for one-hot encoding; None uses actions as they are.
    """

    n_prev_actions: int = 1
    n_prev_rewards: int = 1
    num_actions: int | None = None

    def add(self, episode: Episode, columns: Columns, fields: StepFields) -> Columns:
        check_no_observations(self, columns)
        count = transitions(episode)
        observations = leaves(episode, fields.obs, "obs/_orig_obs").items()
        added: dict[str, Column] = {name: column[:count] for name, column in observations if not is_text(column)}
        for name, column in leaves(episode, fields.actions, "obs/prev_n_actions").items():
            actions: Any = column[:count]
            if self.num_actions is not None:
                actions = one_hot(actions, self.num_actions, "PrevActionsPrevRewards: action")
            added[name] = _before(actions, self.n_prev_actions)
        added["obs/prev_n_rewards"] = _before(np.asarray(episode.steps[fields.rewards][:count]), self.n_prev_rewards)
        return added


def check_no_observations(connector: Connector, columns: Columns) -> None:
    """Raises UsageError if `obs` exists already: then this connector would have no effect."""
    if is_there(columns, "obs"):
        raise UsageError(
            f"{name_of(connector)}: the column obs exists already; put it before AddObservationsFromEpisodesToBatch "
            "and other connectors that add obs"
        )


def one_hot(values: Any, categories: int, what: str) -> Array:
    """One-hot encodes categories: float32 (..., categories).

    Raises:
      UsageError: a value is not a category.
    """
    values = np.asarray(values)
    if values.dtype.kind not in "iub":
        raise UsageError(f"{what} is {values.dtype}, but categories must be integers")
    if values.size and not 0 <= values.min() <= values.max() < categories:
        raise UsageError(f"{what} holds {values.min()} to {values.max()}, expected 0 to {categories - 1}")
    return cast(Array, np.eye(categories, dtype=np.float32)[values.astype(np.int64)])


def _before(values: Array, n: int) -> Array:
    """The n values before each step, (T, n, ...), padded with zeros at the start."""
    padded = np.concatenate([np.zeros((n, *values.shape[1:]), values.dtype), values])
    return cast(Array, padded[np.arange(len(values))[:, None] + np.arange(n)])
