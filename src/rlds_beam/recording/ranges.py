"""The work of a recording: a range of trajectories of one policy and one dataset becomes one finished file."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from rlds_beam import storage, worker_status
from rlds_beam.checking.report import Report
from rlds_beam.encoding.tfrecord.writing import frame
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.keys import EpisodeKey
from rlds_beam.errors import NotVerifiedError
from rlds_beam.output import commits, manifest
from rlds_beam.output.commits import RangeCommit
from rlds_beam.output.files import REPORT, to_json
from rlds_beam.output.shards import ShardWriter, WrittenFile
from rlds_beam.reading.plan import MAX_RANGES, WorkRange
from rlds_beam.recording.dataset import RecordedDataset
from rlds_beam.recording.environments import Environment, make_environment
from rlds_beam.recording.loading import load_policies
from rlds_beam.recording.policies import BehaviorPolicy
from rlds_beam.recording.propensities import add_mixture, check_propensities, together
from rlds_beam.recording.rollout import roll_out
from rlds_beam.recording.seeds import Address
from rlds_beam.recording.settings import Recording, Settings

TARGET_FILES, MIN_PER_FILE, MAX_PER_FILE = 16, 16, 1000
"""Of a policy and a dataset: about so many files, with so many trajectories each at least, and at most."""
_TOGETHER = 1024
"""Steps that are checked together."""


@dataclasses.dataclass(frozen=True)
class RolloutRange(WorkRange):
    """What one worker records in one go, and what becomes one file; it reads no input, so it has no segments.

    Attributes:
      policy, dataset: their numbers.
      first: number of the first trajectory.
      count: of trajectories.
    """

    policy: int = 0
    dataset: int = 0
    first: int = 0
    count: int = 0

    @property
    def addresses(self) -> list[Address]:
        """Of the trajectories."""
        return [Address(self.policy, self.dataset, i) for i in range(self.first, self.first + self.count)]

    def to_json(self) -> list[int]:
        """For the plan."""
        return [self.policy, self.dataset, self.first, self.count]


def plan_rollouts(
    policies: int, datasets: int, trajectories: int, shards: int | None = None
) -> tuple[RolloutRange, ...]:
    """Cuts a recording into ranges: the same ones for any number of workers.

    Args:
      policies, datasets: how many there are. Each dataset is a split, and holds trajectories of each policy.
      trajectories: of each policy in each dataset.
      shards: files of each policy and dataset; None chooses.
    """
    if shards is None:
        shards = max(min(TARGET_FILES, -(-trajectories // MIN_PER_FILE)), -(-trajectories // MAX_PER_FILE))
        shards = min(shards, max(1, MAX_RANGES // (policies * datasets)))
    shards = min(shards, trajectories)
    bounds = [trajectories * i // shards for i in range(shards + 1)]
    ranges = []
    for dataset in range(datasets):
        split = "train" if datasets == 1 else f"train_{dataset}"
        for policy in range(policies):
            for i, (first, stop) in enumerate(itertools.pairwise(bounds)):
                number = policy * shards + i
                ranges.append(RolloutRange(split, number, policies * shards, (), policy, dataset, first, stop - first))
    return tuple(ranges)


@dataclasses.dataclass(frozen=True)
class RangeRecorder:
    """Records a range. Pickles.

    Attributes:
      environment, config: of `make_environment`.
      policies: of `load_policies`.
      settings: of the rollout.
      dataset: what is written.
      metadata: of the dataset, for EnvLogger.
      envlogger: whether EnvLogger does the logging.
      plan: `OutputPlan.digest` of the job.
    """

    environment: str
    config: Mapping[str, Any]
    policies: tuple[str, ...]
    settings: Settings
    dataset: RecordedDataset
    metadata: Mapping[str, Any]
    envlogger: bool
    plan: str = ""

    def make(self) -> Environment:
        """An environment."""
        environment = make_environment(self.environment, self.config)
        environment.observation = environment.observation.with_dtypes(self.settings.observed)
        return environment

    def record(self, work: RolloutRange) -> RangeCommit:
        """Rolls out a range, writes it, and commits it; one that is finished is left as it is.

        Raises:
          NotVerifiedError: a propensity is not that of the stored action, or other steps were recorded than planned.
        """
        output, directory = self.dataset, self.dataset.directory
        done = commits.read_commit(directory, work, (output.file(work),), self.plan)
        if done is not None:
            return done
        report = Report()
        with ShardWriter(storage.below(directory, output.file(work))) as shard:
            writer = _Writer(self, work, shard, report)
            given = roll_out(
                self.make, writer.policy, self.settings, work.addresses, self.metadata, envlogger=self.envlogger
            )
            for recording in given:
                writer.write(recording)
            writer.flush()
            writer.check()
            info = shard.commit()
        report.items_predicted, report.items_written, report.bytes_written = writer.predicted, info.records, info.bytes
        return commits.commit_range(
            directory, work, [WrittenFile(output.file(work), info, writer.predicted)], rejected=None, report=report,
            plan=self.plan,
        )  # fmt: skip


class _Writer:
    """Checks and writes what was recorded of a range."""

    def __init__(self, recorder: RangeRecorder, work: RolloutRange, shard: ShardWriter, report: Report):
        self._recorder, self._work, self._shard, self._report = recorder, work, shard, report
        environment = recorder.make()
        self._observation, self._action = environment.observation, environment.action
        environment.close()
        self.policies = load_policies(recorder.policies)
        for policy in self.policies:
            policy.bind(self._observation, self._action)
        self._held: list[Recording] = []
        self._steps_held = self._bytes = self._transitions = self._trajectories = self._parts = 0

    @property
    def policy(self) -> BehaviorPolicy:
        return self.policies[self._work.policy]

    @property
    def predicted(self) -> int:
        """Records: one for each trajectory, and one more for each end of an episode within a window."""
        return self._work.count + self._parts

    def write(self, recording: Recording) -> None:
        """Takes a recording; some are checked and written together, so that the policies are called less often."""
        self._held.append(recording)
        self._steps_held += len(recording.columns["reward"]) - 1
        if self._steps_held >= _TOGETHER:
            self.flush()

    def flush(self) -> None:
        """Checks and writes what was taken."""
        held, work, policy, dataset = self._held, self._work, self.policy, self._recorder.dataset
        self._held, self._steps_held = [], 0
        if not held:
            return
        names = [f"{policy.name}/{work.dataset}/{r.trajectory}" + (f".{r.part}" if r.part else "") for r in held]
        episodes = [recording.columns for recording in held]
        steps = together(self._observation, self._action, episodes, [recording.state for recording in held])
        check_propensities(policy, steps, names)
        if dataset.mixture:
            add_mixture(self.policies, steps, episodes)
        for recording, name in zip(held, names, strict=True):
            key = EpisodeKey(dataset.dataset, work.split, work.index, self._bytes)
            metadata = dataset.episode_metadata(name, policy.name, work, recording)
            self._write(dataset.episode(key, recording.columns, metadata))
            self._trajectories += not recording.part
            self._parts += bool(recording.part)
            self._transitions += len(recording.columns["reward"]) - 1

    def _write(self, episode: Episode) -> None:
        payload = self._recorder.dataset.encode(episode)
        record = frame(payload)
        self._shard.write([record], 1, episode.key)
        self._bytes += len(record)
        report = self._report
        report.records += 1
        report.valid += 1
        report.episodes += 1
        report.steps += len(episode)
        report.bytes += len(payload)
        worker_status.count(records=1, bytes=len(payload), steps=len(episode))

    def check(self) -> None:
        """Raises NotVerifiedError where the range does not hold what was planned."""
        settings, count = self._recorder.settings, self._work.count
        planned = count * (settings.step_per_trajectory or 0) if settings.windows else self._transitions
        if self._trajectories != count or self._transitions != planned:
            raise NotVerifiedError(
                f"{self._work}: {self._trajectories} trajectories of {self._transitions} steps were recorded where "
                f"{count} of {planned} were planned"
            )


@dataclasses.dataclass(frozen=True)
class RecordingCommitter:
    """Finishes the dataset when all of its ranges are. Pickles.

    Attributes:
      dataset: what is written.
      ranges: all of the plan.
      metadata: of the dataset.
      plan: `OutputPlan.digest` of the job.
    """

    dataset: RecordedDataset
    ranges: tuple[RolloutRange, ...]
    metadata: Mapping[str, Any]
    plan: str

    def commit(self) -> Report:
        """Checks all files, writes the report and the metadata, and the manifest last.

        Raises:
          NotVerifiedError: the files are not what was predicted.
        """
        directory = self.dataset.directory
        report = Report().merge(*commits.read_reports(directory, self.ranges))
        storage.write_text(storage.below(directory, REPORT), to_json(report.to_json()))
        manifest.commit_dataset(directory, self.dataset.name, self.ranges, self._complete, self.plan)
        return report

    def _complete(self, done: Sequence[RangeCommit]) -> dict[str, Any]:
        self.dataset.write_metadata(done, self.metadata)
        return {"metadata": dict(self.metadata)}
