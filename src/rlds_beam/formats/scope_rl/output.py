"""SCOPE-RL's logged datasets: a pickled dict for each split, with all of SCOPE-RL's keys.

    MultipleLoggedDataset("discrete", "OUTPUT").get("NAME", 0)

SCOPE-RL assumes that every trajectory has `step_per_trajectory` steps. A shorter episode is padded: the last state,
action and info are repeated, with reward 0, pscore 1, done 1. Since `done` has both meanings, there are extra keys:
`mask` (1 for recorded steps), `terminated` and `truncated`:

    RLDS         o0 a0 r0   o1 a1 r1   o2 (void)            S = 4
    state        o0   o1   o1   o1           done        0  1  1  1
    action       a0   a1   a1   a1           terminal    0  0  0  0     1 at the end if there are S steps
    reward       r0   r1   0    0            mask        1  1  0  0
"""

from __future__ import annotations

import dataclasses
import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from rlds_beam import storage
from rlds_beam.connectors.base import Batch
from rlds_beam.connectors.pipeline import ConnectorRunner
from rlds_beam.episodes.columns import below, text_bytes, transitions
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.schema import FLAGS, Schema
from rlds_beam.errors import UsageError
from rlds_beam.formats.arrays.leaves import (
    LeafColumn,
    Leaves,
    leaves_below,
    make_columns,
    not_representable,
    representable,
    scalar,
    single,
)
from rlds_beam.formats.arrays.parts import MergedOutput, Part, Sink, read_blocks
from rlds_beam.formats.format_options import ScopeRlOptions
from rlds_beam.output.base import Description
from rlds_beam.output.shards import MergedFile, ShardWriter
from rlds_beam.reading.base import Source
from rlds_beam.reading.meaning import Meaning
from rlds_beam.typing import Array

_NOT_HELD = "SCOPE-RL has no such field"
_PROPENSITIES = ("propensity", "action_logp")
_POLICY = re.compile(r"(^|/)policy$")
_COLUMNS = ("state", "action", "reward", "pscore", "terminated", "policy")
"""Those of a part, before one for each info. The policy is text, as bytes."""


