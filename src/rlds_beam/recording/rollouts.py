"""The shards of a recording: reading one rolls out a policy and yields the records of an RLDS TFRecord file.

Propensities are checked by recomputing them from the data to be stored.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlds_beam.encoding.base import Headers, Record
from rlds_beam.encoding.tfds.rlds_dataset import as_column, encode_feature, join_entries
from rlds_beam.encoding.tfrecord.framing import OVERHEAD
from rlds_beam.encoding.wire import encode_delimited, varint
from rlds_beam.episodes.episode import Column, Episode, EpisodeKey
from rlds_beam.episodes.schema import FLAGS, Field, Schema, text_field
from rlds_beam.errors import NotVerifiedError
from rlds_beam.images.codecs import encode_png
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.reading.plan import MAX_RANGES
from rlds_beam.recording.bases import State, stack_states
from rlds_beam.recording.environments import Environment, make_environment
from rlds_beam.recording.policies import BehaviorPolicy, Distribution, HistoryPolicy, Propensity
from rlds_beam.recording.policy_loader import load_policies
from rlds_beam.recording.rollout import (
    INFO,
    LOG_PROPENSITY,
    PROPENSITY,
    Address,
    RecordedEpisode,
    RolloutSettings,
    roll_out,
)
from rlds_beam.recording.spaces import Structure, number_field
from rlds_beam.typing import Array

MIXTURE = ("mixture_propensity", "log_mixture_propensity")


class JoinedEpisodes(NamedTuple):
    """The concatenated steps with an action of several episodes.

    Attributes:
      observations: the observations, nested as a policy takes them.
      actions: the actions, by leaf.
      recorded: the recorded propensities; None if unknown.
      lengths: the number of steps with an action of each episode.
      episodes: the columns of each episode.
      state: the acting policy's state before each episode; None for a policy without a state.
    """

    observations: Any
    actions: tuple[Array, ...]
    recorded: Array | None
    lengths: Array
    episodes: Sequence[Mapping[str, Array]]
    state: State | None = None

    def propensity(self, policy: BehaviorPolicy, *, acted: bool = False) -> Propensity:
        """The recomputed propensity of all actions.

        Args:
          policy: the policy.
          acted: whether this policy chose the actions.
        """
        if isinstance(policy, HistoryPolicy):
            key = EpisodeKey("recorded", "train", 0, 0)
            return policy.propensity([Episode(key, columns) for columns in self.episodes])
        return self.distribution(policy, acted=acted).propensity(self.actions)

    def distribution(self, policy: BehaviorPolicy, *, acted: bool) -> Distribution:
        """The distribution of all actions; a policy with a state gets the observations in order."""
        initial = policy.initial_state()
        if initial is None:
            return policy.distribution(self.observations)
        state = self.state if acted and self.state is not None else stack_states([initial] * len(self.episodes))
        return policy.replay(self.observations, self.lengths, state)


def together(
    observation: Structure,
    action: Structure,
    episodes: Sequence[Mapping[str, Array]],
    states: Sequence[State | None] = (),
) -> JoinedEpisodes:
    """Concatenates the columns of episodes, each of T steps of which T - 1 have an action."""

    def join(path: str) -> Array:
        return np.concatenate([columns[path][:-1] for columns in episodes])

    known = PROPENSITY in episodes[0]
    of_each = [state for state in states if state is not None]
    return JoinedEpisodes(
        observation.build([join(path) for path in _paths(observation, "observation")]),
        tuple(join(path) for path in _paths(action, "action")),
        join(PROPENSITY) if known else None,
        np.array([len(columns["reward"]) - 1 for columns in episodes]),
        episodes,
        stack_states(of_each) if of_each else None,
    )


def check_propensities(policy: BehaviorPolicy, steps: JoinedEpisodes, names: Sequence[str]) -> None:
    """Recomputes the propensity of each stored action from the stored observations, and compares.

    Args:
      policy: the policy that acted.
      steps: the steps of the episodes.
      names: the names of the episodes, for messages.

    Raises:
      NotVerifiedError: a recorded propensity differs, so the policy does not depend on the observation alone.
    """
    if steps.recorded is None:
        return
    if isinstance(policy, HistoryPolicy):
        same = np.isclose(steps.propensity(policy).value, steps.recorded, rtol=1e-3, atol=0)
    else:
        same = steps.distribution(policy, acted=True).may_be(steps.actions, steps.recorded)
    if not same.all():
        row = int(np.argmin(same))
        ends = np.cumsum(steps.lengths)
        episode = int(np.searchsorted(ends, row, side="right"))
        step = row - int(ends[episode] - steps.lengths[episode])
        recomputed = steps.propensity(policy, acted=True).value[row]
        raise NotVerifiedError(
            f"{names[episode]}: step {step} was recorded with propensity {steps.recorded[row]:.6g}, but {policy.name} "
            f"gives {recomputed:.6g} for the same observation: a behavior policy must be a function of the observation "
            "(and of a state that starts with get_initial_state), without its own random numbers"
        )


def add_mixture(
    policies: Sequence[BehaviorPolicy], steps: JoinedEpisodes, episodes: Sequence[dict[str, Array]]
) -> None:
    """Adds each action's propensity under the mixture of all policies: the mean of their propensities.

    mixture_propensity = sum of pi_k(a | s) over the K policies / K
    """
    logs = np.stack([steps.propensity(policy).log for policy in policies])
    mixed = np.logaddexp.reduce(logs, axis=0) - np.log(len(policies))
    for columns, own in zip(episodes, np.split(mixed, np.cumsum(steps.lengths)[:-1]), strict=True):
        # The last step has no action.
        columns.update(zip(MIXTURE, (np.append(np.exp(own), 0.0), np.append(own, 0.0)), strict=True))


def _paths(structure: Structure, name: str) -> list[str]:
    return [f"{name}/{leaf.path}" if leaf.path else name for leaf in structure.leaves]


_EPISODE = "episode_metadata/"
"""The prefix of an episode's fields in `features_json`."""


