"""Runs RLlib connectors (`FromRllib`) on our episodes, converted to `SingleAgentEpisode` and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import numpy as np

from rlds_beam.connectors.base import DEFAULT_MODULE_ID, Batch, Columns, find_agent, find_module
from rlds_beam.connectors.cleaning.selection import end_episode
from rlds_beam.connectors.fields import StepFields, leaves, terminateds
from rlds_beam.connectors.learner.sequences import AddTimeDimToBatchAndZeroPad, as_state
from rlds_beam.episodes.columns import concatenate, flatten, is_text, nest, transitions
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.episodes.schema import episode_flags
from rlds_beam.errors import RldsBeamError, needs
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.typing import Array

with needs("rllib", "RLlib's connectors need Ray"):
    import gymnasium as gym
    import tree
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode
    from ray.rllib.utils.numpy import convert_to_numpy
    from ray.rllib.utils.spaces.space_utils import BatchedNdArray
    from ray.rllib.utils.spaces.space_utils import batch as joined


def _space(values: Any) -> Any:
    if isinstance(values, Mapping):
        return gym.spaces.Dict({name: _space(below) for name, below in values.items()})
    shape, dtype = values.shape[1:], values.dtype
    if dtype == np.bool_:
        return gym.spaces.MultiBinary(shape or 1)
    low, high = (-np.inf, np.inf) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return gym.spaces.Box(low, high, shape, dtype)


def arrays(episode: Episode, field: str) -> Any:
    """The arrays below a step field, nested by name, or one array; images are decoded, text is left out."""
    columns = leaves(episode, field, "")
    decoded = {
        path: column.decode_all(field) if isinstance(column, EncodedImages) else column
        for path, column in columns.items()
        if not is_text(column)
    }
    nested = {path.strip("/"): column for path, column in decoded.items()}
    return nested[""] if "" in nested else nest(nested)


class RllibEpisode:
    """One of our episodes, converted to RLlib's format.

    Attributes:
      episode: the original episode.
      theirs: the RLlib episode: complete, or only its first observation so far (`append`). Its spaces are by default
        unbounded Boxes, or a Dict of them, in the recorded shapes.
    """

    def __init__(
        self, episode: Episode, fields: StepFields, name: str, *, whole: bool, observation_space: Any, action_space: Any
    ):
        self.episode, self._fields, self._count = episode, fields, transitions(episode)
        self._observations, self._actions = arrays(episode, fields.obs), arrays(episode, fields.actions)
        self._rewards, self._infos = arrays(episode, fields.rewards), arrays(episode, fields.infos)
        extras = {extra: arrays(episode, extra) for extra in fields.extras}
        extras |= {"state_in": arrays(episode, fields.state_in), "state_out": arrays(episode, fields.state_out)}
        self._extras = {name: values for name, values in extras.items() if not _is_empty(values)}
        spaces = {
            "observation_space": observation_space or _space(self._observations),
            "action_space": action_space or _space(self._actions),
        }
        agent = find_agent(episode)
        self.theirs = SingleAgentEpisode(
            id_=name,
            **spaces,
            observations=[at(self._observations, 0)],
            infos=[self._info(0)],
            len_lookback_buffer=0,
            **({"agent_id": agent, "module_id": find_module(episode), "multi_agent_episode_id": name} if agent else {}),
        )
        if whole:
            for _ in range(self._count):
                self.append()
            if self._count:
                self.theirs.to_numpy()
        self._before = (self if whole else RllibEpisode(episode, fields, name, whole=True, **spaces))._leaves()

    def append(self) -> None:
        """Adds the next transition, in recorded order."""
        t = len(self.theirs)
        last = t == self._count - 1
        self.theirs.add_env_step(
            observation=at(self._observations, t + 1),
            action=at(self._actions, t),
            reward=at(self._rewards, t),
            infos=self._info(t + 1),
            terminated=last and bool(terminateds(self.episode)[t]),
            truncated=last and bool(self.episode.steps["is_last"][-1]) and not terminateds(self.episode)[t],
            extra_model_outputs={name: at(values, t) for name, values in self._extras.items()},
        )

    @property
    def key(self) -> tuple[str, ...]:
        """RLlib's key for the episode's columns."""
        theirs = self.theirs
        if theirs.agent_id is None:
            return (theirs.id_,)
        return (theirs.multi_agent_episode_id, theirs.agent_id, theirs.module_id)

    def _info(self, t: int) -> dict[str, Any]:
        return {} if _is_empty(self._infos) else dict(at(self._infos, t))

    def edited(self, theirs: SingleAgentEpisode) -> Episode:
        """Returns the episode as RLlib's connectors left it, or the original object if nothing changed.

        Raises:
          RldsBeamError: its steps cannot be matched to the original ones.
        """
        if not theirs.is_numpy and len(theirs):
            theirs.to_numpy()
        after = self._leaves(theirs)
        if after.keys() == self._before.keys() and all(_equal(after[path], self._before[path]) for path in after):
            return self.episode
        count, start = len(theirs), theirs.t_started
        if start < 0 or start + count > self._count + 1:
            raise RldsBeamError(f"{self.episode.key}: an RLlib connector returned {count} transitions, from {start} on")
        index = np.minimum(np.arange(start, start + count + 1), self._count)
        steps: dict[str, Column] = {}
        for path, column in self.episode.steps.items():
            kept = path in after and len(index) == len(column) and _equal(after[path], self._before.get(path))
            if kept or path not in self._before:
                steps[path] = column if len(index) == len(column) and start == 0 else column[index]
        for path, values in after.items():
            if path not in steps and path not in _ENDS:
                steps[path] = _with_last(values, count + 1, self.episode.steps.get(path))
        steps |= episode_flags(count + 1, last=theirs.is_done, terminal=theirs.is_terminated)
        was_terminated = bool(np.asarray(self.episode.steps["is_terminal"])[-1])
        if theirs.is_done and (start + count < self._count or theirs.is_terminated != was_terminated):
            steps = end_episode(steps, terminated=theirs.is_terminated)
        return self.episode.replace(steps=steps)

    def _leaves(self, theirs: SingleAgentEpisode | None = None) -> dict[str, Array]:
        """Everything that connectors can edit, by step field path."""
        theirs = theirs or self.theirs
        fields = self._fields
        by_path = {
            **flatten(theirs.get_observations(), fields.obs),
            **flatten(theirs.get_actions(), fields.actions),
            **flatten(theirs.get_rewards(), fields.rewards),
            _ENDS[0]: theirs.is_terminated,
            _ENDS[1]: theirs.is_truncated,
        }
        named = {"state_in": fields.state_in, "state_out": fields.state_out}
        for name in theirs.extra_model_outputs:
            by_path |= flatten(theirs.get_extra_model_outputs(name), named.get(name, name))
        return {
            path: np.array(values) for path, values in by_path.items()
        }  # a copy, because connectors may write into it


_ENDS = ("(terminated)", "(truncated)")


def at(values: Any, t: int) -> Any:
    """Copies the values of one step of nested arrays, because connectors may write into them."""
    return {name: at(below, t) for name, below in values.items()} if isinstance(values, Mapping) else values[t].copy()


def _is_empty(values: Any) -> bool:
    return isinstance(values, Mapping) and all(map(_is_empty, values.values()))


def _equal(one: Array, other: Array | None) -> bool:
    if other is None or one.shape != other.shape or one.dtype != other.dtype:
        return False
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def _with_last(values: Array, steps: int, before: Column | None) -> Column:
    """Appends a value for the last step to values of transitions: the recorded one if it fits, or zeros."""
    if len(values) == steps:
        return values
    last = np.zeros((1, *values.shape[1:]), values.dtype)
    if isinstance(before, np.ndarray) and before.shape[1:] == values.shape[1:] and before.dtype == values.dtype:
        last = before[-1:]
    return concatenate([values, last])


_LOSS_MASK_IS_THERE = "_added_loss_mask_for_valid_episode_ts"
"""The key in `shared_data` by which RLlib's connectors tell each other that there is a `loss_mask`."""


