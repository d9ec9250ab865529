"""Runs RLlib connectors on our episodes, and applies their changes (`FromRllib`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import numpy as np

from rlds_beam.connectors.base import Batch, Columns
from rlds_beam.connectors.fields import DEFAULT_MODULE_ID, find_module
from rlds_beam.connectors.learner.rllib_episodes import RllibEpisode
from rlds_beam.connectors.learner.sequences import AddTimeDimToBatchAndZeroPad, as_state
from rlds_beam.episodes.columns import flatten, is_text, nest
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.errors import RldsBeamError, needs
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.typing import Array

with needs("rllib", "FromRllib needs Ray"):
    import tree
    from ray.rllib.utils.numpy import convert_to_numpy
    from ray.rllib.utils.spaces.space_utils import BatchedNdArray
    from ray.rllib.utils.spaces.space_utils import batch as joined


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
        for name, items in _to_theirs(columns).items():
            given.setdefault(name, {})[key] = [items]
    shared = {_LOSS_MASK_IS_THERE: True} if "loss_mask" in given else {}
    returned = piece(rl_module=module, batch=given, episodes=episodes, shared_data=shared, explore=False, metrics=None)
    left = [_find_index(theirs, recordings) for theirs in episodes]
    edited = [recordings[i].edited(theirs) for i, theirs in zip(left, episodes, strict=True)]
    there = [batch.columns[i] for i in left]
    starts = tuple(batch.starts[i] for i in left) if batch.starts else ()
    batch = batch.replace(episodes=tuple(edited), columns=tuple(there), starts=starts)
    if _is_batched(returned):
        return batch.replace(modules=_modules(returned, edited))
    of_each = (_from_theirs(returned, (keys[i], recordings[i].key)) for i in left)
    merged = tuple({**_unrepresentable(old), **new} for old, new in zip(there, of_each, strict=True))
    return _with_time(batch.replace(columns=merged))


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
        added = {path: leaf for name, items in rows.items() for path, leaf in _flat(joined(items), name)}
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


def _to_theirs(columns: Columns) -> dict[str, Any]:
    """Copies of the columns as nested arrays, marked as having one row per transition."""
    arrays = {name: np.array(c).view(BatchedNdArray) for name, c in columns.items() if _is_numeric(c)}
    return nest(arrays)


def _is_numeric(column: Column) -> bool:
    return not isinstance(column, EncodedImages) and not is_text(column)


def _unrepresentable(columns: Columns) -> Columns:
    """Columns that RLlib cannot represent."""
    return {name: column for name, column in columns.items() if not _is_numeric(column)}


def _from_theirs(returned: Mapping[str, Any], keys: Iterable[tuple[str, ...]]) -> Columns:
    """The columns of one episode. Its key may have changed, because RLlib's connectors may change ids."""
    columns: dict[str, Column] = {}
    for name, of_episodes in returned.items():
        items = [item for key in dict.fromkeys(keys) for item in of_episodes.get(key, ())]
        if items:
            columns |= _flat(joined(items, individual_items_already_have_batch_dim="auto"), name)
    return columns


def _flat(values: Any, name: str) -> Iterator[tuple[str, Array]]:
    plain = tree.map_structure(
        lambda leaf: np.asarray(convert_to_numpy(leaf, reduce_type=False)).view(np.ndarray), values
    )
    yield from flatten(plain, name).items()


def _is_batched(returned: Mapping[str, Any]) -> bool:
    """Whether the columns are no longer per episode (BatchIndividualItems, AgentToModuleMapping)."""
    return not all(isinstance(c, Mapping) and all(isinstance(key, tuple) for key in c) for c in returned.values())


def _modules(returned: Mapping[str, Any], episodes: list[Episode]) -> dict[str, Columns]:
    names = sorted({find_module(episode) for episode in episodes})
    if not set(returned) <= set(names):
        returned = {names[0] if len(names) == 1 else DEFAULT_MODULE_ID: returned}
    return {
        name: dict(pair for c, v in returned[name].items() for pair in _flat(_batch(v), c)) for name in sorted(returned)
    }


def _batch(values: Any) -> Any:
    return joined(values, individual_items_already_have_batch_dim="auto") if isinstance(values, list) else values


def _find_index(theirs: Any, recordings: list[RllibEpisode]) -> int:
    """The index of the recording of an episode: the same object, or one with its id."""
    for i, recording in enumerate(recordings):
        if theirs is recording.theirs:
            return i
    for i in range(len(recordings)):
        if theirs.id_ == f"episode_{i}" or theirs.id_.startswith(f"episode_{i}_"):
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