class RecordedPayload(bytes):
    """A record's bytes together with the episode, so that it need not be decoded again.

    Attributes:
      steps, metadata: as in `Episode`.
    """

    steps: Mapping[str, Column]
    metadata: Mapping[str, Any]


class RecordedDecoder:
    """A `Decoder` for `RecordedPayload`s."""

    def decode(self, payload: bytes, key: EpisodeKey) -> Episode:
        assert isinstance(payload, RecordedPayload)
        return Episode(key, payload.steps, payload.metadata, payload)


class EpisodeEncoder:
    """Encodes recorded episodes as tf.Examples.

    Args:
      schema: the schema that `parse_features` reads from the features.json of `recorded_schema`.
    """

    def __init__(self, schema: Schema):
        # The entries of a tf.Example are in the order of their names: "episode_metadata/..." before "steps/...".
        self._steps = [
            (encode_delimited(1, f"steps/{path}".encode()), field) for path, field in sorted(schema.steps.items())
        ]
        self._metadata = [(encode_delimited(1, path.encode()), path) for path in sorted(schema.metadata)]

    def encode(self, columns: Mapping[str, Array], metadata: Mapping[str, str | int]) -> RecordedPayload:
        """Encodes an episode as a record.

        Args:
          columns: the columns of its steps; columns outside the schema are ignored.
          metadata: the fields of the episode, by name.
        """
        values: dict[str, Any] = {}
        steps: dict[str, Column] = {}
        entries: list[bytes] = []
        for name, path in self._metadata:
            value = metadata[path.removeprefix(_EPISODE)]
            if isinstance(value, str):
                values[path] = value.encode()
                entries.append(name + encode_delimited(2, encode_delimited(1, encode_delimited(1, values[path]))))
            else:
                values[path] = np.int64(value)
                entries.append(name + encode_delimited(2, encode_delimited(3, encode_delimited(1, varint(value)))))
        for name, field in self._steps:
            steps[field.path] = column = _column(columns[field.path], field)
            entries.append(name + encode_delimited(2, encode_feature(column, field)))
        payload = RecordedPayload(join_entries(entries))
        payload.steps, payload.metadata = steps, values
        return payload


