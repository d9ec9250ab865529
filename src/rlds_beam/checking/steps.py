"""What rules, signals, and connectors say of steps: whether they are idle, and what rate their timestamps have."""

from __future__ import annotations

import functools
import re

import numpy as np

from rlds_beam.episodes.columns import is_numeric
from rlds_beam.episodes.episode import Column
from rlds_beam.episodes.schema import Field
from rlds_beam.typing import Array

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
