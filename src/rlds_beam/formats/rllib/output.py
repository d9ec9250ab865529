"""RLlib's recorded episodes, for `config.offline_data(input_="OUTPUT/train", input_read_episodes=True)`.

A row of a Parquet file has one column, `item`: the state of a `SingleAgentEpisode`, packed with msgpack. RLlib needs
finished episodes; an episode of N steps has N observations, and N - 1 actions and rewards:

    RLDS     o0 a0 r0   o1 a1 r1   o2 (void)        RLlib    observations o0 o1 o2   actions a0 a1   rewards r0 r1
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import msgpack
import msgpack_numpy

from rlds_beam import storage
from rlds_beam.connectors.base import Batch
from rlds_beam.connectors.fields import StepFields
from rlds_beam.connectors.runner import ConnectorRunner
from rlds_beam.episodes.columns import below, nest
from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.episodes.schema import ADD_ACTIONS, FLAGS, Schema
from rlds_beam.errors import UsageError
from rlds_beam.formats.arrays.leaves import Leaves, leaves_below, not_representable, scalar, single
from rlds_beam.formats.columns.row_files import ROW_GROUP_BYTES, ShardSink, parquet_metadata
from rlds_beam.output.base import Description, Output
from rlds_beam.output.commits import RangeCommit
from rlds_beam.output.shards import ShardInfo, ShardWriter
from rlds_beam.reading.base import Source
from rlds_beam.reading.meaning import Meaning
from rlds_beam.reading.plan import WorkRange

_NOT_HELD = "RLlib has no such field in an episode"


@dataclasses.dataclass(frozen=True)
class RllibOutput(Output):
    """A Parquet file of episodes for each range.

    Attributes:
      directory: where the files go.
      name: the name of the dataset.
      observations, actions: one array, or a dict of arrays.
      reward: the reward of a step.
      extras: further outputs of the behavior policy's model, by name.
      fields: the paths of these in the steps.
      left_out: the fields not written, with the reasons.
      meaning: what is known of the dataset.
    """

    directory: str
    name: str
    observations: Leaves
    actions: Leaves
    reward: Leaves
    extras: tuple[tuple[str, Leaves], ...]
    fields: StepFields
    left_out: dict[str, str]
    meaning: Meaning = dataclasses.field(default_factory=Meaning)

    @classmethod
    def create(cls, source: Source, connectors: ConnectorRunner, directory: str, options: Any) -> RllibOutput:
        schema, fields, left_out = connectors.schema, connectors.configuration.fields, dict[str, str]()
        observations = leaves_below(schema, fields.obs, left_out)
        actions = leaves_below(schema, fields.actions, left_out)
        if not observations or not actions:
            hint = "" if actions else f"; {ADD_ACTIONS}"
            raise UsageError(f"--to=rllib: the dataset has no numeric observation or action{hint}")
        reward = (scalar(single(leaves_below(schema, fields.rewards, {}), "reward", "rllib"), "reward", "rllib"),)
        roles = {**{name: name for name in fields.extras}, "state_in": fields.state_in, "state_out": fields.state_out}
        by_role = ((name, leaves_below(schema, path, left_out)) for name, path in roles.items())
        extras = tuple((name, leaves) for name, leaves in by_role if leaves)
        left_out |= _others(schema, [fields.obs, fields.actions, fields.rewards, *FLAGS, *roles.values()], left_out)
        held = [leaf.field for leaves in (observations, actions, *(own for _, own in extras)) for leaf in leaves]
        known = Meaning.of(Schema({field.path: field for field in held}), source)
        meaning = dataclasses.replace(known, last_action="unknown")  # it holds no last actions
        return cls(directory, source.name, observations, actions, reward, extras, fields, left_out, meaning)

    def plan(self) -> dict[str, Any]:
        return {"rllib": {"fields": self.describe().fields, **self.meaning.entry()}}

    def describe(self) -> Description:
        named = [("observations", self.observations), ("actions", self.actions), ("rewards", self.reward), *self.extras]
        return Description([f"{name}: {leaf.field}" for name, leaves in named for leaf in leaves], self.left_out)

    def pack(self, episode: Episode) -> bytes:
        """Packs the episode's state. Raises BadEpisode if RLlib cannot read the episode."""
        if len(episode) < 2:
            raise not_representable("an episode of one step has no transition, which RLlib needs")
        end, terminated = len(episode) - 1, bool(episode.steps["is_terminal"][-1])
        nested = ((name, _nest(leaves, self._path(name), episode, end)) for name, leaves in self.extras)
        extras = {name: _buffer(values, finalized=True) for name, values in nested}
        packed: bytes = msgpack.packb(
            {
                "id_": episode_id(episode.key),
                "agent_id": None,
                "module_id": None,
                "multi_agent_episode_id": None,
                "observations": _buffer(_nest(self.observations, self.fields.obs, episode, end + 1), finalized=True),
                "actions": _buffer(_nest(self.actions, self.fields.actions, episode, end), finalized=True),
                "rewards": _buffer(self.reward[0].values(episode, end).reshape(end), finalized=True),
                "infos": _buffer([{}] * (end + 1), finalized=False),
                "extra_model_outputs": extras or None,
                "is_terminated": terminated,
                "is_truncated": not terminated,
                "t_started": 0,
                "t": end,
                "_observation_space": None,
                "_action_space": None,
                "_start_time": None,
                "_last_step_time": None,
                "custom_data": {},
            },
            default=msgpack_numpy.encode,
        )
        return packed

    def _path(self, extra: str) -> str:
        return {"state_in": self.fields.state_in, "state_out": self.fields.state_out}.get(extra, extra)

    def file(self, work: WorkRange) -> str:
        return f"{work.split}/{self.name}-{work}.parquet"

    def open_range(self, work: WorkRange) -> RllibWriter:
        return RllibWriter(self, storage.below(self.directory, self.file(work)))

    def complete(self, commits: Sequence[RangeCommit]) -> dict[str, Any]:
        """Removes empty files, which RLlib would read."""
        storage.remove_files(self.directory, [commit.files[0].file for commit in commits if not commit.items])
        return {"rllib": {"fields": self.describe().fields, **self.meaning.entry()}}


