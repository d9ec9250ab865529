"""Curves as pixels, for image files and videos."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlds_beam.typing import Array
from rlds_beam.viewing.curves import Curve

COLORS = ((59, 130, 246), (245, 158, 11), (16, 185, 129), (239, 68, 68), (139, 92, 246), (236, 72, 153), (20, 184, 166))
_CURSOR = (220, 38, 38)
_MARGIN = 4


def draw_curves(curves: Sequence[Curve], height: int, width: int) -> Array:
    """Fields below each other as uint8 [height * fields, width, 3]; each dimension is scaled to its own range."""
    panels = [_panel(curve, height, width) for curve in curves]
    return np.concatenate(panels) if panels else np.zeros((0, width, 3), np.uint8)


def with_cursor(plot: Array, step: int, steps: int) -> Array:
    """A copy with a vertical line at a step."""
    marked = plot.copy()
    marked[:, round(step * (plot.shape[1] - 1) / max(1, steps - 1))] = _CURSOR
    return marked


def _panel(curve: Curve, height: int, width: int) -> Array:
    """A white panel with a line for each dimension: its values are interpolated at each pixel column."""
    panel = np.full((height, width, 3), 255, np.uint8)
    panel[-1] = 200
    values = curve.values
    at = np.linspace(0, len(values) - 1, width)
    room = height - 2 * _MARGIN - 1
    for i, column in enumerate(values.T):
        finite = np.isfinite(column)
        if not finite.any():
            continue
        low, high = column[finite].min() / 2, column[finite].max() / 2
        scaled = (column[finite] / 2 - low) / ((high - low) or 1.0)
        rows = np.rint(_MARGIN + (1 - np.interp(at, np.flatnonzero(finite), scaled)) * room).astype(int)
        before = np.concatenate([rows[:1], rows[:-1]])
        for x, (start, stop) in enumerate(np.sort(np.stack([before, rows], axis=1), axis=1).tolist()):
            panel[start : stop + 1, x] = COLORS[i % len(COLORS)]
    return panel
