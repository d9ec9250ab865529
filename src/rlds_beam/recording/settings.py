"""What is recorded of a rollout: its settings, and what comes of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from rlds_beam.recording.states import State

Array: TypeAlias = "np.ndarray[Any, Any]"

PROPENSITY, LOG_PROPENSITY = "propensity", "log_propensity"
INFO = "info"


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is recorded of a rollout.

    Attributes:
      seed: of all random numbers.
      windows: whether a trajectory is a number of steps, whatever the environment does meanwhile (`obtain_steps`);
        otherwise it is an episode.
      step_per_trajectory: steps of a trajectory; of an episode the most, or None.
      minimum_rollout_length, maximum_rollout_length: of windows, the steps before: from the one to below the other.
      single_interaction: windows go on where the one before ended.
      max_episode_steps: after which an episode is cut off, besides the environment's own limit; None for none.
      record_unclipped_action: store actions as they were sampled; the environment is given them clipped.
      info: of the environment's info, the fields to record: name -> (dtype, shape).
      observed: dtypes of the leaves of an observation.
      reward: dtype of the reward.
      environments: that are rolled out side by side.
    """

    seed: int
    windows: bool = False
    step_per_trajectory: int | None = None
    minimum_rollout_length: int = 0
    maximum_rollout_length: int = 0
    single_interaction: bool = False
    max_episode_steps: int | None = None
    record_unclipped_action: bool = False
    info: Mapping[str, tuple[str, tuple[int, ...]]] = dataclasses.field(default_factory=dict)
    observed: tuple[str, ...] = ()
    reward: str = "float32"
    environments: int = 16


class RecordedEpisode(NamedTuple):
    """An episode that was recorded.

    Attributes:
      trajectory: number of its trajectory.
      part: of a window, which an end of the environment's episode cuts in parts: 0, 1, ...
      age: steps of the environment's episode before the first one that is recorded.
      end: `terminated`; `truncated` by the environment or `max_episode_steps`; `cut` where the recording ended first.
      columns: of its T steps.
      state: of the policy before its first action; None of a policy without one.
    """

    trajectory: int
    part: int
    age: int
    end: str
    columns: dict[str, Array]
    state: State | None = None


def info_fields(info: Mapping[str, Any], wanted: Sequence[str] = ()) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Of an environment's info, the fields that can be recorded: numbers, arrays of them, and text."""
    fields: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, value in info.items():
        if wanted and name not in wanted:
            continue
        if isinstance(value, str):
            fields[name] = ("string", ())
        elif (array := np.asarray(value)).dtype.kind in "biuf":
            wide = {"i": "int64", "u": "int64", "f": "float64", "b": "bool"}[array.dtype.kind]
            fields[name] = (wide if array.ndim == 0 else array.dtype.name, array.shape)
    return fields
