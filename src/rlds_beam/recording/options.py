"""Options of a recording; `--help` reads them without numpy."""

from __future__ import annotations

import dataclasses
from typing import Literal

from rlds_beam.errors import UsageError
from rlds_beam.options import Options, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class RolloutOptions(Options):
    """Rollouts and recording."""

    env: str = option("", "gymnasium:CartPole-v1, gym:NAME, dm_control:cheetah/run, or module:function", by_value=True)
    env_config: str | None = option(None, "keyword arguments for the environment, as JSON", metavar="JSON")
    policy: tuple[str, ...] = option(
        (), "random, HEAD(module:function, argument=value), or module:name; repeat it", by_value=True, repeated=True
    )
    episodes: int | None = option(None, "episodes to record per policy and dataset", least=1)
    steps: int | None = option(None, "steps to record per policy and dataset, in windows", least=1)
    step_per_trajectory: int | None = option(None, "most steps of an episode, or those of a window (10)", least=1)
    max_episode_steps: int | None = option(None, "truncate episodes after this many steps", least=1)
    minimum_rollout_length: int = option(0, "minimum number of steps to skip before a window", least=0, needs="steps")
    maximum_rollout_length: int = option(100, "skip fewer steps than this before a window (with --steps)", least=0)
    single_interaction: bool = option(False, "start each window where the previous one ended", needs="steps")
    datasets: int = option(1, "number of independent datasets, one split each", least=1)
    obtain_info: bool = option(False, "record the environment's info as info/...")
    info_keys: tuple[str, ...] = option((), "info keys to record (default: all numbers and text)", needs="obtain_info")
    record_unclipped_action: bool = option(False, "store actions as sampled; the environment still gets them clipped")
    image_encoding: Literal["png", "raw"] = option("png", "encoding of uint8 observations of shape [H, W, 1, 3 or 4]")
    reward_dtype: Literal["float32", "float64"] = option("float32", "dtype of the recorded reward")
    seed: int = option(0, "seed of the environments and policies; the same options give the same bytes", least=0)
    envs_per_worker: int = option(16, "environments that a worker steps together, as one batch", least=1)
    name: str | None = option(None, "dataset name (default: that of OUTPUT if it ends in NAME/1.0.0, else of --env)")
    shards: int | None = option(None, "output files per policy and dataset (default: by size)", least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.env:
            raise UsageError("--env is missing: name an environment, for example --env=gymnasium:CartPole-v1")
        if (self.episodes is None) == (self.steps is None):
            raise UsageError("give either --episodes=N or --steps=N: how much to record")
        if self.minimum_rollout_length > self.maximum_rollout_length:
            raise UsageError(f"--minimum_rollout_length={self.minimum_rollout_length}: above --maximum_rollout_length")
        if self.steps is not None and self.steps % (self.window or 1):
            raise UsageError(f"--steps={self.steps}: expected a multiple of --step_per_trajectory={self.window}")

    @property
    def window(self) -> int | None:
        """The number of steps of a window, or the maximum of an episode."""
        return 10 if self.steps is not None and self.step_per_trajectory is None else self.step_per_trajectory

    @property
    def trajectories(self) -> int:
        """The number of trajectories per policy and dataset."""
        return self.episodes if self.episodes is not None else (self.steps or 0) // (self.window or 1)
