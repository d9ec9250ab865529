"""Curves as a line of text, and with fewer points."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

BARS = "▁▂▃▄▅▆▇█"
_UNKNOWN = "·"


def sparkline(values: Any, width: int) -> str:
    """A line of up to `width` characters: `▁▂▅█▃`. NaN and infinity are `·`; a constant is a low line.

    Keeps peaks: a character is the largest deviation from the mean in its stretch of values.
    """
    numbers = np.asarray(values, np.float64).ravel()
    known = np.where(np.isfinite(numbers), numbers, np.nan)
    if not numbers.size or np.isnan(known).all():
        return _UNKNOWN * min(width, numbers.size)
    if len(known) > width:
        pairs = thin(known[:, None], 2 * width)[1].reshape(-1, 2)
        far = abs(pairs - np.nanmean(known))
        known = np.where(far[:, 0] >= far[:, 1], pairs[:, 0], pairs[:, 1])
    low, high = np.nanmin(known), np.nanmax(known)
    scaled = (known / 2 - low / 2) / ((high / 2 - low / 2) or 1.0)
    return "".join(_UNKNOWN if np.isnan(x) else BARS[min(int(x * len(BARS)), len(BARS) - 1)] for x in scaled)


def thin(values: Array, most: int) -> tuple[Array, Array]:
    """Reduces curves to at most `most` points, keeping every peak.

    The steps are cut into `most // 2` stretches. Each becomes two points, at its first and last step: its minimum and
    maximum, in the order in which they occur.

    Args:
      values: [T, D].
      most: at least 2.

    Returns:
      (steps int64 [n], values [n, D]); unchanged if T is at most `most`.
    """
    length = len(values)
    if length <= most:
        return np.arange(length), values
    bounds = np.linspace(0, length, most // 2 + 1).astype(np.int64)
    starts, sizes = bounds[:-1], np.diff(bounds)
    low, high = np.fmin.reduceat(values, starts, axis=0), np.fmax.reduceat(values, starts, axis=0)
    index = np.arange(length).reshape(-1, *[1] * (values.ndim - 1))
    at_low, at_high = (
        np.minimum.reduceat(np.where(values == np.repeat(peak, sizes, axis=0), index, length), starts, axis=0)
        for peak in (low, high)
    )
    rises = at_low <= at_high
    pairs = np.stack([np.where(rises, low, high), np.where(rises, high, low)], axis=1)
    steps = np.stack([starts, bounds[1:] - 1], axis=1)
    return steps.ravel(), pairs.reshape(-1, *values.shape[1:])
