"""d3rlpy's HDF5 files (version 2.1): `ReplayBuffer.load(open("name-train.h5", "rb"), InfiniteBuffer())`.

An RLDS episode of N steps has N - 1 transitions. d3rlpy stores an observation, an action and a reward for each step. An
episode that terminated has as many transitions as steps in d3rlpy (the observation after the last is assumed to be
zeros and never used), any other has one fewer:

    RLDS, terminal     o0 a0 r0   o1 a1 r1   o2 (void)       d3rlpy   o0 a0 r0   o1 a1 r1            terminated
    RLDS, truncated    o0 a0 r0   o1 a1 r1   o2 (void)       d3rlpy   o0 a0 r0   o1 a1 r1   o2 -- --
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rlds_beam import storage
from rlds_beam.connectors.runner import ConnectorRunner
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.schema import FLAGS
from rlds_beam.errors import UsageError
from rlds_beam.formats.arrays.hdf5_writer import EpisodeDataset, check_h5py, write_hdf5
from rlds_beam.formats.arrays.leaves import (
    LeafColumn,
    Leaves,
    field_json,
    leaves_below,
    not_representable,
    representable,
    scalar,
    single,
)
from rlds_beam.formats.arrays.parts import MergedOutput, Part, PartColumn
from rlds_beam.output.base import Description
from rlds_beam.output.completion import MergedFile
from rlds_beam.output.shards import LocalFile
from rlds_beam.reading.base import Source
from rlds_beam.reading.meaning import Meaning
from rlds_beam.typing import Array

VERSION = "2.1"
SCHEMA = "rlds_beam"
"""An extra dataset in the file: the RLDS fields of d3rlpy's datasets, JSON."""

_COLUMNS = ("observations", "actions", "rewards", "terminated")
_NOT_HELD = "d3rlpy has no such field"


@dataclasses.dataclass(frozen=True)
class D3rlpyOutput(MergedOutput):
    """One HDF5 file for each split.

    Attributes:
      directory, name, splits: see `MergedOutput`.
      observations: one array, or a tuple of several; images have channels first.
      action, reward: the columns of a step.
      left_out: the fields not written, with the reasons.
      meaning: what is known of the dataset.
    """

    directory: str
    name: str
    splits: tuple[str, ...]
    observations: Leaves
    action: LeafColumn
    reward: LeafColumn
    left_out: dict[str, str]
    meaning: Meaning = dataclasses.field(default_factory=Meaning)

    @classmethod
    def create(cls, source: Source, connectors: ConnectorRunner, directory: str, options: Any) -> D3rlpyOutput:
        check_h5py("d3rlpy")
        schema, fields, left_out = connectors.schema, connectors.configuration.fields, dict[str, str]()
        observations = leaves_below(schema, fields.obs, left_out)
        if not observations:
            raise UsageError("--to=d3rlpy: the dataset has no numeric observation")
        action = single(leaves_below(schema, fields.actions, left_out), "action", "d3rlpy")
        if len(action.shape) > 1 or action.is_image:
            raise UsageError(f"--to=d3rlpy: an action must be a vector or an integer, not {action.field}")
        reward = scalar(single(leaves_below(schema, fields.rewards, {}), "reward", "d3rlpy"), "reward", "d3rlpy")
        held = {leaf.path for leaf in (*observations, action, reward)} | {*FLAGS} | left_out.keys()
        left_out |= {path: _NOT_HELD for path in schema.steps if path not in held}
        left_out[f"{fields.obs} (last step, if terminal)"] = "d3rlpy assumes zeros and does not use it"
        left_out |= dict.fromkeys(schema.metadata, "an episode field; d3rlpy has no such field")
        splits = tuple(split.name for split in source.splits)
        return cls(directory, source.name, splits, observations, action, reward, left_out, Meaning.of_dataset(source))

    @property
    def metadata(self) -> tuple[str, ...]:
        return tuple(self._file(split) for split in self.splits)

    def _file(self, split: str) -> str:
        return f"{self.name}-{split}.h5"

    def plan(self) -> dict[str, Any]:
        return {"d3rlpy": {"version": VERSION, "fields": self._fields()}}

    def _fields(self) -> dict[str, Any]:
        kept = {"observations": self.observations, "actions": (self.action,), "rewards": (self.reward,)}
        fields = {name: [field_json(leaf.field) for leaf in leaves] for name, leaves in kept.items()}
        return {**fields, **self.meaning.entry()}

    def describe(self) -> Description:
        kept = [
            *(f"observations: {leaf.field}" for leaf in self.observations),
            f"actions: {self.action.field}",
            f"rewards: {self.reward.field}",
            "terminated: bool",
        ]
        return Description(kept, self.left_out)

    @property
    def _action_dtype(self) -> np.dtype[Any]:
        return np.dtype(np.int64) if self.action.dtype == np.bool_ else self.action.dtype

    @property
    def _actions(self) -> int:
        return int(np.prod(self.action.shape, dtype=np.int64))

    @property
    def _datasets(self) -> list[EpisodeDataset]:
        several = len(self.observations) > 1
        datasets = []
        for i, leaf in enumerate(self.observations):
            shape = (leaf.shape[-1], *leaf.shape[:-1]) if leaf.channels_last else leaf.shape
            datasets.append(
                EpisodeDataset(f"observations_{{}}_{i}" if several else "observations_{}", leaf.dtype, shape)
            )
        return [
            *datasets,
            EpisodeDataset("actions_{}", self._action_dtype, (self._actions,)),
            EpisodeDataset("rewards_{}", self.reward.dtype, (1,)),
            EpisodeDataset("terminated_{}", np.dtype(bool), scalar=True),
        ]

    @property
    def part_columns(self) -> tuple[PartColumn, ...]:
        return tuple(column for dataset in self._datasets for column in dataset.part_columns)

    def encode(self, episode: Episode) -> Sequence[Array]:
        terminated = bool(episode.steps["is_terminal"][-1])
        if len(episode) < 2:
            raise not_representable("an episode of one step has no transition, which d3rlpy needs")
        rows = len(episode) - 1 if terminated else len(episode)
        observations = []
        for leaf in self.observations:
            values = leaf.values(episode, rows)
            observations.append(np.ascontiguousarray(np.moveaxis(values, -1, 1)) if leaf.channels_last else values)
        actions = self.action.values(episode, rows).reshape(rows, self._actions)
        actions = representable(actions, self._action_dtype, self.action.path)
        rewards = self.reward.values(episode, rows).reshape(rows, 1)
        return [*observations, actions, rewards, np.array([terminated])]

    def merge(self, split: str, parts: Sequence[Part]) -> Iterator[MergedFile]:
        episodes = sum(map(len, parts))
        singles = {
            "columns": np.array(_COLUMNS, "S"),
            "num_episodes": np.int64(episodes),
            "version": np.array(VERSION, "S"),
            SCHEMA: np.array(json.dumps(self._fields()), "S"),
        }
        with LocalFile(storage.below(self.directory, self._file(split))) as file:
            write_hdf5(file.name, parts, self._datasets, singles=singles)
            yield MergedFile(self._file(split), split, file.commit(episodes))
