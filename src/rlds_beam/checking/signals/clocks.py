"""Dropped frames, jitter, and rates, from timestamps and frame numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from rlds_beam.checking.rates import MIN_STEPS
from rlds_beam.checking.signals.motion import Laid

Array: TypeAlias = "np.ndarray[Any, Any]"

_GAP = 1.5
"""A frame is missing after this many usual intervals: lerobot-doctor's definition (checks/temporal.py)."""


def clock_signals(columns: Sequence[Array], laid: Laid) -> dict[str, Array]:
    """The signals of one field of timestamps for E episodes: signal -> (E,), and the `interval` between steps.

    The usual interval is the median of the episode's own, so the unit does not matter.

        timestamps    0    10    20    50    60        usual interval 10, 2 frames missing before step 3
    """
    times = np.concatenate([np.asarray(column).reshape(-1) for column in columns])
    gaps = np.zeros(len(times))
    gaps[1:] = np.diff(times.astype(np.int64) if times.dtype.kind in "iu" else times.astype(np.float64))
    inner = np.ones(len(times), bool)
    inner[laid.starts] = False
    known = inner & np.isfinite(gaps)
    counts = np.add.reduceat(known.view(np.int8), laid.starts, dtype=np.int64)
    usual = _medians(gaps, known, laid, counts)
    unit = np.repeat(usual, laid.lengths)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratios = np.where(known, gaps / unit, 1.0)
        usable = (counts + 1 >= MIN_STEPS) & (usual > 0)
        missing = np.where(ratios > _GAP, np.rint(ratios) - 1, 0.0)
        lost = np.add.reduceat(missing, laid.starts)
        regular = known & (ratios > 0) & (ratios <= _GAP)
        squares = np.add.reduceat(np.where(regular, np.square(ratios - 1), 0.0), laid.starts)
        regulars = np.add.reduceat(regular.view(np.int8), laid.starts, dtype=np.int64)
        back = np.add.reduceat((known & (gaps <= 0)).view(np.int8), laid.starts, dtype=np.int64)
        return {
            "dropped_frames": np.where(usable, lost / (counts + 1 + lost), np.nan),
            "dropped_frames@step": np.where(lost > 0, _largest(missing, laid), np.nan),
            "jitter": np.where(usable, np.sqrt(squares / np.maximum(regulars, 1)), np.nan),
            "time_reversals": np.where(counts > 0, back / np.maximum(counts, 1), np.nan),
            "time_reversals@step": np.where(back > 0, _largest(known & (gaps <= 0), laid), np.nan),
            "interval": np.where(usable, usual, np.nan),
        }


def _medians(gaps: Array, known: Array, laid: Laid, counts: Array) -> Array:
    episode = np.repeat(np.arange(len(laid.starts)), laid.lengths)
    order = np.lexsort((gaps, ~known, episode))  # known gaps first, ascending
    middle = laid.starts + np.maximum(counts - 1, 0) // 2
    return np.where(counts > 0, gaps[order][middle], np.nan)


def _largest(values: Array, laid: Laid) -> Array:
    """The first step with the largest value of each episode."""
    largest = np.maximum.reduceat(values, laid.starts)
    places = np.flatnonzero(values == np.repeat(largest, laid.lengths))
    episodes, first = np.unique(laid.episode_of(places), return_index=True)
    steps = np.full(len(laid.starts), np.nan)
    steps[episodes] = places[first] - laid.starts[episodes]
    return steps