def _column(values: Array, field: Field) -> Column:
    """A column as a decoder returns it: text as bytes, images encoded."""
    if field.encoding == "png":
        data = encode_png(values)
        return EncodedImages(np.fromiter(data, object, len(data)), field.shape, field.dtype, "png")
    return as_column(values.tolist()) if field.dtype == "string" else values


def recorded_schema(
    observation: Structure,
    action: Structure,
    settings: RolloutSettings,
    *,
    propensity: bool,
    mixture: bool,
    images: bool,
) -> Schema:
    """The schema of recorded episodes."""
    fields = [leaf.field("observation", images) for leaf in observation.leaves]
    fields += [leaf.field("action") for leaf in action.leaves]
    fields += [number_field("reward", settings.reward), number_field("discount", "float32")]
    fields += [number_field(path, "bool") for path in FLAGS]
    names = (PROPENSITY, LOG_PROPENSITY, *(MIXTURE if mixture else ()))
    fields += [number_field(path, "float64") for path in (names if propensity else ())]
    for name, (dtype, shape) in settings.info.items():
        path = f"{INFO}/{name}"
        fields.append(text_field(path) if dtype == "string" else number_field(path, dtype, shape))
    episode = [text_field(path) for path in ("episode_id", "policy", "end")]
    numbers = ("policy_id", "dataset_id", "trajectory_id", *(("part", "start_step") if settings.windows else ()))
    episode += [number_field(path, "int64") for path in numbers]
    return Schema({f.path: f for f in fields}, {f.path: f for f in episode})


TARGET_FILES, MIN_PER_FILE, MAX_PER_FILE = 16, 16, 1000
"""The target number of files per policy and dataset, and the minimum and maximum trajectories per file."""
_STEPS_TOGETHER = 1024
"""Number of steps whose propensities are checked together, to call the policies less often."""


@dataclasses.dataclass(frozen=True)
class Rollout:
    """The trajectories of a shard, all of one policy in one dataset.

    Attributes:
      policy, dataset: the numbers of the policy and the dataset.
      first: the number of the first trajectory.
      count: the number of trajectories.
    """

    policy: int
    dataset: int
    first: int
    count: int

    @property
    def addresses(self) -> list[Address]:
        """The address of each trajectory."""
        return [Address(self.policy, self.dataset, i) for i in range(self.first, self.first + self.count)]