def _others(schema: Schema, roles: Sequence[str], left_out: dict[str, str]) -> dict[str, str]:
    others = {path: _NOT_HELD for path in schema.steps if not any(below(path, role) for role in roles)}
    return {**others, **dict.fromkeys(schema.metadata, f"an episode field; {_NOT_HELD}"), **left_out}


def _buffer(data: Any, *, finalized: bool) -> dict[str, Any]:
    """The state of an `InfiniteLookbackBuffer`."""
    return {"data": data, "lookback": 0, "finalized": finalized, "space": None}


def _nest(leaves: Leaves, role: str, episode: Episode, stop: int) -> Any:
    """The values below a step field: an array, or nested dicts of arrays."""
    by_path = {leaf.path[len(role) :].strip("/"): leaf.values(episode, stop) for leaf in leaves}
    return by_path[""] if "" in by_path else nest(by_path)


def episode_id(key: EpisodeKey) -> str:
    """The id of an episode, without `_`, which marks parts of episodes in RLlib."""
    part = f".{key.part}" if key.part else ""
    return f"{key.split}:{key.shard:05d}@{key.position}{part}".replace("_", "-")


class RllibWriter:
    """Writes the episodes of a range (`output.base.FileRangeWriter`)."""

    def __init__(self, output: RllibOutput, path: str):
        import pyarrow as pa
        import pyarrow.parquet

        self._output, self._shard = output, ShardWriter(path)
        item = pa.field("item", pa.binary(), nullable=False)
        self._schema = pa.schema([item], metadata=parquet_metadata(output.meaning))
        self._sink = ShardSink(self._shard)
        self._writer = pyarrow.parquet.ParquetWriter(
            self._sink, self._schema, use_dictionary=False, write_page_checksum=True
        )
        self._held: list[tuple[bytes, object]] = []
        self.predicted = 0

    def write(self, batch: Batch) -> None:
        packed = [self._output.pack(episode) for episode in batch.episodes]
        self._held += zip(packed, (episode.key for episode in batch.episodes), strict=True)
        self.predicted += len(packed)
        if sum(len(item) for item, _ in self._held) >= ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        if self._held:
            items = pa.array([item for item, _ in self._held], pa.binary())
            self._writer.write_table(pa.table([items], schema=self._schema))
        for _, key in self._held:
            self._shard.write((), 1, key)
        self._held = []

    def finish(self) -> ShardInfo:
        self._flush()
        self._writer.close()
        return self._shard.commit()

    def abort(self) -> None:
        self._shard.abort()
        self._sink.discards = True  # the writer writes a footer when closed
        self._writer.close()
