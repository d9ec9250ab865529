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
from collections.abc import Iterator, Mapping
from typing import Any, Self

import numpy as np

from rlds_beam.connectors.base import Batch
from rlds_beam.connectors.pipeline import ConnectorRunner
from rlds_beam.episodes.columns import all_below, below, nest_order, text_bytes, transitions
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.schema import ADD_ACTIONS, FLAGS, Field, Schema
from rlds_beam.errors import UsageError
from rlds_beam.formats.arrays.array_episodes import fields_of_numbers, not_representable, read_numbers, representable
from rlds_beam.formats.arrays.parts import INT64, STEPS, MergedOutput, Parts, encode_values, lengths_of
from rlds_beam.formats.format_options import ScopeRlOptions
from rlds_beam.output.base import Description
from rlds_beam.output.shards import MergedFile
from rlds_beam.reading.base import Source
from rlds_beam.reading.meaning import Meaning
from rlds_beam.typing import Array


@dataclasses.dataclass(frozen=True)
class ScopeRlOutput(MergedOutput):
    """A logged dataset for each split.

    Attributes:
      directory, name, left_out, meaning: see `ArraysOutput`; `splits`: the names of the dataset's splits.
      columns: the written fields by part column: `state/<key>`, `action`, `reward`, `info/<key>`, and `pscore` if a
        propensity is recorded (`action_logp` is its logarithm).
      policy: the episode field with the name of its policy.
      options: the options of the job.
    """

    directory: str
    name: str
    splits: tuple[str, ...]
    columns: dict[str, Field]
    policy: str | None
    options: ScopeRlOptions
    left_out: dict[str, str]
    meaning: Meaning

    options_class = ScopeRlOptions

    @classmethod
    def create(cls, source: Source, connectors: ConnectorRunner, directory: str, options: ScopeRlOptions) -> Self:
        schema, fields = connectors.schema, connectors.configuration.fields
        left_out: dict[str, str] = {}

        def numbers_below(name: str) -> list[Field]:
            paths = nest_order(all_below(schema.steps, name))
            return fields_of_numbers((schema.steps[path] for path in paths), left_out)

        states, actions, rewards = (numbers_below(name) for name in (fields.obs, fields.actions, fields.rewards))
        if not states:
            raise UsageError("--to=scope_rl: the dataset has no numeric observation")
        if wrong := [field for field in states if len(field.shape) > 1 or field.holds_image_files]:
            raise UsageError(f"--to=scope_rl: states must be vectors, not {wrong[0]}: leave it out")
        for role, of_role in (("action", actions), ("reward", rewards)):
            if len(of_role) != 1:
                names = ", ".join(field.path for field in of_role) or "none"
                hint = "" if actions else f"; {ADD_ACTIONS}"
                raise UsageError(f"--to=scope_rl: the {role} must be one array, but the dataset has {names}{hint}")
        (action,), (reward,) = actions, rewards
        if len(action.shape) > 1 or (action.numpy_dtype.kind in "iub" and action.known_size != 1):
            raise UsageError(f"--to=scope_rl: an action must be an integer or a vector of floats, not {action}")
        if reward.known_size != 1:
            raise UsageError(f"--to=scope_rl: the reward must be one number per step, not {reward}")
        columns = {f"state/{field.path.partition('/')[2] or field.path}": field for field in states}
        columns |= {"action": action, "reward": reward}
        for path in ("propensity", "action_logp"):
            if path in schema.steps:
                columns.setdefault("pscore", schema.steps[path])
        infos = [field for path, field in schema.steps.items() if below(path, fields.infos) and not field.shape]
        for field in fields_of_numbers(infos, left_out):
            columns[f"info/{field.path.removeprefix(fields.infos + '/')}"] = field
        policy = next((path for path in schema.metadata if path.rpartition("/")[2] == "policy"), None)
        held = {*FLAGS, *left_out, *(field.path for field in columns.values())}
        left_out |= {path: "SCOPE-RL has no such field" for path in schema.steps if path not in held}
        left_out |= {path: "an episode field; SCOPE-RL has none" for path in schema.metadata if path != policy}
        if source.last_action != "real":
            left_out[f"{fields.obs} (last step)"] = "SCOPE-RL has one state per action"
        known = source.meaning.of_fields(Schema({field.path: field for field in (*states, action)}))
        meaning = dataclasses.replace(known, last_action="unknown")  # it holds no last actions
        splits = tuple(split.name for split in source.splits)
        return cls(directory, source.name, splits, columns, policy, options, left_out, meaning)

    @property
    def discrete(self) -> bool:
        """Whether an action is an integer."""
        return self._stored_dtype("action") == np.int64

    def _stored_dtype(self, column: str) -> np.dtype[Any]:
        """The dtype of SCOPE-RL's values."""
        is_integer = column.startswith(("action", "info/")) and self.columns[column].numpy_dtype.kind in "iub"
        return np.dtype(np.int64 if is_integer else np.float64)

    def plan(self) -> dict[str, Any]:
        own = {"fields": self.describe().fields, **dataclasses.asdict(self.options)}
        return {"scope_rl": own, **self.meaning.entry()}

    def describe(self) -> Description:
        none = [] if "pscore" in self.columns else ["pscore: None, no propensity is recorded"]
        return Description([*(f"{name}: {field}" for name, field in self.columns.items()), *none], self.left_out)

    @property
    def part_columns(self) -> tuple[str, ...]:
        return (STEPS, *self.columns, "terminated", "policy", lengths_of("policy"))

    def check_batch(self, batch: Batch) -> None:
        for episode in batch.episodes:
            self.encode(episode)

    def encode(self, episode: Episode) -> Mapping[str, Array]:
        end, steps = transitions(episode), self.options.step_per_trajectory
        if end < 1:
            raise not_representable("the episode has no action, which SCOPE-RL needs")
        if steps is not None and end > steps:
            raise not_representable(f"{end} actions, but --step_per_trajectory={steps}")
        policy = text_bytes(episode.metadata[self.policy], self.policy) if self.policy else b""
        encoded = {
            STEPS: np.array(end, INT64),
            "terminated": np.array(episode.steps["is_terminal"][-1], bool),
            **encode_values("policy", [policy]),
        }
        for name, field in self.columns.items():
            encoded[name] = representable(read_numbers(field, episode, end), self._stored_dtype(name), field.path)
        n_actions = self.options.n_actions
        if self.discrete and n_actions is not None and encoded["action"].max() >= n_actions:
            raise not_representable(f"action {encoded['action'].max()}, but --n_actions={n_actions}")
        return encoded

    def notes(self, manifest: Mapping[str, Any]) -> list[str]:
        return [
            "padding   rows whose mask is 0: call rlds_beam.recording.mask_padding for off-policy evaluation,",
            "          and leave these rows out for training",
        ]

    def merge(self, split: str, parts: Parts) -> Iterator[MergedFile]:
        content = self._logged_dataset(self.splits.index(split), parts)
        policy = re.sub(r"[^A-Za-z0-9_.-]", "_", self.options.behavior_policy or self.name)
        # The name that SCOPE-RL's `MultipleLoggedDataset` looks for.
        name = f"logged_dataset_{content['action_type']}_{policy}_{content['dataset_id']}.pickle"
        yield self.write_merged(name, split, parts.episodes, lambda file: pickle.dump(content, file, protocol=5))

    def _logged_dataset(self, dataset_id: int, parts: Parts) -> dict[str, Any]:
        """SCOPE-RL's dict of a split, in memory."""
        lengths = parts.steps[:, None]
        steps = self.options.step_per_trajectory or int(lengths.max())
        place = np.arange(steps)
        rows = (np.cumsum(lengths)[:, None] - lengths + np.minimum(place, lengths - 1)).reshape(-1)
        is_padding, at_end = (place >= lengths).reshape(-1), (place == lengths - 1).reshape(-1)
        terminated = np.frombuffer(b"".join(parts.read("terminated")), bool).repeat(steps)

        def padded(name: str) -> Array:
            """A column, [size, width]: its last row is repeated."""
            data = np.frombuffer(b"".join(parts.read(name)), self._stored_dtype(name))
            column: Array = data.reshape(lengths.sum(), -1)[rows]
            return column

        state_keys: list[str] = []
        for name, field in self.columns.items():
            if name.startswith("state/"):
                key = name.removeprefix("state/")
                unnamed = [f"{key}_{i}" for i in range(field.known_size)] if field.shape else [key]
                state_keys += field.names or unnamed
        action, reward = padded("action"), padded("reward")[:, 0]
        dimensions, pscore = action.shape[1], None
        reward[is_padding] = 0
        if (propensity := self.columns.get("pscore")) is not None:
            pscore = np.exp(padded("pscore")) if propensity.path == "action_logp" else padded("pscore")
            pscore[is_padding] = 1
            # SCOPE-RL repeats the joint density for each dimension.
            pscore = pscore[:, 0] if self.discrete else np.repeat(pscore[:, :1], dimensions, axis=1)
        policies = {name.decode("utf-8", "backslashreplace") for name in parts.values("policy") if name}
        return {
            "size": is_padding.size,
            "n_trajectories": len(lengths),
            "step_per_trajectory": steps,
            "action_type": "discrete" if self.discrete else "continuous",
            "n_actions": (self.options.n_actions or int(action.max()) + 1) if self.discrete else None,
            "action_dim": None if self.discrete else dimensions,
            "action_meaning": None,
            "action_keys": None if self.discrete else list(self.columns["action"].names) or None,
            "state_dim": len(state_keys),
            "state_keys": state_keys,
            "state": np.concatenate([padded(name) for name in self.columns if name.startswith("state/")], axis=1),
            "action": action[:, 0] if self.discrete else action,
            "reward": reward,
            "done": (is_padding | at_end).astype(np.float64),
            "terminal": (at_end & (parts.steps == steps).repeat(steps)).astype(np.float64),
            "info": {n.removeprefix("info/"): padded(n)[:, 0] for n in self.columns if n.startswith("info/")},
            "pscore": pscore,
            "behavior_policy": self.options.behavior_policy or "+".join(sorted(policies)) or self.name,
            "dataset_id": dataset_id,
            "mask": (~is_padding).astype(np.float64),
            "terminated": (at_end & terminated).astype(np.float64),
            "truncated": (at_end & ~terminated).astype(np.float64),
        }
