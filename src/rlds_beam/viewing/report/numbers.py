"""Numbers and sizes as a report shows them."""

from __future__ import annotations

import math

from rlds_beam.text import format_size

NOTHING = "-"
"""Shown for a value that is missing, NaN, or infinite."""


def number(value: float | None, digits: int = 4) -> str:
    """A number with thousands separators and `digits` significant digits: `1,234`, `0.01235`, `1.2e-07`."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if isinstance(value, int) or (value == int(value) and abs(value) < 1e15):
        return f"{int(value):,}"
    size = math.floor(math.log10(abs(value)))
    if -4 <= size < 9:
        text = f"{value:,.{max(0, digits - 1 - size)}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    return f"{value:.{digits - 2}e}"


def compact(value: float | None) -> str:
    """A number for an axis: three significant digits."""
    return number(value, 3)


def percent(part: float, whole: float) -> str:
    """A share as text: `12.5 %`; what is not zero is never shown as 0 %, what is not all never as 100 %."""
    if not whole:
        return NOTHING
    share = 100 * part / whole
    if 0 < share < 0.1:
        return "< 0.1 %"
    if 99.9 < share < 100:
        return "> 99.9 %"
    return f"{share:.1f}".rstrip("0").rstrip(".") + " %"


def duration(steps: int, fps: float | None) -> str:
    """How long steps take: `3.2 s`, `2 min 05 s`, `1 h 12 min`; empty if the rate is unknown."""
    if not fps or not math.isfinite(fps) or fps <= 0:
        return ""
    seconds = steps / fps
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60:02d} min"


def size(value: int) -> str:
    """A number of bytes: `1.2 MB`."""
    return format_size(value)
