"""Computes `policy_info` with a user's function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from rlds_beam.episodes.columns import concatenate, zeros_like
from rlds_beam.episodes.episode import Column
from rlds_beam.episodes.keys import EpisodeKey
from rlds_beam.episodes.nesting import flatten, nest, nest_order
from rlds_beam.errors import RldsBeamError, UsageError
from rlds_beam.user_functions import raised, resolve

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
            f"--policy_info_fn={name} {raised(error)}, called with the {count} steps of {key}"
        ) from error
    columns: dict[str, Column] = {path: _checked(name, path, values, count) for path, values in returned.items()}
    twice = sorted(columns.keys() & fields.keys())
    if twice or (fields and "policy_info" in columns):
        what = twice[0] if twice else "an array without a name"
        raise UsageError(
            f"--policy_info_fn={name}: it returns {what}, which conflicts with --policy_info_fields; return a dict "
            "with other names"
        )
    columns |= fields
    return {path: columns[path] for path in nest_order(columns)}


def _checked(name: str, path: str, values: Any, count: int) -> np.ndarray[Any, Any]:
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
