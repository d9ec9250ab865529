"""A recording, prepared: everything that can be known and checked before the first episode is rolled out."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rlds_beam import __version__, storage
from rlds_beam.checking.report import Report
from rlds_beam.encoding.checked_json import parsing, read_json
from rlds_beam.errors import DiskError, UsageError
from rlds_beam.output import directory
from rlds_beam.output.commits import read_commits
from rlds_beam.output.files import COMMITS, REPORT, listdir
from rlds_beam.output.lock import locked
from rlds_beam.output.plans import OUTPUT_FORMAT, OutputPlan
from rlds_beam.recording.dataset import RecordedDataset, recorded_schema
from rlds_beam.recording.environments import KINDS, Environment, make_environment, observed_dtypes
from rlds_beam.recording.loading import load_policies, versions_of
from rlds_beam.recording.logger import has_envlogger
from rlds_beam.recording.options import RecordOptions
from rlds_beam.recording.policies import BehaviorPolicy, HistoryPolicy, Random
from rlds_beam.recording.ranges import RangeRecorder, RecordingCommitter, RolloutRange, plan_rollouts
from rlds_beam.recording.settings import Settings, info_fields
from rlds_beam.user_functions import ByValue, version_of
from rlds_beam.worker_status import Done

_SECONDS_A_STEP = 60e-6
"""About what a step takes: of CartPole with a small network. Only the order of magnitude counts (`jobs.cost`)."""

_STEPS_A_TRAJECTORY = 100
"""Of one whose length is not known."""


@dataclasses.dataclass(frozen=True)
class RecordJob:
    """The work of a recording, and what of it is finished.

    Attributes:
      recorder: records a range.
      ranges: all of the plan.
      plan: what the output's bytes depend on, and its files.
      policies: the names of the policies.
      most_steps: of a trajectory; None where that is not known.
    """

    recorder: RangeRecorder
    ranges: tuple[RolloutRange, ...]
    plan: OutputPlan
    policies: tuple[str, ...]
    most_steps: int | None

    @property
    def directory(self) -> str:
        """Where the output goes."""
        return self.recorder.dataset.directory

    @property
    def committer(self) -> RecordingCommitter:
        """Finishes the dataset."""
        return RecordingCommitter(self.recorder.dataset, self.ranges, self.recorder.metadata, self.plan.digest)

    def status(self, overwrite: bool = False) -> tuple[list[RolloutRange], bool]:
        """The ranges that are still to do, and whether the dataset is finished; writes nothing.

        Raises:
          UsageError: the output holds something else.
        """
        finished = directory.status(self.directory, self.plan, overwrite=overwrite)
        return [work for work in self.ranges if str(work) not in finished.ranges], finished.complete

    def make_ready(self, overwrite: bool = False) -> None:
        """Makes the output ready to be written to, after a `status`.

        Raises:
          UsageError: it cannot be written to.
        """
        try:
            directory.make_ready(self.directory, self.plan, overwrite=overwrite)
        except OSError as error:
            disk = DiskError.of(error.errno or 0, self.directory)
            raise UsageError(str(disk or f"{self.directory} cannot be written to: {error}")) from error

    def open(self, overwrite: bool = False) -> list[RolloutRange]:
        """Makes the output ready; the ranges that are still to do."""
        pending, complete = self.status(overwrite)
        if not complete:
            self.make_ready(overwrite)
        return pending

    @property
    def trajectories(self) -> int:
        """Of each policy, in each dataset."""
        return sum(work.count for work in self.ranges if (work.policy, work.dataset) == (0, 0))

    def record_here(self, overwrite: bool = False) -> Report:
        """Records all that is to do in this process, one range after the other, without Beam."""
        with locked(self.directory):
            for work in self.open(overwrite):
                self.recorder.record(work)
            return self.committer.commit()

    def seconds(self, pending: Sequence[RolloutRange]) -> float:
        """About as long one core takes for these ranges."""
        steps = min(self.most_steps or _STEPS_A_TRAJECTORY, 10 * _STEPS_A_TRAJECTORY)
        return sum(work.count for work in pending) * steps * _SECONDS_A_STEP

    def committed_since(self, before: int) -> Callable[[], Done]:
        """Finds out how many ranges were finished since; for runners that do not know."""
        path = storage.join(self.directory, COMMITS)
        return lambda: Done(ranges=max(0, sum(name.endswith(".json") for name in listdir(path)) - before))

    def progress(self, noun: str = "ranges") -> str:
        """How much of the work is done, for a person; reads all commits."""
        return f"{len(read_commits(self.directory))} of {len(self.ranges)} {noun} are finished"

    def to_json(self) -> dict[str, Any]:
        """The plan, for programs."""
        schema = self.recorder.dataset.schema
        return {
            "environment": str(self.recorder.environment),
            "policies": list(self.policies),
            "output": self.directory,
            "trajectories": sum(work.count for work in self.ranges),
            "output_shards": len(self.ranges),
            "steps": [str(field) for field in schema.steps.values()],
            "episode": [str(field) for field in schema.metadata.values()],
        }

    def read_report(self) -> Report:
        """The report of the finished job."""
        path = storage.join(self.directory, REPORT)
        with parsing(path):
            return Report.from_json(read_json(path))


def prepare(options: RecordOptions) -> RecordJob:
    """Makes an environment and the policies, plans the work, and checks all that can be checked; writes nothing.

    Raises:
      UsageError: the environment, the policies, the options or the output cannot be used as they are.
    """
    config = _config(options)
    environment = make_environment(options.env, config)
    policies = load_policies(options.policy)
    try:
        settings = _settings(options, environment, policies)
    finally:
        environment.close()
    propensity, mixture = _propensity(policies), len(policies) > 1
    schema = recorded_schema(
        environment.observation, environment.action, settings,
        propensity=propensity, mixture=mixture, images=options.images == "png",
    )  # fmt: skip
    dataset = RecordedDataset(options.output, _name(options), schema, mixture and propensity, windows=settings.windows)
    ranges = plan_rollouts(len(policies), options.datasets, options.trajectories, _shards(options))
    metadata = _metadata(options, config, policies)
    plan = OutputPlan.of(
        _content(options, settings, dataset, ranges, metadata), [*map(dataset.file, ranges), *dataset.metadata]
    )
    directory.check_output(options.output, plan, overwrite=options.overwrite)
    logged = _envlogger(options)
    recorder = RangeRecorder(options.env, config, options.policy, settings, dataset, metadata, logged, plan.digest)
    most = settings.step_per_trajectory or settings.max_episode_steps or environment.most_steps
    return RecordJob(recorder, ranges, plan, tuple(policy.name for policy in policies), most)


def _config(options: RecordOptions) -> dict[str, Any]:
    if options.env_config is None:
        return {}
    try:
        config = json.loads(options.env_config)
    except ValueError as error:
        raise UsageError(f"--env_config={options.env_config}: it is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise UsageError(f'--env_config={options.env_config}: expected an object, like {{"size": 4}}')
    return config


def _settings(options: RecordOptions, environment: Environment, policies: Sequence[BehaviorPolicy]) -> Settings:
    environment.observation = environment.observation.with_dtypes(observed_dtypes(environment))
    for policy in policies:
        policy.bind(environment.observation, environment.action)
    windows = options.steps is not None
    for policy in policies:
        if windows and isinstance(policy, HistoryPolicy):
            raise UsageError(f"{policy.name} looks at whole episodes, and --steps records windows: use --episodes")
        if windows and len(policies) > 1 and policy.initial_state() is not None:
            raise UsageError(
                f"{policy.name} has a state, which it would not have seen begin in the windows of the other policies, "
                "so the mixture's propensity is not known: record --steps of it on its own, or --episodes"
            )
    limits = (options.step_per_trajectory, options.max_episode_steps, environment.most_steps)
    if not windows and limits == (None, None, None) and not environment.ends:
        raise UsageError(
            f"--env={options.env} does not say after how many steps an episode ends at the latest: give "
            "--step_per_trajectory or --max_episode_steps"
        )
    return Settings(
        seed=options.seed,
        windows=windows,
        step_per_trajectory=options.window,
        minimum_rollout_length=options.minimum_rollout_length if windows else 0,
        maximum_rollout_length=options.maximum_rollout_length if windows else 0,
        single_interaction=options.single_interaction,
        max_episode_steps=options.max_episode_steps,
        record_unclipped_action=options.record_unclipped_action,
        info=_info(options, environment) if options.obtain_info else {},
        observed=tuple(leaf.dtype for leaf in environment.observation.leaves),
        reward=options.reward_dtype,
        environments=options.envs_per_worker,
    )


def _info(options: RecordOptions, environment: Environment) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The fields of the environment's info, as its first step gives them."""
    environment.reset(0)
    anything = Random()
    anything.bind(environment.observation, environment.action)
    uniform, normal = anything.randomness
    action = anything.distribution(None).sample(np.full((1, uniform), 0.5), np.zeros((1, normal)))
    leaves = [a.astype(leaf.dtype)[0] for leaf, a in zip(environment.action.leaves, action, strict=True)]
    info = environment.step(environment.action.build(leaves)).info
    found = info_fields(info, options.info_keys)
    for key in options.info_keys:
        if key not in found:
            raise UsageError(
                f"--info_keys={key}: a step's info has no such number or text; it has {', '.join(info) or 'nothing'}"
            )
    return found


