"""`policy_info` made by a function of the user's."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from rlds_beam.episodes.columns import concatenate, zeros_like
from rlds_beam.episodes.episode import Column
from rlds_beam.errors import UsageError
from rlds_beam.trajectories.leaves import nest_order

Nest = Mapping[str, Any]
"""Columns as nested dicts, as an RLDS step has them: `{"observation": {"state": array, ...}, "action": ...}`."""

PolicyInfoFn = Callable[[Nest, Nest], Any]
"""(current_steps, next_steps) -> an array, or nested dicts of arrays, with leading axis n."""


def policy_info_columns(name: str, steps: Mapping[str, Column], fields: Mapping[str, Column]) -> dict[str, Column]:
    """Calls the function `module:function` for an episode and joins its columns with those of `fields`.

    The function is called once an episode, with two nests of columns of all its n steps, text and
    encoded images included. `next_steps` of the last step is a padding step: `is_first` is True and
    everything else is zero (TF-Agents does so after the last episode of a dataset, and hands over
    the first step of the next episode before that: here no frame depends on a neighbouring episode).

    Returns:
      Columns `policy_info` or `policy_info/...` with leading axis n, in `tf.nest`'s order.

    Raises:
      UsageError: there is no such function, it returned something else than numeric arrays with
        leading axis n, or it returned a name that `fields` has too.
    """
    count = len(steps["is_first"])
    following = {path: concatenate([column[1:], zeros_like(column, 1)]) for path, column in steps.items()}
    cast("np.ndarray[Any, Any]", following["is_first"])[-1] = True
    function: PolicyInfoFn = resolve(name)
    returned = _flat(function(nest(steps), nest(following)), "policy_info")
    columns: dict[str, Column] = {path: _checked(name, path, values, count) for path, values in returned.items()}
    twice = sorted(columns.keys() & fields.keys())
    if twice or (fields and "policy_info" in columns):
        what = twice[0] if twice else "an array without a name"
        raise UsageError(
            f"--policy_info_fn={name}: it returns {what}, and --policy_info_fields fills policy_info too; "
            "return a dict of other names"
        )
    columns |= fields
    return {path: columns[path] for path in nest_order(columns)}


@functools.lru_cache(maxsize=8)
def resolve(name: str, flag: str = "--policy_info_fn") -> Callable[..., Any]:
    """The function `module:function`, installed or in the current directory; UsageError where there is none.

    Args:
      flag: what `name` is the value of, for messages.
    """
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise UsageError(f"{flag}={name}: expected module:function, like my_project.policies:log_probability")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # the last place to look: nothing there stands in for what is installed
    try:
        found = functools.reduce(getattr, attribute.split("."), importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise UsageError(f"{flag}={name}: {error}") from error
    if not callable(found):
        raise UsageError(f"{flag}={name}: it is a {type(found).__name__}, not a function")
    return cast("Callable[..., Any]", found)


def nest(steps: Mapping[str, Column]) -> dict[str, Any]:
    """Columns by path as nested dicts (`Nest`)."""
    nested: dict[str, Any] = {}
    for path, column in steps.items():
        *parents, leaf = path.split("/")
        functools.reduce(lambda level, name: level.setdefault(name, {}), parents, nested)[leaf] = column
    return nested


def _flat(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {path: value}
    return {leaf: v for name, below in value.items() for leaf, v in _flat(below, f"{path}/{name}").items()}


def _checked(name: str, path: str, values: Any, count: int) -> np.ndarray[Any, Any]:
    array = np.asarray(values)
    if array.dtype.kind in "OSU":
        raise UsageError(
            f"--policy_info_fn={name}: {path} is a {type(values).__name__} of {array.dtype}; "
            "return a numeric array, or (nested) dicts of them"
        )
    if array.shape[:1] != (count,):
        raise UsageError(
            f"--policy_info_fn={name}: {path} has shape {array.shape} for an episode of {count} steps; "
            "its first axis is the step, one value for each"
        )
    return array