def plan_rollouts(
    policies: int, datasets: int, trajectories: int, shards: int | None = None
) -> dict[str, list[Rollout]]:
    """Divides a recording into shards, independently of the number of workers.

    Args:
      policies, datasets: the number of policies and datasets. Each dataset is a split with trajectories of each policy.
      trajectories: the number of trajectories per policy and dataset.
      shards: the number of shards per policy and dataset; None chooses one.

    Returns:
      The shards of each split.
    """
    if shards is None:
        shards = max(min(TARGET_FILES, -(-trajectories // MIN_PER_FILE)), -(-trajectories // MAX_PER_FILE))
        shards = min(shards, max(1, MAX_RANGES // (policies * datasets)))
    shards = min(shards, trajectories)
    bounds = [trajectories * i // shards for i in range(shards + 1)]
    return {
        "train" if datasets == 1 else f"train_{dataset}": [
            Rollout(policy, dataset, first, stop - first)
            for policy in range(policies)
            for first, stop in itertools.pairwise(bounds)
        ]
        for dataset in range(datasets)
    }


@dataclasses.dataclass(frozen=True)
class RolloutFormat:
    """A `RecordFormat` of virtual files: reading one rolls out its trajectories. Picklable.

    Positions are those of the records in the file that `--to=rlds` writes, so an episode has the same key in both.

    Attributes:
      environment, config: as in `make_environment`.
      policies: as in `load_policies`.
      settings: the settings of the rollout.
      schema: the schema of the episodes.
      mixture: whether to also record the propensity under the mixture of all policies.
      metadata: the metadata of the dataset.
      rollouts: the trajectories of each shard, by its path.
    """

    environment: str
    config: Mapping[str, Any]
    policies: tuple[str, ...]
    settings: RolloutSettings
    schema: Schema
    mixture: bool
    metadata: Mapping[str, Any]
    rollouts: Mapping[str, Rollout]

    name = "tfrecord"
    unit = "bytes"

    def make(self) -> Environment:
        """Creates an environment."""
        environment = make_environment(self.environment, self.config)
        environment.observation = environment.observation.with_dtypes(self.settings.observed)
        return environment

    def read(self, path: str, start: int = 0, stop: int | None = None) -> Iterator[Record]:
        """Rolls out the trajectories of a shard and yields a record for each episode.

        Raises:
          NotVerifiedError: a propensity does not match the stored action, or the number of steps differs from the plan.
        """
        position = 0
        for payload in _Recorder(self, self.rollouts[path]).payloads():
            if start <= position and (stop is None or position < stop):
                yield Record(position, payload)
            position += len(payload) + OVERHEAD

    def scan(self, path: str, start: int = 0, stop: int | None = None) -> Headers:
        raise TypeError(f"{path} is a rollout, which has no headers")

    def is_splittable(self, path: str) -> bool:
        return False

    def end(self, path: str, size: int) -> int:
        raise TypeError(f"{path} is a rollout, which cannot be cut")

    def positions(self, path: str, low: int, high: int) -> tuple[int, int | None]:
        raise TypeError(f"{path} is a rollout, which cannot be cut")


class _Recorder:
    """Rolls out the trajectories of one shard and checks the recording."""

    def __init__(self, files: RolloutFormat, rollout: Rollout):
        self._files, self._rollout = files, rollout
        environment = files.make()
        self._observation, self._action = environment.observation, environment.action
        environment.close()
        self._policies = load_policies(files.policies)
        for policy in self._policies:
            policy.bind(self._observation, self._action)
        self._policy = self._policies[rollout.policy]
        self._encoder = EpisodeEncoder(files.schema)
        self._trajectories = self._transitions = 0

    def payloads(self) -> Iterator[bytes]:
        """The record of each episode, in order."""
        files, rollout = self._files, self._rollout
        recordings = roll_out(files.make, self._policy, files.settings, rollout.addresses)
        for group in _group(recordings):
            yield from self._check_and_encode(group)
        settings, count = files.settings, rollout.count
        planned = count * (settings.step_per_trajectory or 0) if settings.windows else self._transitions
        if self._trajectories != count or self._transitions != planned:
            raise NotVerifiedError(
                f"{self._policy.name}: recorded {self._trajectories} trajectories with {self._transitions} steps, "
                f"expected {count} with {planned}"
            )

    def _check_and_encode(self, recordings: Sequence[RecordedEpisode]) -> Iterator[bytes]:
        """Checks the propensities of some episodes and yields their records."""
        policy, rollout = self._policy, self._rollout
        names = [f"{policy.name}/{rollout.dataset}/{r.trajectory}{f'.{r.part}' * (r.part > 0)}" for r in recordings]
        episodes = [recording.columns for recording in recordings]
        steps = together(self._observation, self._action, episodes, [recording.state for recording in recordings])
        check_propensities(policy, steps, names)
        if self._files.mixture:
            add_mixture(self._policies, steps, episodes)
        for recording, name in zip(recordings, names, strict=True):
            self._trajectories += not recording.part
            self._transitions += len(recording.columns["reward"]) - 1
            metadata: dict[str, str | int] = {
                "episode_id": name,
                "policy": policy.name,
                "end": recording.end,
                "policy_id": rollout.policy,
                "dataset_id": rollout.dataset,
                "trajectory_id": recording.trajectory,
                "part": recording.part,
                "start_step": recording.age,
            }
            yield self._encoder.encode(recording.columns, metadata)


def _group(recordings: Iterable[RecordedEpisode]) -> Iterator[list[RecordedEpisode]]:
    """Groups the recordings into about `_STEPS_TOGETHER` steps each."""
    group: list[RecordedEpisode] = []
    steps = 0
    for recording in recordings:
        group.append(recording)
        steps += len(recording.columns["reward"]) - 1
        if steps >= _STEPS_TOGETHER:
            yield group
            group, steps = [], 0
    if group:
        yield group
