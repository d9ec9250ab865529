"""What is recorded: the options."""

from __future__ import annotations

import dataclasses
from typing import Literal

from rlds_beam.errors import UsageError
from rlds_beam.options import Options, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class RolloutOptions(Options):
    """What is rolled out and recorded."""

    name: str | None = option(None, "name of the dataset (from OUTPUT if that is NAME/1.0.0, or from the environment)")
    env: str = option(
        "", "gymnasium:CartPole-v1, gym:NAME, dm_control:cheetah/run, or module:function that makes an environment",
        by_value=True, metavar="NAME",
    )  # fmt: skip
    env_config: str | None = option(None, "keyword arguments of the environment, as JSON", metavar="JSON")
    policy: tuple[str, ...] = option(
        (), "random; HEAD(module:function, argument=value); module:name; or a YAML file of these. If given several "
        "times, each policy records that many episodes",
        by_value=True, repeated=True, metavar="NAME"
    )  # fmt: skip
    episodes: int | None = option(None, "episodes to record of each policy, in each dataset", least=1)
    steps: int | None = option(
        None,
        "steps to record of each policy, in each dataset, in windows of --step_per_trajectory that may cross episodes",
        least=1,
    )
    step_per_trajectory: int | None = option(
        None,
        "with --episodes, the most steps of an episode; with --steps, the length of a window (10)",
        least=1,
    )
    max_episode_steps: int | None = option(None, "steps after which an episode is truncated", least=1)
    minimum_rollout_length: int = option(0, "with --steps, the fewest steps skipped before a window", least=0)
    maximum_rollout_length: int = option(
        100,
        "with --steps, fewer steps than this are skipped before a window",
        least=0,
    )
    single_interaction: bool = option(False, "start each window where the previous one ended")
    datasets: int = option(1, "independent datasets, each its own split", least=1)
    obtain_info: bool = option(False, "record the environment's info, as info/...")
    info_keys: tuple[str, ...] = option((), "info keys to record (all numbers and text)")
    record_unclipped_action: bool = option(
        False, "store actions as they were sampled; the environment is given them clipped to its bounds"
    )
    image_encoding: Literal["png", "raw"] = option("png", "how uint8 observations [H, W, 1, 3 or 4] are recorded")
    reward_dtype: Literal["float32", "float64"] = option("float32", "dtype of the recorded reward")
    seed: int = option(0, "seeds the environments and the policies: equal options give equal bytes", least=0)
    envs_per_worker: int = option(
        16, "environments that a worker steps together, in one batch of observations", least=1
    )
    logger: Literal["auto", "envlogger", "own"] = option(
        "auto", "EnvLogger if it is installed, or our own logger; the bytes are the same"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.env:
            raise UsageError("--env names the environment: --env=gymnasium:CartPole-v1")
        if (self.episodes is None) == (self.steps is None):
            raise UsageError("one of --episodes=N and --steps=N says how much is recorded")
        if not self.minimum_rollout_length <= self.maximum_rollout_length:
            raise UsageError(
                f"--minimum_rollout_length={self.minimum_rollout_length} and --maximum_rollout_length="
                f"{self.maximum_rollout_length}: the minimum must not be above the maximum"
            )
        if self.info_keys and not self.obtain_info:
            raise UsageError("--info_keys goes with --obtain_info")
        self._check_windows()

    def _check_windows(self) -> None:
        if self.steps is None:
            for name in ("single_interaction", "minimum_rollout_length"):
                if getattr(self, name):
                    raise UsageError(
                        f"--{name} is for --steps=N, and --episodes={self.episodes} records whole episodes"
                    )
        elif self.steps % (self.window or 1):
            raise UsageError(f"--steps={self.steps}: expected a multiple of --step_per_trajectory={self.window}")

    @property
    def window(self) -> int | None:
        """Steps of a trajectory: of a window, or the most of an episode."""
        return 10 if self.steps is not None and self.step_per_trajectory is None else self.step_per_trajectory

    @property
    def trajectories(self) -> int:
        """Of each policy, in each dataset."""
        return self.episodes if self.episodes is not None else (self.steps or 0) // (self.window or 1)
