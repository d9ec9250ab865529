"""Maps step fields to the parts of a transition."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from rlds_beam.episodes.columns import all_below, below
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.errors import UsageError
from rlds_beam.text import did_you_mean

OUTPUT_SPLIT = "output_split"
"""The episode field that names the output split (`SplitEpisodes`); it is not written."""

IMPORTANCE_RATIO = "importance_ratio"
STEP_WISE_WEIGHT = "step_wise_importance_weight"
TRAJECTORY_WISE_WEIGHT = "trajectory_wise_importance_weight"

EXTRAS = (
    "action_logp",
    "action_dist_inputs",
    "vf_preds",
    "advantages",
    "value_targets",
    "weights",
    "n_step",
    "propensity",
    "target_propensity",
    IMPORTANCE_RATIO,
    STEP_WISE_WEIGHT,
    TRAJECTORY_WISE_WEIGHT,
    *(f"log_{name}" for name in (IMPORTANCE_RATIO, STEP_WISE_WEIGHT, TRAJECTORY_WISE_WEIGHT)),
    f"self_normalized_{STEP_WISE_WEIGHT}",
    f"self_normalized_{TRAJECTORY_WISE_WEIGHT}",
)
"""Step fields that are outputs of the behavior policy's model, if they were recorded."""


@dataclasses.dataclass(frozen=True)
class StepFields:
    """The step field of each role. A name is a leaf (`action`) or covers everything below it (`observation/...`).

    Attributes:
      obs, actions, rewards, infos: the fields of the environment.
      state_in, state_out: the state of a recurrent model before and after the step (`state_out/h`).
      extras: other model outputs; each becomes a column with the same name.
    """

    obs: str = "observation"
    actions: str = "action"
    rewards: str = "reward"
    infos: str = "info"
    state_in: str = "state_in"
    state_out: str = "state_out"
    extras: tuple[str, ...] = EXTRAS

    def __post_init__(self) -> None:
        object.__setattr__(self, "extras", tuple(self.extras))


def match_fields(known: Collection[str], name: str, connector: str, hint: str = "") -> list[str]:
    """The fields of this name or below it; raises UsageError, with a hint, if there are none."""
    matching = all_below(known, name)
    if not matching:
        near = did_you_mean(name, known, otherwise=f"there are {', '.join(known) or 'none'}")
        raise UsageError(f"{connector}: there is no field {name}{near}{hint and f'; {hint}'}")
    return matching


def check_new(path: str, known: Collection[str], what: str) -> None:
    """Raises UsageError if a field exists, or is a group of fields or inside a field."""
    for other in known:
        if below(other, path) or below(path, other):
            raise UsageError(f"{what}={path}: there is a field {other}")


def check_choices(connector: object, **choices: Sequence[Any]) -> None:
    """Raises UsageError if an argument of a connector is not one of its choices."""
    for name, known in choices.items():
        if (value := getattr(connector, name)) not in known:
            expected = f"expected one of {', '.join(map(str, known))}"
            raise UsageError(f"{type(connector).__name__}: {name}={value}, {expected}")


def leaves(episode: Episode, field: str, column: str) -> dict[str, Column]:
    """Renames the leaves of a step field: `leaves(e, "observation", "obs")` gives `obs/state`, `obs/image`.

    Returns:
      The columns by new name; empty if the episode has no such field.
    """
    return {name: episode.steps[path] for path, name in name_leaves(tuple(episode.steps), field, column)}


@functools.lru_cache(maxsize=1024)  # episodes of a dataset have the same paths
def name_leaves(paths: tuple[str, ...], field: str, column: str) -> tuple[tuple[str, str], ...]:
    """The paths of a step field's leaves, each with its column name."""
    return tuple((path, column + path[len(field) :]) for path in paths if below(path, field))


def terminateds(episode: Episode) -> np.ndarray[Any, Any]:
    """Whether each transition of an episode of T + 1 steps led to a terminal state, bool (T,)."""
    return np.asarray(episode.steps["is_terminal"][1:], bool)


def truncateds(episode: Episode, ends: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
    """Whether the episode was truncated after each transition, bool (T,): `is_last` without `is_terminal`.

    Args:
      ends: `terminateds(episode)`, if already computed.
    """
    return np.asarray(episode.steps["is_last"][1:], bool) & ~(terminateds(episode) if ends is None else ends)
