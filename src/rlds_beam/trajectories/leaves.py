"""Maps step fields to trajectory leaves, in the same way for a schema and for an episode."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import NamedTuple

from rlds_beam.episodes.nesting import all_below, nest_order
from rlds_beam.episodes.schema import ADD_ACTIONS, REQUIRED_STEP_FIELDS
from rlds_beam.errors import UsageError
from rlds_beam.text import did_you_mean
from rlds_beam.trajectories.options import FrameOptions

Names = tuple[str, ...]


class TrajectoryLayout(NamedTuple):
    """The data leaves of a trajectory; each group is sorted as `tf.nest` flattens dicts.

    `observation`, `action`, and `reward` are step paths and also the trajectory's paths. `policy_info` holds pairs
    (trajectory path, step path). `text` holds the observation fields that are left out.
    """

    observation: Names
    action: Names
    reward: Names
    policy_info: tuple[tuple[str, str], ...]
    text: Names


def layout(paths: Names, text: Names, options: FrameOptions) -> TrajectoryLayout:
    """The trajectory layout of steps with these `paths`; `text` are those that hold strings.

    Text in the observation is left out unless it is named explicitly.

    Raises:
      UsageError: a required field is missing or is text, or an option names a field that does not exist or is text.
    """
    return _layout(paths, text, tuple(options.observation_fields), tuple(options.policy_info_fields))


@functools.lru_cache(maxsize=64)  # called for every episode, with the same steps
def _layout(paths: Names, text: Names, observation_fields: Names, policy_info_fields: Names) -> TrajectoryLayout:
    for name in REQUIRED_STEP_FIELDS:
        if not all_below(paths, name):
            hint = f"; {ADD_ACTIONS}" if name == "action" else ""
            raise UsageError(f"a trajectory needs {name}, but the steps only have {', '.join(paths)}{hint}")
    asked = [f"observation/{name}" for name in observation_fields]
    every = all_below(paths, "observation")
    observation = _chosen("observation_fields", asked, paths, "observation/") if asked else every
    _refuse_text("observation_fields", observation if asked else [], text)
    left_out = [path for path in observation if path in text]
    observation = [path for path in observation if path not in text]
    if not observation:
        raise UsageError(
            f"{', '.join(left_out)}: the whole observation is text, but a trajectory can only hold numbers"
        )
    for path in (*all_below(paths, "action"), *all_below(paths, "reward"), "discount"):
        if path in text:
            raise UsageError(f"{path} is text, but a trajectory can only hold numbers; convert it to numbers first")
    carried = _chosen("policy_info_fields", policy_info_fields, paths, "")
    _refuse_text("policy_info_fields", carried, text)
    return TrajectoryLayout(
        observation=tuple(nest_order(observation)),
        action=tuple(nest_order(all_below(paths, "action"))),
        reward=tuple(nest_order(all_below(paths, "reward"))),
        policy_info=tuple((f"policy_info/{path}", path) for path in nest_order(carried)),
        text=tuple(left_out),
    )


def _chosen(flag: str, names: Iterable[str], paths: Names, prefix: str) -> list[str]:
    """The leaves at or below the names; `prefix` is what users omit."""
    chosen: dict[str, None] = {}
    for name in names:
        matching = all_below(paths, name)
        if not matching:
            raise UsageError(_no_such_field(flag, name, paths, prefix))
        chosen |= dict.fromkeys(matching)
    return list(chosen)


def _no_such_field(flag: str, name: str, paths: Names, prefix: str) -> str:
    leaves = [path[len(prefix) :] for path in paths if path.startswith(prefix)]
    short = name[len(prefix) :]
    if not leaves:
        return f"--{flag}={short}: the observation is a single array without fields"
    hint = did_you_mean(short, leaves, most=3) or "."
    return f"--{flag}={short}: there is no such field{hint} The fields are: {', '.join(nest_order(leaves))}"


def _refuse_text(flag: str, chosen: Iterable[str], text: Names) -> None:
    for path in chosen:
        if path in text:
            raise UsageError(
                f"--{flag}: {path} is text, but a trajectory can only hold numbers; name a numeric field instead "
                "(for example an embedding of the text)"
            )
