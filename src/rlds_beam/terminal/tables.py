"""Tables of text with aligned columns, and sparklines."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rlds_beam.processing.report import left_out_lines
from rlds_beam.text import shorten
from rlds_beam.typing import Array

NOTHING_WRITTEN = "nothing was written (--dry_run)"
_MAX_CELL_CHARACTERS = 2000
_NUMBER = re.compile(r"[-+]?(\d[\d,.]*(e[-+]?\d+)?|inf)( [kMGT]?B|%)?|nan")


def table_lines(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table; the first is the header. Columns of numbers are aligned to the right."""
    cells = [[shorten(cell, _MAX_CELL_CHARACTERS) for cell in row] for row in (header, *rows)]
    padded = []
    for column in zip(*cells, strict=True):
        size = max(map(display_width, column))
        is_number = any(column[1:]) and all(_NUMBER.fullmatch(cell) for cell in column[1:] if cell)
        spaces = [" " * (size - display_width(cell)) for cell in column]
        padded.append([s + cell if is_number else cell + s for cell, s in zip(column, spaces, strict=True)])
    return ["  ".join(row).rstrip() for row in zip(*padded, strict=True)]


def record_lines(fields: Iterable[str], left_out: Mapping[str, str], record: str = "frame") -> list[str]:
    """The fields of a record, `action: float32(2)`, in two columns, and the fields left out, with reasons."""
    lines = list(fields)
    if all(": " in field for field in lines):
        lines = table_lines(("", ""), [field.split(": ", 1) for field in lines])[1:]
    return [record, *(f"  {line}" for line in lines), *(f"  left out: {line}" for line in left_out_lines(left_out))]


def display_width(text: str) -> int:
    """The columns that a text takes in a terminal: two for each wide character, none for a combining one."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in ("W", "F") else 1 for c in text
    )


def cut(text: str, width: int) -> str:
    """A text of at most `width` columns, ending in `…` if it is longer."""
    if display_width(text) <= width:
        return text
    while text and display_width(text) > width - 1:
        text = text[: max(0, min(len(text) - 1, width - 1))]
    return f"{text}…" if width > 0 else ""


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