@dataclasses.dataclass(frozen=True)
class ScopeRlOutput(MergedOutput):
    """A logged dataset for each split.

    Attributes:
      directory, name, splits: see `MergedOutput`.
      states: the fields that are concatenated to the state.
      action, reward: the fields of a step.
      propensity: the propensity of the action, if recorded (`action_logp` is its logarithm).
      info: the fields of numbers by key.
      policy: the episode field with the name of its policy.
      options: the options of the job.
      left_out: the fields not written, with the reasons.
      meaning: what is known of the dataset.
    """

    directory: str
    name: str
    splits: tuple[str, ...]
    states: Leaves
    action: LeafColumn
    reward: LeafColumn
    propensity: LeafColumn | None
    info: tuple[tuple[str, LeafColumn], ...]
    policy: str | None
    options: ScopeRlOptions
    left_out: dict[str, str]
    meaning: Meaning

    options_class = ScopeRlOptions

    @classmethod
    def create(
        cls, source: Source, connectors: ConnectorRunner, directory: str, options: ScopeRlOptions
    ) -> ScopeRlOutput:
        schema, fields = connectors.schema, connectors.configuration.fields
        left_out: dict[str, str] = {}
        states = leaves_below(schema, fields.obs, left_out)
        if wrong := [leaf for leaf in states if len(leaf.shape) > 1 or leaf.is_image]:
            raise UsageError(f"--to=scope_rl: states must be vectors, not {wrong[0].field}: leave it out")
        if not states:
            raise UsageError("--to=scope_rl: the dataset has no numeric observation")
        action = single(leaves_below(schema, fields.actions, left_out), "action", "scope_rl")
        if len(action.shape) > 1 or (action.dtype.kind in "iub" and action.field.known_size != 1):
            raise UsageError(f"--to=scope_rl: an action must be an integer or a vector of floats, not {action.field}")
        reward = scalar(single(leaves_below(schema, fields.rewards, {}), "reward", "scope_rl"), "reward", "scope_rl")
        propensity = next((LeafColumn(schema.steps[p]) for p in _PROPENSITIES if p in schema.steps), None)
        infos = make_columns((f for p, f in schema.steps.items() if below(p, fields.infos) and not f.shape), left_out)
        info = tuple((leaf.path[len(fields.infos) + 1 :] or leaf.path, leaf) for leaf in infos)
        policy = next((path for path in schema.metadata if _POLICY.search(path)), None)
        held = {leaf.path for leaf in (*states, action, reward, *(leaf for _, leaf in info))}
        held |= {*FLAGS, *([propensity.path] if propensity else [])} | left_out.keys()
        left_out |= {path: _NOT_HELD for path in schema.steps if path not in held}
        left_out |= {path: f"an episode field; {_NOT_HELD}" for path in schema.metadata if path != policy}
        if source.last_action != "real":
            left_out[f"{fields.obs} (last step)"] = "SCOPE-RL has one state per action"
        known = source.meaning.of_fields(Schema({leaf.path: leaf.field for leaf in (*states, action)}))
        return cls(
            directory,
            source.name,
            tuple(split.name for split in source.splits),
            states,
            action,
            reward,
            propensity,
            info,
            policy,
            options,
            left_out,
            dataclasses.replace(known, last_action="unknown"),  # it holds no last actions
        )

    @property
    def discrete(self) -> bool:
        """Whether an action is an integer."""
        return self.action.dtype.kind in "iub"

    def _file(self, split: str) -> str:
        """The file name that SCOPE-RL's `MultipleLoggedDataset` looks for."""
        kind, policy = "discrete" if self.discrete else "continuous", self.options.behavior_policy or self.name
        return f"logged_dataset_{kind}_{re.sub(r'[^A-Za-z0-9_.-]', '_', policy)}_{self.splits.index(split)}.pickle"

    def plan(self) -> dict[str, Any]:
        own = {"fields": self.describe().fields, **dataclasses.asdict(self.options)}
        return {"scope_rl": {**own, **self.meaning.entry()}}

    def describe(self) -> Description:
        pscore = f"pscore: {self.propensity.field}" if self.propensity else "pscore: None, no propensity is recorded"
        states = [f"state: {leaf.field}" for leaf in self.states]
        info = [f"info/{key}: {leaf.field}" for key, leaf in self.info]
        fields = [*states, f"action: {self.action.field}", f"reward: {self.reward.field}", pscore, *info]
        return Description(fields, self.left_out)

    @property
    def part_columns(self) -> tuple[str, ...]:
        return (*_COLUMNS, *(f"info/{key}" for key, _ in self.info))

    def check_batch(self, batch: Batch) -> None:
        for episode in batch.episodes:
            self.encode(episode)

    def encode(self, episode: Episode) -> Sequence[Array]:
        end, steps = transitions(episode), self.options.step_per_trajectory
        if end < 1:
            raise not_representable("the episode has no action, which SCOPE-RL needs")
        if steps is not None and end > steps:
            raise not_representable(f"{end} actions, but --step_per_trajectory={steps}")

        def read(leaf: LeafColumn, dtype: type) -> Array:
            return representable(leaf.values(episode, end).reshape(end, -1), dtype, leaf.path)

        action = read(self.action, _stored(self.action))
        if self.discrete and self.options.n_actions is not None and action.max() >= self.options.n_actions:
            raise not_representable(f"action {action.max()}, but --n_actions={self.options.n_actions}")
        pscore = np.ones(end)
        if self.propensity is not None:
            pscore = self.propensity.values(episode, end).reshape(end, -1)[:, 0].astype(np.float64)
            pscore = np.exp(pscore) if self.propensity.path == "action_logp" else pscore
        policy = text_bytes(episode.metadata[self.policy], self.policy) if self.policy else b""
        return [
            np.concatenate([read(leaf, np.float64) for leaf in self.states], axis=1),
            action,
            read(self.reward, np.float64),
            pscore,
            np.array([episode.steps["is_terminal"][-1]], bool),
            np.frombuffer(policy, np.uint8),
            *(read(leaf, _stored(leaf)) for _, leaf in self.info),
        ]

    def describe_merged(self, parts: Mapping[str, Sequence[Part]]) -> dict[str, Any]:
        return self.meaning.entry()

    def notes(self, manifest: Mapping[str, Any]) -> list[str]:
        return [
            "padding   rows whose mask is 0: call rlds_beam.recording.mask_padding for off-policy evaluation,",
            "          and leave these rows out for training",
        ]

    def merge(self, split: str, parts: Sequence[Part]) -> Iterator[MergedFile]:
        content = self._logged_dataset(self.splits.index(split), parts)
        with ShardWriter(storage.below(self.directory, self._file(split))) as writer:
            pickle.dump(content, Sink(writer), protocol=5)
            shard = msgspec.structs.replace(writer.commit(), records=sum(map(len, parts)))
        yield MergedFile(self._file(split), split, shard)

    def _logged_dataset(self, dataset_id: int, parts: Sequence[Part]) -> dict[str, Any]:
        """SCOPE-RL's dict of a split, in memory."""
        sizes = np.concatenate([part.rows for part in parts])
        lengths = sizes[:, [_COLUMNS.index("reward")]]
        steps = self.options.step_per_trajectory or int(lengths.max())
        rows = (np.cumsum(lengths)[:, None] - lengths + np.minimum(np.arange(steps), lengths - 1)).reshape(-1)

        def read(name: str) -> bytes:
            return b"".join(read_blocks(parts, self.part_columns.index(name)))

        def padded(name: str, dtype: type, width: tuple[int, ...] = ()) -> Array:
            column: Array = np.frombuffer(read(name), dtype).reshape(lengths.sum(), *width)[rows]
            return column  # its last row is repeated

        place = np.arange(steps)
        is_padding, at_end = place >= lengths, place == lengths - 1
        dimensions = int(np.prod(self.action.shape, dtype=np.int64))
        action = padded("action", _stored(self.action), () if self.discrete else (dimensions,))
        reward, pscore = padded("reward", np.float64), padded("pscore", np.float64)
        reward[is_padding.reshape(-1)], pscore[is_padding.reshape(-1)] = 0, 1
        if not self.discrete:  # SCOPE-RL repeats the joint density for each dimension
            pscore = np.repeat(pscore[:, None], dimensions, axis=1)
        terminated = np.frombuffer(read("terminated"), bool)[:, None]
        ends, names = np.cumsum(sizes[:, _COLUMNS.index("policy")]).tolist(), read("policy")
        policies = {names[start:end].decode("utf-8", "backslashreplace") for start, end in pairwise([0, *ends])} - {""}
        n_actions = self.options.n_actions or (int(action.max()) + 1 if self.discrete else None)
        state_keys: list[str] = []
        for leaf in self.states:
            name = leaf.path.partition("/")[2] or leaf.path
            unnamed = [f"{name}_{i}" for i in range(leaf.field.known_size)] if leaf.shape else [name]
            state_keys += leaf.field.names or unnamed

        def marks(where: Array) -> Array:
            return where.astype(np.float64).reshape(-1)

        return {
            "size": is_padding.size,
            "n_trajectories": len(lengths),
            "step_per_trajectory": steps,
            "action_type": "discrete" if self.discrete else "continuous",
            "n_actions": n_actions if self.discrete else None,
            "action_dim": None if self.discrete else dimensions,
            "action_meaning": None,
            "action_keys": None if self.discrete else list(self.action.field.names) or None,
            "state_dim": len(state_keys),
            "state_keys": state_keys,
            "state": padded("state", np.float64, (len(state_keys),)),
            "action": action,
            "reward": reward,
            "done": marks(is_padding | at_end),
            "terminal": marks(at_end & (lengths == steps)),
            "info": {key: padded(f"info/{key}", _stored(leaf)) for key, leaf in self.info},
            "pscore": pscore if self.propensity else None,
            "behavior_policy": self.options.behavior_policy or "+".join(sorted(policies)) or self.name,
            "dataset_id": dataset_id,
            "mask": marks(~is_padding),
            "terminated": marks(at_end & terminated),
            "truncated": marks(at_end & ~terminated),
        }


def _stored(leaf: LeafColumn) -> type:
    """The type of the numbers that SCOPE-RL has for a field."""
    return np.int64 if leaf.dtype.kind in "iub" else np.float64
