"""What rules, signals, and connectors say of steps: idle ones, the rate of timestamps, recorded propensities."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rlds_beam.episodes.columns import is_numeric
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.episodes.schema import Field
from rlds_beam.errors import RldsBeamError, UsageError, Violation
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.typing import Array
from rlds_beam.user_functions import describe_error, resolve

IDLE = 1e-3
"""A step is idle if every value differs from the step before by less than this: openpi's rule for DROID
(`compute_droid_nonidle_ranges.py`)."""
MIN_IDLE_STEPS = 7
"""The shortest run of idle steps that counts; shorter pauses belong to the motion."""
MIN_STEPS = 4
"""Steps below which there is no usual interval."""

_CLOCK = re.compile(r"(.*[/_])?(time_?stamps?|time|stamp|frame_index|wall_?clock)(_(s|sec|secs|ms|us|ns|nsec))?", re.I)
_ALIKE, _COMPARABLE = 1.25, 10.0
"""Ratios of two rates up to which they agree, and beyond which the unit is unknown."""
_UNITS = (1.0, 1e-3, 1e-6, 1e-9)


def idle_steps(values: Array, threshold: float = IDLE) -> Array:
    """Whether each step of (T, D) is idle, bool (T,); the first is not."""
    idle = np.zeros(len(values), bool)
    idle[1:] = np.all(np.abs(values[1:] - values[:-1]) < threshold, axis=1)
    return idle


def runs(mask: Array) -> Array:
    """[start, stop) of each run of True (runs, 2)."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).view(np.int8)))
    return edges.reshape(-1, 2)


def is_clock(field: Field) -> bool:
    """Whether a field's name and dtype say that it holds timestamps or frame numbers."""
    return field.known_size == 1 and field.dtype not in ("string", "bool") and _names_clock(field.path)


@functools.lru_cache(maxsize=1024)
def _names_clock(path: str) -> bool:
    return _CLOCK.fullmatch(path) is not None


def contradicting_rate(path: str, column: Column, fps: float) -> float | None:
    """The rate in Hz of a field of timestamps of unknown unit; None if it is about `fps`, or cannot be told.

    Counters of frames (0, 1, 2, ... or 0, 3, 6, ...) have no rate.

    Args:
      path: the field; if its name does not say that it holds timestamps, there is no rate.
      column: its values, (T,) or (T, 1).
      fps: the declared rate in Hz.
    """
    if len(column) < MIN_STEPS or not _names_clock(path) or not is_numeric(column):
        return None
    times = np.asarray(column)
    if times.size != len(times) or times.dtype.kind == "b" or path.endswith("frame_index"):
        return None
    interval = float(np.median(np.diff(times.reshape(-1).astype(np.int64 if times.dtype.kind in "iu" else np.float64))))
    if not np.isfinite(interval) or interval <= 0 or interval in (1, 2, 3, 4):
        return None
    rate = float(estimate_rate(np.array([interval]), fps)[0])
    ratio = max(rate / fps, fps / rate)
    return rate if _ALIKE < ratio < _COMPARABLE else None


def estimate_rate(interval: Array, fps: float) -> Array:
    """Steps per second (E,) for intervals of unknown unit: seconds, ms, us, or ns, the one that is nearest to `fps`."""
    with np.errstate(divide="ignore", invalid="ignore"):
        rates = np.stack([1 / (interval * unit) for unit in _UNITS])
        best = np.argmin(np.nan_to_num(np.abs(np.log(rates / fps)), nan=np.inf), axis=0)
    found: Array = np.take_along_axis(rates, best[None], axis=0)[0]
    return found


PROPENSITIES = ("propensity", "pscore")
"""The step fields that may hold propensities: ours and SCOPE-RL's."""

LOG_PROPENSITY = "log_propensity"
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
    paths = [name for name in PROPENSITIES if name in steps]
    odd = {path: _describe_odd(steps[path]) for path in (*paths, LOG_PROPENSITY) if path in steps}
    for path, what in odd.items():
        if what:
            yield Violation("propensity_out_of_range", f"{what} per step, expected one float", path)
    if function is not None and not any(not odd[path] for path in paths):
        known = ", ".join(steps)
        raise UsageError(f"--propensity_fn: the steps have no propensity (one float per step), only {known}")
    for path in paths:
        if not odd[path]:
            yield from _check_field(path, episode, function, judge_last, with_log=odd.get(LOG_PROPENSITY) == "")


def _describe_odd(column: Column) -> str:
    """Describes a column that is not one float per step; empty if it is."""
    if isinstance(column, EncodedImages):
        return "an image"
    is_float = column.dtype.kind == "f" or column.dtype.name == "bfloat16"
    if column.ndim == 1 and is_float:
        return ""
    kind = "text" if column.dtype == object else str(column.dtype)
    return f"{kind} of shape {column.shape[1:]}" if column.ndim > 1 else kind


def _check_field(
    path: str, episode: Episode, function: str | None, judge_last: bool, *, with_log: bool
) -> Iterator[Violation]:
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
        expected = np.exp(np.asarray(steps[LOG_PROPENSITY], np.float64))
        yield from _mismatch(path, values, expected, judged, f"{LOG_PROPENSITY} gives")
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
    steps = {p: c.decode_all(p) if isinstance(c, EncodedImages) else np.asarray(c) for p, c in episode.steps.items()}
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