def learn(batch: Batch, recordings: list[RllibEpisode], piece: Any, module: Any) -> Batch:
    """Runs a connector on whole episodes, with the columns so far.

    Args:
      batch: the episodes and columns.
      recordings: the episodes as RLlib's.
      piece: the connector.
      module: the RLModule, or a `Module`.

    Raises:
      RldsBeamError: the connector returned an unknown episode.
    """
    episodes = [recording.theirs for recording in recordings]
    keys = [recording.key for recording in recordings]
    given: dict[str, Any] = {}
    for key, columns in zip(keys, batch.columns, strict=True):
        arrays = {name: np.array(c).view(BatchedNdArray) for name, c in columns.items() if _is_numeric(c)}
        for name, items in nest(arrays).items():  # copies, marked as having one row per transition
            given.setdefault(name, {})[key] = [items]
    shared = {_LOSS_MASK_IS_THERE: True} if "loss_mask" in given else {}
    returned = piece(rl_module=module, batch=given, episodes=episodes, shared_data=shared, explore=False, metrics=None)
    left = [_find_index(theirs, recordings) for theirs in episodes]
    edited = [recordings[i].edited(theirs) for i, theirs in zip(left, episodes, strict=True)]
    there = [batch.columns[i] for i in left]
    starts = tuple(batch.starts[i] for i in left) if batch.starts else ()
    batch = batch.replace(episodes=tuple(edited), columns=tuple(there), starts=starts)
    per_episode = (isinstance(c, Mapping) and all(isinstance(key, tuple) for key in c) for c in returned.values())
    if not all(per_episode):  # BatchIndividualItems, AgentToModuleMapping
        return batch.replace(modules=_modules(returned, edited))
    of_each = (_from_theirs(returned, (keys[i], recordings[i].key)) for i in left)
    kept = ({name: column for name, column in old.items() if not _is_numeric(column)} for old in there)
    return _with_time(batch.replace(columns=tuple({**old, **new} for old, new in zip(kept, of_each, strict=True))))


