"""Numbers and names in messages for people."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def count(number: int, noun: str) -> str:
    """`1 episode`, `1,200 episodes`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_size(number: int) -> str:
    """Bytes for a person: `1.2 MB`."""
    size, unit = float(number), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{number} B" if unit == "B" else f"{size:.1f} {unit}"


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """`; did you mean train?`, if one of the `names` is near; else nothing."""
    near = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""
