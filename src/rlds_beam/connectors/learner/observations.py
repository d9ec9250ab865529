"""Other observations: flattened, with previous actions and rewards, as histories; and action chunks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from rlds_beam.connectors.base import Batch, ColumnConnector, Columns, Connector, check_order, short_name
from rlds_beam.connectors.fields import StepFields, check_choices, leaves
from rlds_beam.connectors.learner.columns import is_there
from rlds_beam.episodes.columns import below, is_text, nest_order, transitions, with_final_observation
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
        check_order(self, batch, time=True)
        pairs = zip(map(with_final_observation, batch.episodes), batch.columns, strict=True)
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
            raise UsageError(f"FlattenObservations: {path} holds images or text: remove it with DropFields")
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
        said = "the column obs exists already; put it before AddObservationsFromEpisodesToBatch and others that add obs"
        raise UsageError(f"{short_name(connector)}: {said}")


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


@dataclasses.dataclass(frozen=True)
class FrameStacking(ColumnConnector):
    """Adds `obs`: the last `num_frames` observations, stacked along the last axis, oldest first.

        num_frames=3      t=0    0  0  o0
                          t=1    0 o0  o1       zeros before the start of the episode
                          t=2   o0 o1  o2

    Observations (T+1, ..., C) become (T, ..., num_frames * C). Must come before AddObservationsFromEpisodesToBatch.

    Attributes:
      num_frames: the number of observations to stack.
      next_obs: also add `new_obs`, stacked in the same way.
    """

    num_frames: int = 4
    next_obs: bool = False

    def add(self, episode: Episode, columns: Columns, fields: StepFields) -> Columns:
        check_no_observations(self, columns)
        count = transitions(episode)
        added = {}
        for name, column in leaves(episode, fields.obs, "obs").items():
            if is_text(column):
                continue
            frames = column.decode_all(name) if isinstance(column, EncodedImages) else column
            frames = frames if frames.ndim > 1 else frames[:, None]
            padded = np.concatenate([np.zeros((self.num_frames - 1, *frames.shape[1:]), frames.dtype), frames])
            stacked = np.concatenate([padded[k : k + len(frames)] for k in range(self.num_frames)], axis=-1)
            added[name] = stacked[:count]
            if self.next_obs:
                added[f"new_{name}"] = stacked[1:]
        return added


@dataclasses.dataclass(frozen=True)
class HistoryWindow(ColumnConnector):
    """Adds `obs`, the last `length` observations (T, length, ...), and `obs_pad_mask`, bool (T, length), True if real.

        length=3     t=0   o0 o0 o0   F F T       the first observation pads the start (Octo, OpenVLA)
                     t=1   o0 o0 o1   F T T
                     t=2   o0 o1 o2   T T T

    Must come before AddObservationsFromEpisodesToBatch.

    Attributes:
      length: the number of observations.
    """

    length: int = 2

    def add(self, episode: Episode, columns: Columns, fields: StepFields) -> Columns:
        check_no_observations(self, columns)
        count = transitions(episode)
        index = np.arange(count)[:, None] + np.arange(1 - self.length, 1)
        observations = leaves(episode, fields.obs, "obs").items()
        added = {n: _gather(c, np.maximum(index, 0)) for n, c in observations if not is_text(c)}
        return {**added, "obs_pad_mask": index >= 0}


PRESETS: dict[str, dict[str, Any]] = {
    "openvla": {"past_end": "neutral"},
    "openvla_oft": {"tail": "drop"},
    "octo": {"mask": "action_pad_mask"},
    "openpi": {},
    "lerobot": {"mask": "action_is_pad"},
}
"""The settings of each project at the end of an episode."""


@dataclasses.dataclass(frozen=True)
class ActionChunking:
    """Adds `actions`: the next `horizon` actions of each transition, (T, horizon, ...).

        horizon=3, T=4     t=1   a1 a2 a3   T T T
                           t=2   a2 a3 a3   T T F       the last action is repeated past the end
                           t=3   a3 a3 a3   T F F

    Must come after other connectors that add columns of transitions, and before AddTimeDimToBatchAndZeroPad.

    Attributes:
      horizon: the number of actions in a chunk.
      preset: a project's behavior at the end of an episode: `openvla` (`past_end=neutral`), `openvla_oft`
        (`tail=drop`), `octo` (mask `action_pad_mask`), `openpi` (repeats, no mask), or `lerobot` (mask
        `action_is_pad`, true for padding).
      past_end: `repeat` the last action; or `neutral`, which repeats the dimensions in `absolute` and sets the others
        to zero.
      absolute: whether each dimension of the action is absolute, for `neutral`: `[false, false, true]`.
      tail: `keep`, or `drop` transitions whose chunk would go past the end.
      mask: the name of the mask column, true for real actions; if the name ends in `is_pad`, true for padding.
    """

    horizon: int
    preset: str = ""
    past_end: str = "repeat"
    absolute: Sequence[bool] = ()
    tail: str = "keep"
    mask: str = ""

    def __post_init__(self) -> None:
        if self.horizon < 1:
            raise UsageError(f"ActionChunking: horizon={self.horizon}, expected 1 or more")
        if self.preset:
            check_choices(self, preset=tuple(PRESETS))
            for name, value in PRESETS[self.preset].items():
                object.__setattr__(self, name, value)
        check_choices(self, past_end=("repeat", "neutral"), tail=("keep", "drop"))

    def __call__(self, batch: Batch) -> Batch:
        check_order(self, batch, time=True)
        pairs = zip(batch.episodes, batch.columns, strict=True)
        return batch.replace(columns=tuple(self._chunk(e, c, batch.fields) for e, c in pairs))

    def _chunk(self, episode: Episode, columns: Columns, fields: StepFields) -> Columns:
        count = transitions(episode)
        index = np.arange(count)[:, None] + np.arange(self.horizon)
        real = index < count
        chunked = dict(columns)
        for name, column in leaves(episode, fields.actions, "actions").items():
            chunks = _gather(column[:count], np.minimum(index, max(count - 1, 0)))
            if self.past_end == "neutral" and not isinstance(chunks, EncodedImages):
                relative = ~np.array(self.absolute, bool) if self.absolute else np.ones(chunks.shape[2:], bool)
                chunks[~real] = np.where(relative, 0, chunks[~real])
            chunked[name] = chunks
        if self.mask:
            chunked[self.mask] = ~real if self.mask.endswith("is_pad") else real
        if self.tail == "drop":
            kept = max(0, count - self.horizon + 1)
            chunked = {name: column[:kept] for name, column in chunked.items()}
        return chunked


def _gather(column: Column, index: Array) -> Any:
    """Gathers the steps `index`, whose axes replace the first axis."""
    if isinstance(column, EncodedImages):
        return column.with_data(column.data[index])
    return column[index]
