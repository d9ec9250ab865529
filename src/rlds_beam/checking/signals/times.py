"""The signals of timestamps.

The usual interval is the median of the episode's own, so the unit does not matter. Standard deviations are 1.4826 times
the median absolute deviation.

    timestamps    0    10    20    50    60        usual interval 10, 2 frames missing before step 3
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlds_beam.checking.signals.base import Measured, once, signal, statistics
from rlds_beam.checking.signals.episodes import Episodes, Layout
from rlds_beam.checking.signals.rows import Rows, median
from rlds_beam.checking.steps import MIN_STEPS, estimate_rate
from rlds_beam.typing import Array

_GAP, _GAP_DEVIATIONS = 1.5, 5.0
"""A frame is missing after this many usual intervals, lerobot-doctor's definition (checks/temporal.py), if the interval
is also this many standard deviations longer: jitter makes long intervals and loses nothing."""


class _Clock(NamedTuple):
    """A field of timestamps of E episodes.

    Attributes:
      gaps: the time since the step before (N,).
      known: whether it is a number (N,); it is not at the first step of an episode.
      counts: the number of known ones (E,).
      usual: the usual interval (E,); NaN if there are too few, or time stands still.
      ratios: `gaps / usual` (N,); 1 where it is unknown.
    """

    gaps: Array
    known: Array
    counts: Array
    usual: Array
    ratios: Array


@once
def _clocks(episodes: Episodes) -> dict[str, _Clock]:
    layout, clocks = episodes.layout, {}
    for path in episodes.context.clocks:
        times = episodes.columns[path]
        if not isinstance(times, np.ndarray) or times.size != len(times):
            continue
        gaps = np.zeros(len(times))
        gaps[1:] = np.diff(times.ravel().astype(np.int64 if times.dtype.kind in "iu" else np.float64))
        inner = np.ones(len(times), bool)
        inner[layout.starts] = False
        known = inner & np.isfinite(gaps)
        counts = layout.sum(known)
        usual = _medians(gaps, known, layout, counts)
        usual = np.where((counts + 1 >= MIN_STEPS) & (usual > 0), usual, np.nan)
        with np.errstate(invalid="ignore", over="ignore"):
            ratios = np.where(known & ~np.isnan(layout.spread(usual)), gaps / layout.spread(usual), 1.0)
        clocks[path] = _Clock(gaps, known, counts, usual, ratios)
    return clocks


def _medians(gaps: Array, known: Array, layout: Layout, counts: Array) -> Array:
    order = np.lexsort((gaps, ~known, layout.spread(np.arange(len(layout.starts)))))  # known gaps first, ascending
    middle = layout.starts + np.maximum(counts - 1, 0) // 2
    return np.where(counts > 0, gaps[order][middle], np.nan)


@signal(
    "Time",
    "share of frames",
    0.0,
    remedy="lost frames cannot be restored",
    misses="single frames lost in strong jitter (a fifth of the interval), timestamps written by index",
)
def dropped_frames(episodes: Episodes) -> dict[str, Measured]:
    """Frames missing between timestamps."""
    found, layout = {}, episodes.layout
    for path, clock in _clocks(episodes).items():
        deviation = 1.4826 * _medians(np.abs(clock.ratios - 1), clock.known, layout, clock.counts)
        longest = layout.spread(np.maximum(_GAP, 1 + _GAP_DEVIATIONS * deviation))
        missing = np.where(clock.ratios > longest, np.rint(clock.ratios) - 1, 0.0)
        lost = layout.sum(missing)
        share = np.where(np.isnan(clock.usual), np.nan, lost / (clock.counts + 1 + lost))
        found[path] = Measured(share, np.where(lost > 0, layout.find_largest(missing[None])[0], np.nan))
    return found


@signal("Time", "ratio", 0.1, misses="timestamps written by index, which have none")
def jitter(episodes: Episodes) -> dict[str, Array]:
    """Standard deviation of the time between steps, over its median."""
    found, layout = {}, episodes.layout
    for path, clock in _clocks(episodes).items():
        regular = clock.known & (clock.ratios > 0) & (clock.ratios <= _GAP)
        squares = layout.sum(np.where(regular, np.square(clock.ratios - 1), 0.0))
        deviation = np.sqrt(squares / np.maximum(layout.sum(regular), 1))
        found[path] = np.where(np.isnan(clock.usual), np.nan, deviation)
    return found


@signal("Time", "share of steps", 0.0, misses="a clock that jumps forward: see `dropped_frames`")
def time_reversals(episodes: Episodes) -> dict[str, Measured]:
    """Steps whose timestamp does not increase."""
    found, layout = {}, episodes.layout
    for path, clock in _clocks(episodes).items():
        back = clock.known & (clock.gaps <= 0)
        share = np.where(clock.counts > 0, layout.sum(back) / np.maximum(clock.counts, 1), np.nan)
        found[path] = Measured(share, np.where(layout.sum(back) > 0, layout.find_largest(back[None])[0], np.nan))
    return found


@statistics
def _intervals(episodes: Episodes) -> dict[str, Array]:
    return {f"#interval/{path}": clock.usual for path, clock in _clocks(episodes).items()}


@signal(
    "Time",
    "ratio",
    0.1,
    remedy="declare the right rate, or resample by the timestamps (Resample)",
    misses="differences up to a tenth",
    relative=True,
)
def rate_mismatch(rows: Rows) -> dict[str, Array]:
    """Difference between the rate of the timestamps and the declared (or usual) rate."""
    found, fps = {}, rows.context.fps
    for path in rows.context.clocks:
        interval = rows.numbers.get(f"#interval/{path}")
        if interval is not None and not path.endswith("frame_index"):
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = estimate_rate(interval, fps) / fps if fps else median(interval) / interval
            found[path] = np.abs(ratio - 1)
    return found
