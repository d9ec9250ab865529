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
from typing import Any

import numpy as np

from rlds_beam.connectors.base import Batch
from rlds_beam.connectors.pipeline import ConnectorRunner
from rlds_beam.episodes.columns import all_below, below, nest_order, text_bytes, transitions
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.schema import ADD_ACTIONS, FLAGS, Field, Schema
from rlds_beam.errors import UsageError
from rlds_beam.formats.arrays.fields import fields_of_numbers, not_representable, read_numbers, representable
from rlds_beam.formats.arrays.parts import INT64, STEPS, MergedOutput, Parts, encode_values, lengths_of
from rlds_beam.formats.format_options import ScopeRlOptions
from rlds_beam.output.base import Description
from rlds_beam.output.shards import MergedFile
from rlds_beam.reading.base import Source
from rlds_beam.reading.meaning import Meaning
from rlds_beam.typing import Array

_NOT_HELD = "SCOPE-RL has no such field"
_PROPENSITIES = ("propensity", "action_logp")
_POLICY = re.compile(r"(^|/)policy$")


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
    states: tuple[Field, ...]
    action: Field
    reward: Field
    propensity: Field | None
    info: dict[str, Field]
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

        def numbers_below(name: str) -> tuple[Field, ...]:
            paths = nest_order(all_below(schema.steps, name))
            return tuple(fields_of_numbers((schema.steps[path] for path in paths), left_out))

        states = numbers_below(fields.obs)
        if wrong := [field for field in states if len(field.shape) > 1 or field.holds_image_files]:
            raise UsageError(f"--to=scope_rl: states must be vectors, not {wrong[0]}: leave it out")
        if not states:
            raise UsageError("--to=scope_rl: the dataset has no numeric observation")
        action = _single(numbers_below(fields.actions), "action")
        if len(action.shape) > 1 or (_stored(action) is np.int64 and action.known_size != 1):
            raise UsageError(f"--to=scope_rl: an action must be an integer or a vector of floats, not {action}")
        reward = _single(numbers_below(fields.rewards), "reward")
        if reward.known_size != 1 or reward.holds_image_files:
            raise UsageError(f"--to=scope_rl: the reward must be one number per step, not {reward}")
        propensity = next((schema.steps[path] for path in _PROPENSITIES if path in schema.steps), None)
        infos = [field for path, field in schema.steps.items() if below(path, fields.infos) and not field.shape]
        prefix = f"{fields.infos}/"
        info = {field.path.removeprefix(prefix): field for field in fields_of_numbers(infos, left_out)}
        policy = next((path for path in schema.metadata if _POLICY.search(path)), None)
        held = {field.path for field in (*states, action, reward, *info.values())}
        held |= {*FLAGS, *([propensity.path] if propensity else [])} | left_out.keys()
        left_out |= {path: _NOT_HELD for path in schema.steps if path not in held}
        left_out |= {path: f"an episode field; {_NOT_HELD}" for path in schema.metadata if path != policy}
        if source.last_action != "real":
            left_out[f"{fields.obs} (last step)"] = "SCOPE-RL has one state per action"
        known = source.meaning.of_fields(Schema({field.path: field for field in (*states, action)}))
        meaning = dataclasses.replace(known, last_action="unknown")  # it holds no last actions
        splits = tuple(split.name for split in source.splits)
        return cls(
            directory, source.name, splits, states, action, reward, propensity, info, policy, options, left_out, meaning
        )

    @property
    def discrete(self) -> bool:
        """Whether an action is an integer."""
        return _stored(self.action) is np.int64

    def _file(self, split: str) -> str:
        """The file name that SCOPE-RL's `MultipleLoggedDataset` looks for."""
        kind, policy = "discrete" if self.discrete else "continuous", self.options.behavior_policy or self.name
        return f"logged_dataset_{kind}_{re.sub(r'[^A-Za-z0-9_.-]', '_', policy)}_{self.splits.index(split)}.pickle"

    def plan(self) -> dict[str, Any]:
        own = {"fields": self.describe().fields, **dataclasses.asdict(self.options)}
        return {"scope_rl": own, **self.meaning.entry()}

    def describe(self) -> Description:
        pscore = f"pscore: {self.propensity}" if self.propensity else "pscore: None, no propensity is recorded"
        states = [f"state: {field}" for field in self.states]
        info = [f"info/{key}: {field}" for key, field in self.info.items()]
        fields = [*states, f"action: {self.action}", f"reward: {self.reward}", pscore, *info]
        return Description(fields, self.left_out)

    @property
    def part_columns(self) -> tuple[str, ...]:
        infos = (f"info/{key}" for key in self.info)
        return (STEPS, "state", "action", "reward", "pscore", "terminated", "policy", lengths_of("policy"), *infos)

    def check_batch(self, batch: Batch) -> None:
        for episode in batch.episodes:
            self.encode(episode)

    def encode(self, episode: Episode) -> Mapping[str, Array]:
        end, steps = transitions(episode), self.options.step_per_trajectory
        if end < 1:
            raise not_representable("the episode has no action, which SCOPE-RL needs")
        if steps is not None and end > steps:
            raise not_representable(f"{end} actions, but --step_per_trajectory={steps}")

        def read(field: Field, dtype: type) -> Array:
            return representable(read_numbers(field, episode, end).reshape(end, -1), dtype, field.path)

        action = read(self.action, _stored(self.action))
        if self.discrete and self.options.n_actions is not None and action.max() >= self.options.n_actions:
            raise not_representable(f"action {action.max()}, but --n_actions={self.options.n_actions}")
        pscore = np.ones(end)
        if self.propensity is not None:
            pscore = read_numbers(self.propensity, episode, end).reshape(end, -1)[:, 0].astype(np.float64)
            pscore = np.exp(pscore) if self.propensity.path == "action_logp" else pscore
        policy = text_bytes(episode.metadata[self.policy], self.policy) if self.policy else b""
        return {
            STEPS: np.array(end, INT64),
            "state": np.concatenate([read(field, np.float64) for field in self.states], axis=1),
            "action": action,
            "reward": read(self.reward, np.float64),
            "pscore": pscore,
            "terminated": np.array(episode.steps["is_terminal"][-1], bool),
            **{f"info/{key}": read(field, _stored(field)) for key, field in self.info.items()},
            **encode_values("policy", [policy]),
        }

    def notes(self, manifest: Mapping[str, Any]) -> list[str]:
        return [
            "padding   rows whose mask is 0: call rlds_beam.recording.mask_padding for off-policy evaluation,",
            "          and leave these rows out for training",
        ]

    def merge(self, split: str, parts: Parts) -> Iterator[MergedFile]:
        content = self._logged_dataset(self.splits.index(split), parts)
        name = self._file(split)
        yield self.write_merged(name, split, parts.episodes, lambda file: pickle.dump(content, file, protocol=5))

    def _logged_dataset(self, dataset_id: int, parts: Parts) -> dict[str, Any]:
        """SCOPE-RL's dict of a split, in memory."""
        lengths = parts.steps[:, None]
        steps = self.options.step_per_trajectory or int(lengths.max())
        rows = (np.cumsum(lengths)[:, None] - lengths + np.minimum(np.arange(steps), lengths - 1)).reshape(-1)

        def padded(name: str, dtype: type, width: tuple[int, ...] = ()) -> Array:
            data = b"".join(parts.read(name))
            column: Array = np.frombuffer(data, dtype).reshape(lengths.sum(), *width)[rows]
            return column  # its last row is repeated

        place = np.arange(steps)
        is_padding, at_end = place >= lengths, place == lengths - 1
        dimensions = self.action.known_size
        action = padded("action", _stored(self.action), () if self.discrete else (dimensions,))
        reward, pscore = padded("reward", np.float64), padded("pscore", np.float64)
        reward[is_padding.reshape(-1)], pscore[is_padding.reshape(-1)] = 0, 1
        if not self.discrete:  # SCOPE-RL repeats the joint density for each dimension
            pscore = np.repeat(pscore[:, None], dimensions, axis=1)
        terminated = np.frombuffer(b"".join(parts.read("terminated")), bool)[:, None]
        policies = {name.decode("utf-8", "backslashreplace") for name in parts.values("policy") if name}
        n_actions = self.options.n_actions or (int(action.max()) + 1 if self.discrete else None)
        state_keys: list[str] = []
        for field in self.states:
            name = field.path.partition("/")[2] or field.path
            unnamed = [f"{name}_{i}" for i in range(field.known_size)] if field.shape else [name]
            state_keys += field.names or unnamed

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
            "action_keys": None if self.discrete else list(self.action.names) or None,
            "state_dim": len(state_keys),
            "state_keys": state_keys,
            "state": padded("state", np.float64, (len(state_keys),)),
            "action": action,
            "reward": reward,
            "done": marks(is_padding | at_end),
            "terminal": marks(at_end & (lengths == steps)),
            "info": {key: padded(f"info/{key}", _stored(field)) for key, field in self.info.items()},
            "pscore": pscore if self.propensity else None,
            "behavior_policy": self.options.behavior_policy or "+".join(sorted(policies)) or self.name,
            "dataset_id": dataset_id,
            "mask": marks(~is_padding),
            "terminated": marks(at_end & terminated),
            "truncated": marks(at_end & ~terminated),
        }


def _single(fields: Sequence[Field], role: str) -> Field:
    """The only field of numbers. Raises UsageError if there are none or several."""
    if not fields:
        hint = f"; {ADD_ACTIONS}" if role == "action" else ""
        raise UsageError(f"--to=scope_rl: the dataset has no numeric {role}{hint}")
    if len(fields) > 1:
        names = ", ".join(field.path for field in fields)
        raise UsageError(f"--to=scope_rl: the {role} must be one array, but the dataset has {names}: join them")
    return fields[0]


def _stored(field: Field) -> type:
    """The type of the numbers that SCOPE-RL has for a field."""
    return np.int64 if field.numpy_dtype.kind in "iub" else np.float64
