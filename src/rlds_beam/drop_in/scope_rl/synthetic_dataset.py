"""SCOPE-RL's `SyntheticDataset`, implemented with rlds-beam's recordings."""

from __future__ import annotations

import dataclasses
import secrets
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlds_beam.checking.rules import POLICIES
from rlds_beam.drop_in.scope_rl.logged_dataset import LoggedDataset, MultipleLoggedDataset
from rlds_beam.errors import UsageError
from rlds_beam.jobs.convert import prepare
from rlds_beam.recording.environments import as_environment
from rlds_beam.recording.policy_loader import as_policy
from rlds_beam.recording.record_options import RecordOptions
from rlds_beam.user_functions import by_value

DEFAULT_PATH = "logged_dataset/"
PER_FILE = 1000
"""The most trajectories per file."""
ENVIRONMENTS = 64
"""The number of environment copies that run side by side: a torch policy takes as long for 64 states as for one."""


@dataclasses.dataclass
class SyntheticDataset:
    """Rolls out behavior policies in an environment, like SCOPE-RL's class of the same name.

        dataset = SyntheticDataset(env=env, max_episode_steps=200, state_keys=["x", "v"])
        logged_dataset = dataset.obtain_episodes(policy, n_trajectories=100, random_state=12345)
        logged_dataset["pscore"]

    Attributes:
      env: a gymnasium, gym, or dm_env environment; copies of it run, and it does not change.
      max_episode_steps: the most steps per episode; by default the environment's limit.
      action_meaning: discrete action -> its meaning.
      action_keys: the names of the dimensions of a continuous action.
      state_keys: the names of the dimensions of a state.
      info_keys: info key to record -> its type: int, float, or another.
    """

    env: Any
    max_episode_steps: int | None = None
    action_meaning: Any = None
    action_keys: Sequence[str] | None = None
    state_keys: Sequence[str] | None = None
    info_keys: Mapping[str, type] | None = None

    def __post_init__(self) -> None:
        environment = as_environment(self.env, type(self.env).__name__)
        state, action = environment.observation.alone, environment.action.alone
        if state is None or state.kind == "text" or not state.shape:
            raise UsageError(
                "a logged dataset needs observations that are a single array; record others with rlds-beam record"
            )
        if action is None or action.kind not in ("discrete", "box"):
            raise UsageError("a logged dataset needs actions that are a number or an array of numbers")
        if self.max_episode_steps is None:
            self.max_episode_steps = environment.most_steps
        if self.max_episode_steps is None:
            raise UsageError("the environment has no limit of steps per episode: give max_episode_steps")
        if self.max_episode_steps < 1:
            raise UsageError(f"max_episode_steps={self.max_episode_steps}: expected 1 or more")
        self.action_type = "discrete" if action.kind == "discrete" else "continuous"
        self.n_actions = action.choices if action.kind == "discrete" else None
        self.action_dim = None if action.kind == "discrete" else int(np.prod(action.shape, dtype=int))
        self.state_dim = state.shape[0]

    def obtain_episodes(
        self,
        behavior_policies: Any,
        n_datasets: int = 1,
        n_trajectories: int = 10000,
        step_per_trajectory: int | None = None,
        obtain_info: bool = False,
        record_unclipped_action: bool = False,
        path: str = DEFAULT_PATH,
        save_relative_path: bool = False,
        random_state: int | None = None,
    ) -> LoggedDataset | MultipleLoggedDataset:
        """Records episodes of one or several policies.

        Args:
          behavior_policies: a head of rlds-beam or SCOPE-RL, or a list of them.
          n_datasets: the number of independent datasets per policy. For more than one, or for a list of policies, the
            result is a `MultipleLoggedDataset`.
          n_trajectories: the number of episodes in each dataset.
          step_per_trajectory: the most steps per episode; by default `max_episode_steps`.
          obtain_info: whether to record the `info_keys`.
          record_unclipped_action: whether to store continuous actions before clipping.
          path: the path of the RLDS dataset, which replaces an earlier recording there. By default, for a single
            dataset, a temporary directory that is removed with the result.
          save_relative_path: ignored; the path is kept as given.
          random_state: the seed; None for a random one.

        Raises:
          UsageError: an argument is invalid.
        """
        del save_relative_path
        steps = self.max_episode_steps if step_per_trajectory is None else step_per_trajectory
        return self._obtain(
            behavior_policies,
            n_datasets,
            path,
            random_state,
            obtain_info,
            windows=False,
            trajectories=n_trajectories,
            step_per_trajectory=steps,
            options={"episodes": n_trajectories, "record_unclipped_action": record_unclipped_action},
        )

    def obtain_steps(
        self,
        behavior_policies: Any,
        n_datasets: int = 1,
        n_trajectories: int = 10000,
        step_per_trajectory: int = 10,
        minimum_rollout_length: int = 0,
        maximum_rollout_length: int = 100,
        obtain_info: bool = False,
        obtain_trajectories_from_single_interaction: bool = False,
        record_unclipped_action: bool = False,
        path: str = DEFAULT_PATH,
        save_relative_path: bool = False,
        random_state: int | None = None,
    ) -> LoggedDataset | MultipleLoggedDataset:
        """Records windows of `step_per_trajectory` steps, which continue across episode boundaries.

        Before each window, the policy runs for a random number of steps, at least `minimum_rollout_length` and below
        `maximum_rollout_length`, also across episode boundaries.

        Args:
          step_per_trajectory: the number of steps per window.
          minimum_rollout_length, maximum_rollout_length: the range of the number of steps before a window.
          obtain_trajectories_from_single_interaction: whether each window resumes at the end of the one before.

          For the others, see `obtain_episodes`.

        Raises:
          UsageError: an argument is invalid.
        """
        del save_relative_path
        single = obtain_trajectories_from_single_interaction
        return self._obtain(
            behavior_policies,
            n_datasets,
            path,
            random_state,
            obtain_info,
            windows=True,
            trajectories=n_trajectories,
            step_per_trajectory=step_per_trajectory,
            options={
                "steps": n_trajectories * step_per_trajectory,
                "minimum_rollout_length": 0 if single else minimum_rollout_length,
                "maximum_rollout_length": maximum_rollout_length,
                "single_interaction": single,
                "record_unclipped_action": record_unclipped_action,
            },
        )

    def _obtain(
        self,
        behavior_policies: Any,
        n_datasets: int,
        path: str,
        random_state: int | None,
        obtain_info: bool,
        *,
        windows: bool,
        trajectories: int,
        step_per_trajectory: int | None,
        options: Mapping[str, Any],
    ) -> LoggedDataset | MultipleLoggedDataset:
        several = isinstance(behavior_policies, (list, tuple))
        policies = [as_policy(p, repr(p)) for p in (behavior_policies if several else [behavior_policies])]
        owner, path = _directory(path, several or n_datasets > 1)
        info = dict(self.info_keys or {}) if obtain_info else {}
        job = prepare(
            RecordOptions.create(
                path,
                env=by_value("env", self.env),
                policy=tuple(by_value(policy.name, policy) for policy in policies),
                step_per_trajectory=step_per_trajectory,
                max_episode_steps=self.max_episode_steps,
                datasets=n_datasets,
                obtain_info=bool(info),
                info_keys=tuple(info),
                image_encoding="raw",
                shards=None if options.get("single_interaction") else -(-trajectories // PER_FILE),
                envs_per_worker=ENVIRONMENTS,
                reward_dtype="float64",
                seed=secrets.randbits(63) if random_state is None else random_state,
                overwrite=True,
                accept=tuple(rule for rule, policies in POLICIES.items() if "accept" in policies),
                **options,
            )
        )
        job.convert_here()
        described = [
            self._describe(policy.name, trajectories, step_per_trajectory, info, windows) for policy in policies
        ]
        if several or n_datasets > 1:
            return MultipleLoggedDataset(path, described, n_datasets, owner)
        return LoggedDataset(path, described[0], 0, 0, owner)

    def _describe(
        self, policy: str, trajectories: int, steps: int | None, info: Mapping[str, type], windows: bool
    ) -> dict[str, Any]:
        """The entries of a logged dataset besides its arrays."""
        discrete = self.action_type == "discrete"
        return {
            "n_trajectories": trajectories,
            "step_per_trajectory": steps,
            "action_type": self.action_type,
            "n_actions": self.n_actions,
            "action_dim": self.action_dim,
            "action_meaning": self.action_meaning if discrete else None,
            "action_keys": None if discrete else self.action_keys,
            "state_dim": self.state_dim,
            "state_keys": self.state_keys,
            "behavior_policy": policy,
            "info_keys": info,
            "windows": windows,
            "max_episode_steps": self.max_episode_steps,
        }


def _directory(path: str, several: bool) -> tuple[Any, str]:
    """The path of the dataset, and an object that keeps a temporary directory alive."""
    if several or path != DEFAULT_PATH:
        return None, path
    owner = tempfile.TemporaryDirectory(prefix="rlds-beam-")
    return owner, owner.name
