"""The settings of a rollout, and the episodes that it records."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlds_beam.recording.states import State
from rlds_beam.typing import Array

PROPENSITY, LOG_PROPENSITY = "propensity", "log_propensity"
INFO = "info"


@dataclasses.dataclass(frozen=True)
class RolloutSettings:
    """The settings of a rollout.

    Attributes:
      seed: the seed of all random numbers.
      windows: whether a trajectory has a fixed number of steps, across episode boundaries (`obtain_steps`); otherwise
        it is an episode.
      step_per_trajectory: the steps of a window, or the maximum steps of an episode; None for no maximum.
      minimum_rollout_length, maximum_rollout_length: the range of the number of steps skipped before a window; the
        maximum is exclusive.
      single_interaction: whether each window starts where the previous one ended.
      max_episode_steps: truncates episodes after this many steps, in addition to the environment's limit; None never.
      record_unclipped_action: stores actions as sampled; the environment still receives them clipped.
      info: the fields of the environment's info to record: name -> (dtype, shape).
      observed: the dtypes of the leaves of an observation.
      reward: the dtype of the reward.
      environments: the number of environments stepped together.
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
    """A recorded episode.

    Attributes:
      trajectory: the number of its trajectory.
      part: the part of the window, which the ends of the environment's episodes cut into parts: 0, 1, ...
      age: the steps of the environment's episode before the first recorded one.
      end: `terminated`; `truncated` by the environment or `max_episode_steps`; `cut` if the recording ended first.
      columns: the columns of its T steps.
      state: the policy's state before the first action; None for a policy without a state.
    """

    trajectory: int
    part: int
    age: int
    end: str
    columns: dict[str, Array]
    state: State | None = None


def info_fields(info: Mapping[str, Any], wanted: Sequence[str] = ()) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The fields of an environment's info that can be recorded: numbers, arrays of numbers, and text."""
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