def _propensity(policies: Sequence[BehaviorPolicy]) -> bool:
    known = {policy.has_propensity for policy in policies}
    if len(known) > 1:
        without = ", ".join(policy.name for policy in policies if not policy.has_propensity)
        raise UsageError(f"no propensity is known of {without}, and it is of the other policies: record it on its own")
    return known.pop()


def _shards(options: RecordOptions) -> int | None:
    if not options.single_interaction:
        return options.shards
    if options.shards not in (None, 1):
        raise UsageError(f"--shards={options.shards}: a single interaction is one file for each policy and dataset")
    return 1


def _name(options: RecordOptions) -> str:
    """A name that TFDS takes: letters, digits and underscores, in lower case."""
    name = options.name or re.sub(r"\W+", "_", options.env.partition(":")[2].partition("#")[0]).strip("_").lower()
    name = name if name[:1].isalpha() else f"recorded_{name}".rstrip("_")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise UsageError(f"--name={name}: a name is of small letters, digits and underscores")
    return name


def _envlogger(options: RecordOptions) -> bool:
    if options.logger == "own":
        return False
    if options.logger == "envlogger" and not has_envlogger():
        raise UsageError("--logger=envlogger: pip install 'rlds-beam[envlogger]', on Python 3.10 or 3.11")
    return has_envlogger()


