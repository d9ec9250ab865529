"""Checks propensities: the recorded policy's probability or density of each recorded action."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.errors import RldsBeamError, UsageError, Violation
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.typing import Array
from rlds_beam.user_functions import describe_error, resolve

NAMES = ("propensity", "pscore")
"""The step fields that may hold propensities: ours and SCOPE-RL's."""

LOG = "log_propensity"
_TOLERANCE = 1e-4
"""The relative difference up to which propensities count as equal; libraries differ in float32."""


def propensity_violations(episode: Episode, function: str | None, judge_last: bool) -> Iterator[Violation]:
    """Yields the violations of an episode's propensities, if any are recorded.

    Args:
      function: `--propensity_fn`.
      judge_last: whether to check the last step, whose action is void.

    Raises:
      UsageError: the function cannot be imported or does not return a number per step, or no propensities are
        recorded to compare with.
      RldsBeamError: the function raised.
    """
    steps = episode.steps
    paths = [name for name in NAMES if name in steps]
    odd = {path: _odd(steps[path]) for path in (*paths, LOG) if path in steps}
    for path, what in odd.items():
        if what:
            yield Violation("propensity_out_of_range", f"{what} per step, expected one float", path)
    if function is not None and not any(not odd[path] for path in paths):
        known = ", ".join(steps)
        raise UsageError(f"--propensity_fn: the steps have no propensity (one float per step), only {known}")
    for path in paths:
        if not odd[path]:
            yield from _of(path, episode, function, judge_last, with_log=odd.get(LOG) == "")


def _odd(column: Column) -> str:
    """Describes a column that is not one float per step; empty if it is."""
    if isinstance(column, EncodedImages):
        return "an image"
    is_float = column.dtype.kind == "f" or column.dtype.name == "bfloat16"
    if column.ndim == 1 and is_float:
        return ""
    kind = "text" if column.dtype == object else str(column.dtype)
    return f"{kind} of shape {column.shape[1:]}" if column.ndim > 1 else kind


def _of(path: str, episode: Episode, function: str | None, judge_last: bool, *, with_log: bool) -> Iterator[Violation]:
    """Yields the violations of one propensity field."""
    steps = episode.steps
    values = np.asarray(steps[path], np.float64)
    judged = np.full(len(values), True) if judge_last or "is_last" not in steps else ~np.asarray(steps["is_last"], bool)
    judged &= np.isfinite(values)  # others are non_finite
    actions = [column for name, column in steps.items() if name.partition("/")[0] == "action"]
    discrete = bool(actions) and all(np.asarray(column).dtype.kind in "iub" for column in actions)
    most = 1 + _TOLERANCE if discrete else np.inf  # a probability; of continuous actions, a density
    outside = np.flatnonzero(judged & ((values <= 0) | (values > most)))
    if len(outside):
        step = int(outside[0])
        detail = f"{values[step]:g} at step {step}{more_steps(outside)}"
        yield Violation("propensity_out_of_range", detail, path, step)
    if with_log:
        expected = np.exp(np.asarray(steps[LOG], np.float64))
        yield from _mismatch(path, values, expected, judged, f"{LOG} gives")
    if function is not None:
        yield from _mismatch(path, values, compute_propensities(function, episode), judged, f"{function} gives")


def _mismatch(path: str, values: Array, expected: Array, judged: Array, by: str) -> Iterator[Violation]:
    if expected.shape != values.shape:
        raise UsageError(f"{path} has shape {values.shape}, but {by} {expected.shape}: expected one number per step")
    differs = judged & ~np.isclose(values, expected, rtol=_TOLERANCE, atol=0)
    steps = np.flatnonzero(differs)
    if len(steps):
        step = int(steps[0])
        detail = f"{values[step]:g} at step {step}{more_steps(steps)}, but {by} {expected[step]:g}"
        yield Violation("propensity_mismatch", detail, path, step)


def more_steps(steps: Array) -> str:
    """` (3 such steps)` if there is more than one."""
    return f" ({len(steps)} such steps)" if len(steps) > 1 else ""


def compute_propensities(name: str, episode: Episode, flag: str = "--propensity_fn") -> Array:
    """Calls a user's function for the propensities of an episode's recorded actions, float64 (T,).

    Args:
      name: `module:function`. It is called with the columns of all T steps by name; images are pixels.
      flag: the option that names it.

    Raises:
      UsageError: the function does not exist, or does not return a number per step.
      RldsBeamError: the function raised; the message names it, the place, and the episode.
    """
    function: Callable[[dict[str, Array]], Any] = resolve(name, flag)
    steps = {p: c.decode(p) if isinstance(c, EncodedImages) else np.asarray(c) for p, c in episode.steps.items()}
    try:
        returned = function(steps)
    except Exception as error:
        raise RldsBeamError(
            f"{flag}={name} {describe_error(error)}, called with the {len(episode)} steps of {episode.key}"
        ) from error
    values = np.asarray(returned)
    if values.shape != (len(episode),) or values.dtype.kind not in "fiu":
        raise UsageError(
            f"{flag}={name}: it returned {values.dtype} of shape {values.shape} for an episode of "
            f"{len(episode)} steps, expected one number per step"
        )
    return values.astype(np.float64)
