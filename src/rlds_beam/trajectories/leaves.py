"""Maps step fields to trajectory leaves, in the same way for a schema and for an episode; casts, and policy info."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, cast

import numpy as np

from rlds_beam.episodes.columns import (
    all_below,
    concatenate,
    find_changed,
    flatten,
    make_violation,
    nest,
    nest_order,
    zeros_like,
)
from rlds_beam.episodes.episode import Column, EpisodeKey
from rlds_beam.episodes.schema import ADD_ACTIONS, REQUIRED_STEP_FIELDS
from rlds_beam.errors import BadEpisode, RldsBeamError, UsageError
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.text import did_you_mean
from rlds_beam.trajectories.options import FrameOptions
from rlds_beam.user_functions import describe_error, resolve

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


@functools.lru_cache(maxsize=64)  # called for every episode, with the same steps
def layout(paths: Names, text: Names, options: FrameOptions) -> TrajectoryLayout:
    """The trajectory layout of steps with these `paths`; `text` are those that hold strings.

    Text in the observation is left out unless it is named explicitly.

    Raises:
      UsageError: a required field is missing or is text, or an option names a field that does not exist or is text.
    """
    for name in REQUIRED_STEP_FIELDS:
        if not all_below(paths, name):
            hint = f"; {ADD_ACTIONS}" if name == "action" else ""
            raise UsageError(f"a trajectory needs {name}, but the steps only have {', '.join(paths)}{hint}")
    asked = [f"observation/{name}" for name in options.observation_fields]
    every = all_below(paths, "observation")
    observation = _choose("observation_fields", asked, paths, "observation/") if asked else every
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
    carried = _choose("policy_info_fields", options.policy_info_fields, paths, "")
    _refuse_text("policy_info_fields", carried, text)
    return TrajectoryLayout(
        observation=tuple(nest_order(observation)),
        action=tuple(nest_order(all_below(paths, "action"))),
        reward=tuple(nest_order(all_below(paths, "reward"))),
        policy_info=tuple((f"policy_info/{path}", path) for path in nest_order(carried)),
        text=tuple(left_out),
    )


def _choose(flag: str, names: Iterable[str], paths: Names, prefix: str) -> list[str]:
    """The leaves at or below the names; `prefix` is what users omit."""
    chosen: dict[str, None] = {}
    for name in names:
        matching = all_below(paths, name)
        if not matching:
            leaves, short = [path[len(prefix) :] for path in paths if path.startswith(prefix)], name[len(prefix) :]
            if not leaves:
                raise UsageError(f"--{flag}={short}: the observation is a single array without fields")
            hint = did_you_mean(short, leaves, most=3) or "."
            raise UsageError(
                f"--{flag}={short}: there is no such field{hint} The fields are: {', '.join(nest_order(leaves))}"
            )
        chosen |= dict.fromkeys(matching)
    return list(chosen)


def _refuse_text(flag: str, chosen: Iterable[str], text: Names) -> None:
    for path in chosen:
        if path in text:
            raise UsageError(
                f"--{flag}: {path} is text, but a trajectory can only hold numbers; name a numeric field instead "
                "(for example an embedding of the text)"
            )


def cast_columns(columns: Mapping[str, Column], casts: Mapping[str, str], void: Mapping[str, int]) -> dict[str, Column]:
    """Casts the columns that `casts` names.

    Args:
      columns: the columns of a trajectory, by path.
      casts: path -> dtype, followed by `!` if values may change.
      void: path -> the number of void last steps, which are cast but not checked.

    Raises:
      UsageError: a leaf does not exist or cannot be cast.
      BadEpisode: a cast would change a value, which it must not; one violation per leaf.
    """
    casted, violations = dict(columns), []
    for path, casting in casts.items():
        column = columns.get(path)
        if column is None:
            hint = did_you_mean(path, columns) or "."
            raise UsageError(
                f"--cast={path}={casting}: there is no such leaf{hint} The leaves are:  {', '.join(columns)}"
            )
        if isinstance(column, EncodedImages) or path in ("step_type", "next_step_type", "discount"):
            raise UsageError(f"--cast={path}={casting}: images, step types, and the discount cannot be cast")
        with np.errstate(all="ignore"):
            casted[path] = new = column.astype(casting.removesuffix("!"), copy=False)
            meant = slice(0, len(column) - void.get(path, 0))
            if (
                not casting.endswith("!")
                and new is not column
                and (bad := find_changed(column[meant], new[meant], rounding=True)).any()
            ):
                violations.append(make_violation("cast", path, column[meant], new[meant], bad))
    if violations:
        raise BadEpisode(*violations)
    return casted


Nest = Mapping[str, Any]
"""Columns as nested dicts, like an RLDS step: `{"observation": {"state": array, ...}, "action": ...}`."""

PolicyInfoFn = Callable[[Nest, Nest], Any]
"""(current_steps, next_steps) -> an array, or nested dicts of arrays, with leading axis n."""


def policy_info_columns(
    name: str, steps: Mapping[str, Column], fields: Mapping[str, Column], key: EpisodeKey
) -> dict[str, Column]:
    """Calls `module:function` for an episode and adds the columns of `fields`.

    The function is called once per episode, with two nests of columns of all its n steps, including text and encoded
    images. `next_steps` of the last step is a padding step: `is_first` is True and everything else is zero. (TF-Agents
    passes the first step of the next episode instead, except after the last one; here no frame depends on another
    episode.)

    Returns:
      The columns `policy_info` or `policy_info/...` with leading axis n, in `tf.nest`'s order.

    Raises:
      UsageError: the function does not exist, does not return numeric arrays with leading axis n, or returns a name
        that is also in `fields`.
      RldsBeamError: the function raised; the message names it, the place, and the episode.
    """
    count = len(steps["is_first"])
    following = {path: concatenate([column[1:], zeros_like(column, 1)]) for path, column in steps.items()}
    cast("np.ndarray[Any, Any]", following["is_first"])[-1] = True
    function: PolicyInfoFn = resolve(name)
    try:
        returned = flatten(function(nest(steps), nest(following)), "policy_info")
    except RldsBeamError:
        raise
    except Exception as error:
        raise RldsBeamError(
            f"--policy_info_fn={name} {describe_error(error)}, called with the {count} steps of {key}"
        ) from error
    columns: dict[str, Column] = {
        path: _check_policy_info(name, path, values, count) for path, values in returned.items()
    }
    twice = sorted(columns.keys() & fields.keys())
    if twice or (fields and "policy_info" in columns):
        what = twice[0] if twice else "an array without a name"
        raise UsageError(
            f"--policy_info_fn={name}: it returns {what}, which conflicts with --policy_info_fields; return a dict "
            "with other names"
        )
    columns |= fields
    return {path: columns[path] for path in nest_order(columns)}


def _check_policy_info(name: str, path: str, values: Any, count: int) -> np.ndarray[Any, Any]:
    array = np.asarray(values)
    if array.dtype.kind in "OSU":
        raise UsageError(
            f"--policy_info_fn={name}: {path} is a {type(values).__name__} of {array.dtype}; "
            "return a numeric array, or nested dicts of them"
        )
    if array.shape[:1] != (count,):
        raise UsageError(
            f"--policy_info_fn={name}: {path} has shape {array.shape} for an episode of {count} steps; "
            "the first axis must be the steps"
        )
    return array