def _metadata(options: RecordOptions, config: Mapping[str, Any], policies: Sequence[BehaviorPolicy]) -> dict[str, Any]:
    kind = options.env.partition(":")[0]
    packages = {"gymnasium": ("gymnasium",), "gym": ("gym",), "dm_control": ("dm_control", "mujoco")}.get(kind, ())
    versions = {"rlds-beam": __version__, "python": platform.python_version(), "numpy": np.__version__}
    return {
        "environment": str(options.env),
        "environment_config": dict(config),
        "policies": [policy.name for policy in policies],
        "seed": options.seed,
        "versions": {**versions, **{name: importlib.metadata.version(name) for name in packages}},
    }


def _content(
    options: RecordOptions,
    settings: Settings,
    dataset: RecordedDataset,
    ranges: Sequence[RolloutRange],
    metadata: Mapping[str, Any],
) -> dict[str, Any]:
    """What the bytes depend on. Equal plans make equal bytes."""
    by_name = options.env.partition(":")[0] in KINDS or isinstance(options.env, ByValue)
    functions = {} if by_name else {"--env": version_of(options.env, "--env")}
    return {
        "format": OUTPUT_FORMAT,
        "to": "rlds",
        "dataset": dataset.dataset,
        "record": {**metadata, "policies": list(options.policy), "images": options.images},
        "settings": dataclasses.asdict(settings),
        "ranges": {str(work): work.to_json() for work in ranges},
        "functions": {**functions, "--policy": versions_of(options.policy)},
    }