def act(batch: Batch, runs: Iterable[tuple[RllibEpisode, Any, Any]]) -> Batch:
    """Runs a connector after each observation of an episode, including the last, as when a policy acts.

    Args:
      batch: the episodes and columns.
      runs: each episode as RLlib's, with its own connector and module (`learn`).
    """
    columns, edited = [], []
    for (recording, piece, module), there in zip(runs, batch.columns, strict=True):
        shared: dict[str, Any] = {}
        rows: dict[str, list[Any]] = {}
        for t in range(len(recording.episode)):
            returned = piece(
                rl_module=module,
                batch={},
                episodes=[recording.theirs],
                shared_data=shared,
                explore=False,
                metrics=None,
            )
            if t == len(recording.episode) - 1:
                break  # the last observation has no action
            for name, items in returned.items():
                rows.setdefault(name, []).extend(items[recording.key])
            recording.append()
        added = {path: leaf for name, items in rows.items() for path, leaf in _flat(joined(items), name).items()}
        columns.append({**there, **{name: column for name, column in added.items() if name not in there}})
        edited.append(recording.edited(recording.theirs))
    return batch.replace(episodes=tuple(edited), columns=tuple(columns))


class Module:
    """The parts of an RLModule that connectors ask for."""

    framework = "torch"

    def __init__(self, max_seq_len: int | None, initial_state: Any):
        self._state = initial_state
        self.model_config = {} if max_seq_len is None else {"max_seq_len": max_seq_len}

    def is_stateful(self) -> bool:
        return bool(self.model_config)

    def get_initial_state(self) -> Any:
        if isinstance(self._state, Mapping):
            return nest({path: as_state(leaf) for path, leaf in flatten(self._state, "s").items()})["s"]
        return {} if self._state is None else as_state(self._state)

    def __getitem__(self, module_id: str) -> Module:
        return self

    def __contains__(self, name: object) -> bool:
        return False


def _is_numeric(column: Column) -> bool:
    return not isinstance(column, EncodedImages) and not is_text(column)


def _from_theirs(returned: Mapping[str, Any], keys: Iterable[tuple[str, ...]]) -> Columns:
    """The columns of one episode. Its key may have changed, because RLlib's connectors may change ids."""
    columns: dict[str, Column] = {}
    for name, of_episodes in returned.items():
        items = [item for key in dict.fromkeys(keys) for item in of_episodes.get(key, ())]
        if items:
            columns |= _flat(joined(items, individual_items_already_have_batch_dim="auto"), name)
    return columns


def _flat(values: Any, name: str) -> dict[str, Array]:
    plain = tree.map_structure(
        lambda leaf: np.asarray(convert_to_numpy(leaf, reduce_type=False)).view(np.ndarray), values
    )
    return flatten(plain, name)


def _modules(returned: Mapping[str, Any], episodes: list[Episode]) -> dict[str, Columns]:
    names = sorted({find_module(episode) for episode in episodes})
    if not set(returned) <= set(names):
        returned = {names[0] if len(names) == 1 else DEFAULT_MODULE_ID: returned}
    modules: dict[str, Columns] = {}
    for name in sorted(returned):
        columns: dict[str, Array] = {}
        for column, values in returned[name].items():
            if isinstance(values, list):
                values = joined(values, individual_items_already_have_batch_dim="auto")
            columns |= _flat(values, column)
        modules[name] = columns
    return modules


def _find_index(theirs: Any, recordings: list[RllibEpisode]) -> int:
    """The index of the recording of an episode: the same object, or one with its id."""
    for i, recording in enumerate(recordings):
        if theirs is recording.theirs or theirs.id_ == f"episode_{i}" or theirs.id_.startswith(f"episode_{i}_"):
            return i
    raise RldsBeamError(f"FromRllib: the connector returned an unknown episode {theirs.id_}")


def _with_time(batch: Batch) -> Batch:
    """Sets `Batch.time` if an RLlib connector has just made sequences."""
    if batch.time is not None or not any("seq_lens" in columns for columns in batch.columns):
        return batch
    starts: list[Array | None] = []
    length = 1
    for columns in batch.columns:
        lengths, mask = (cast("Array | None", columns.get(name)) for name in ("seq_lens", "loss_mask"))
        starts.append(None if lengths is None else np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64))
        if mask is not None and lengths is not None:
            length = mask.shape[1]
    return batch.replace(time=AddTimeDimToBatchAndZeroPad(length), starts=tuple(starts))
