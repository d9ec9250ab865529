"""A recording as a source: its shards, each of which is rolled out when it is read."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import platform
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlds_beam._version import __version__
from rlds_beam.encoding.metadata import encode
from rlds_beam.encoding.tfds.dataset_info import FEATURES, TfdsMetadata
from rlds_beam.encoding.tfds.features import parse_features
from rlds_beam.encoding.tfds.rlds_dataset import features_json
from rlds_beam.episodes.schema import Schema
from rlds_beam.errors import UsageError
from rlds_beam.output.commits import VERSION
from rlds_beam.reading.base import Details, Shard, Source, Split
from rlds_beam.reading.meaning import Meaning
from rlds_beam.recording.environments import KINDS, Environment, make_environment, observed_dtypes
from rlds_beam.recording.options import RolloutOptions
from rlds_beam.recording.policies import BehaviorPolicy, HistoryPolicy, Random
from rlds_beam.recording.policy_loader import load_policies, read_version
from rlds_beam.recording.rollout import RolloutSettings, info_fields
from rlds_beam.recording.rollouts import RecordedDecoder, Rollout, RolloutFormat, plan_rollouts, recorded_schema
from rlds_beam.user_functions import ByValue, find_version

METADATA = "metadata.json"

_ROLLOUT_BYTES = 100_000
"""A rollout takes about as long as a job on so many bytes of input."""


@dataclasses.dataclass(frozen=True)
class RecordedSource(Source):
    """Behavior policies in an environment as a source of RLDS: nothing is stored until an output writes it.

    Attributes:
      dataset, schema, files, decoder, splits, details, meaning: as in `Source`.
      functions: the versions of the user's code, by option.
      images: the encoding of images.
    """

    dataset: str
    schema: Schema
    files: RolloutFormat
    decoder: RecordedDecoder
    splits: tuple[Split, ...]
    functions: Mapping[str, Any]
    images: str
    meaning: Meaning
    details: Details

    @classmethod
    def open(cls, input: str | Sequence[str], *, split: str | None = None, features: str | None = None) -> Source:
        raise UsageError("a recording has no files to open: use rlds-beam record")

    def plan(self) -> dict[str, Any]:
        record = {**self.files.metadata, "given": list(self.files.policies), "images": self.images}
        settings = dataclasses.asdict(self.files.settings)
        return {"record": record, "settings": settings, "functions": dict(self.functions)}


def open_recording(options: RolloutOptions) -> RecordedSource:
    """Creates an environment and the policies, and checks everything before a rollout.

    Args:
      options: the options of the rollout.

    Raises:
      UsageError: the environment, the policies, or the options cannot be used.
    """
    config = _config(options)
    environment = make_environment(options.env, config)
    policies = load_policies(options.policy)
    try:
        settings = _settings(options, environment, policies)
    finally:
        environment.close()
    propensity, mixture = _propensity(policies), len(policies) > 1
    recorded = recorded_schema(
        environment.observation,
        environment.action,
        settings,
        propensity=propensity,
        mixture=mixture,
        images=options.image_encoding == "png",
    )
    features = encode(features_json(recorded))
    schema = Meaning(names=recorded.names).name(parse_features(features, FEATURES))
    if options.single_interaction and options.shards not in (None, 1):
        raise UsageError(f"--shards={options.shards}: --single_interaction writes one file per policy and dataset")
    shards = 1 if options.single_interaction else options.shards
    planned = plan_rollouts(len(policies), options.datasets, options.trajectories, shards)
    paths = {split: [_path(split, rollout, policies) for rollout in rollouts] for split, rollouts in planned.items()}
    rollouts = {path: rollout for split in planned for path, rollout in zip(paths[split], planned[split], strict=True)}
    metadata = _metadata(options, config, policies)
    files = RolloutFormat(
        options.env, config, options.policy, settings, schema, mixture and propensity, metadata, rollouts
    )

    def make_shard(index: int, path: str) -> Shard:
        number = rollouts[path].count
        records = None if settings.windows else number  # windows may be cut into several episodes
        return Shard(index, path, number * _ROLLOUT_BYTES, records, is_file=False)

    splits = tuple(Split(split, tuple(make_shard(i, path) for i, path in enumerate(paths[split]))) for split in planned)
    described = {"description": f"Recorded in {options.env} by rlds-beam."}
    tfds = TfdsMetadata(features, described, {METADATA: encode(metadata).encode()})
    by_name = options.env.partition(":")[0] in KINDS or isinstance(options.env, ByValue)
    functions = {} if by_name else {"--env": find_version(options.env, "--env")}
    return RecordedSource(
        f"{_name(options)}/{VERSION}",
        schema,
        files,
        RecordedDecoder(),
        splits,
        {**functions, "--policy": {str(name): read_version(name) for name in options.policy}},
        options.image_encoding,
        Meaning(environment.fps, last_action="void"),
        Details(tfds=tfds),
    )


def _path(split: str, rollout: Rollout, policies: Sequence[BehaviorPolicy]) -> str:
    """The name of a shard in plans and messages."""
    last = rollout.first + rollout.count - 1
    return f"{split}: trajectories {rollout.first} to {last} of {policies[rollout.policy].name}"


def _config(options: RolloutOptions) -> dict[str, Any]:
    if options.env_config is None:
        return {}
    try:
        config = json.loads(options.env_config)
    except ValueError as error:
        raise UsageError(f"--env_config={options.env_config}: not valid JSON: {error}") from error
    if not isinstance(config, dict):
        raise UsageError(f'--env_config={options.env_config}: expected a JSON object, for example {{"size": 4}}')
    return config


def _settings(options: RolloutOptions, environment: Environment, policies: Sequence[BehaviorPolicy]) -> RolloutSettings:
    environment.observation = environment.observation.with_dtypes(observed_dtypes(environment))
    for policy in policies:
        policy.bind(environment.observation, environment.action)
    windows = options.steps is not None
    for policy in policies:
        if windows and isinstance(policy, HistoryPolicy):
            raise UsageError(f"{policy.name} needs whole episodes, but --steps records windows: use --episodes")
        if windows and len(policies) > 1 and policy.initial_state() is not None:
            raise UsageError(
                f"{policy.name} has a state, which is unknown at the start of the other policies' windows, so the "
                "mixture's propensity is unknown: record this policy separately, or use --episodes"
            )
    limits = (options.step_per_trajectory, options.max_episode_steps, environment.most_steps)
    if not windows and limits == (None, None, None) and not environment.ends:
        raise UsageError(
            f"--env={options.env} has no limit of steps per episode: add --max_episode_steps or --step_per_trajectory"
        )
    return RolloutSettings(
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


def _info(options: RolloutOptions, environment: Environment) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The fields of the environment's info, from its first step."""
    environment.reset(0)
    anything = Random()
    anything.bind(environment.observation, environment.action)
    uniform, normal = anything.randomness
    action = anything.distribution(None).sample(np.full((1, uniform), 0.5), np.zeros((1, normal)))
    leaves = [a.astype(leaf.dtype)[0] for leaf, a in zip(environment.action.leaves, action, strict=True)]
    info = environment.step(environment.action.build(leaves)).info
    fields = info_fields(info, options.info_keys)
    for key in options.info_keys:
        if key not in fields:
            raise UsageError(
                f"--info_keys={key}: a step's info has no such number or text; it has {', '.join(info) or 'nothing'}"
            )
    return fields


def _propensity(policies: Sequence[BehaviorPolicy]) -> bool:
    known = {policy.has_propensity for policy in policies}
    if len(known) > 1:
        without = ", ".join(policy.name for policy in policies if not policy.has_propensity)
        raise UsageError(
            f"the propensities of {without} are unknown, unlike those of the other policies: record it separately"
        )
    return known.pop()


def _name(options: RolloutOptions) -> str:
    """A name that TFDS accepts: lowercase letters, digits, and underscores."""
    name = options.name or re.sub(r"\W+", "_", options.env.partition(":")[2].partition("#")[0]).strip("_").lower()
    name = name if name[:1].isalpha() else f"recorded_{name}".rstrip("_")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise UsageError(f"--name={name}: expected lowercase letters, digits, and underscores, starting with a letter")
    return name


def _metadata(options: RolloutOptions, config: Mapping[str, Any], policies: Sequence[BehaviorPolicy]) -> dict[str, Any]:
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
