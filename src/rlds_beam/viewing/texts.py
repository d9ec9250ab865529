"""Numbers, times, and schemas as text."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlds_beam.episodes.describing import schema_tree as schema_tree
from rlds_beam.text import printable as printable
from rlds_beam.viewing.curves import thin

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


def duration(seconds: float) -> str:
    """`0.5 s`, `12.3 s`, `2:05`, `1:02:03`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
