"""The shards of a recording: reading one rolls out a policy and yields the records of an RLDS TFRecord file."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rlds_beam.encoding.base import Headers, Record
from rlds_beam.encoding.tfrecord.framing import OVERHEAD
from rlds_beam.episodes.schema import Schema
from rlds_beam.errors import NotVerifiedError
from rlds_beam.reading.plan import MAX_RANGES
from rlds_beam.recording.encoding import EpisodeEncoder
from rlds_beam.recording.environments import Environment, make_environment
from rlds_beam.recording.policy_loader import load_policies
from rlds_beam.recording.propensities import add_mixture, check_propensities, together
from rlds_beam.recording.rollout import roll_out
from rlds_beam.recording.seeds import Address
from rlds_beam.recording.settings import RecordedEpisode, RolloutSettings

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
      metadata: the metadata of the dataset, for EnvLogger.
      envlogger: whether to log with EnvLogger.
      rollouts: the trajectories of each shard, by its path.
    """

    environment: str
    config: Mapping[str, Any]
    policies: tuple[str, ...]
    settings: RolloutSettings
    schema: Schema
    mixture: bool
    metadata: Mapping[str, Any]
    envlogger: bool
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
        recordings = roll_out(
            files.make, self._policy, files.settings, rollout.addresses, files.metadata, envlogger=files.envlogger
        )
        for group in _group(recordings):
            yield from self._check_and_encode(group)
        self._check_counts()

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
            yield self._encoder.encode(recording.columns, self._metadata(name, recording))

    def _metadata(self, name: str, recording: RecordedEpisode) -> dict[str, Any]:
        """The metadata of an episode."""
        return {
            "episode_id": name,
            "policy": self._policy.name,
            "end": recording.end,
            "policy_id": self._rollout.policy,
            "dataset_id": self._rollout.dataset,
            "trajectory_id": recording.trajectory,
            "part": recording.part,
            "start_step": recording.age,
        }

    def _check_counts(self) -> None:
        """Raises NotVerifiedError if the numbers of trajectories or steps differ from the plan."""
        settings, count = self._files.settings, self._rollout.count
        planned = count * (settings.step_per_trajectory or 0) if settings.windows else self._transitions
        if self._trajectories != count or self._transitions != planned:
            raise NotVerifiedError(
                f"{self._policy.name}: recorded {self._trajectories} trajectories with {self._transitions} steps, "
                f"expected {count} with {planned}"
            )


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
