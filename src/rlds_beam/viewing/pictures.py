"""Pictures of an episode: strips of its images, and curves as pixels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from rlds_beam.episodes.episode import Episode
from rlds_beam.images.thumbnails import (
    find_image,
    is_image,
    join_pictures,
    small_pixels,
    spread,
    stack_rows,
)
from rlds_beam.text import printable
from rlds_beam.typing import Array
from rlds_beam.viewing.facts import Curve


def find_cameras(episode: Episode) -> list[str]:
    """The paths of the step fields that hold images, sorted."""
    return sorted(path for path, column in episode.steps.items() if is_image(column))


def strip(episode: Episode, count: int, height: int) -> Array:
    """One picture of an episode: a row for each camera, a column for each of `count` steps.

    Returns:
      uint8 [H, W, 3]; all images of a row have `height` rows. Empty if the episode has no images.
    """
    steps = spread(len(episode), count)
    rows = []
    for path in find_cameras(episode) if steps else ():
        column = episode.steps[path]
        rows.append(join_pictures([small_pixels(find_image(column, step), height)[0] for step in steps], height))
    return stack_rows(rows)


COLORS = ((59, 130, 246), (245, 158, 11), (16, 185, 129), (239, 68, 68), (139, 92, 246), (236, 72, 153), (20, 184, 166))
_CURSOR, _INK, _GRAY, _LINE = (220, 38, 38), (31, 35, 40), (89, 99, 110), (209, 217, 224)
_GUTTER, _RIGHT, _TITLE, _AXIS = 56, 16, 14, 16
"""Pixels beside a plot, above it, and below all of them."""
_MIN_LABELED = 240
"""The least width of a plot with names and axes."""


def draw_curves(curves: Sequence[Curve], height: int, width: int) -> Array:
    """Fields below each other as uint8 [H, width, 3], each `height` rows, and the steps at the bottom.

    Each has its name, and the names of its dimensions in their colors, which share the axis of values. Plots that are
    too narrow have only the lines.
    """
    if not curves:
        return np.zeros((0, width, 3), np.uint8)
    labeled = width >= _MIN_LABELED
    image = Image.new("RGB", (width, height * len(curves) + (_AXIS if labeled else 0)), "white")
    draw = ImageDraw.Draw(image)
    for i, curve in enumerate(curves):
        _draw_curve(draw, curve, i * height, height, width)
    last = len(curves[0].values) - 1
    for step in sorted({0, last // 2, last}) if labeled else ():
        anchor = {0: "la", last: "ra"}.get(step, "ma")
        place = _x_of(step, last + 1, width), height * len(curves) + 2
        draw.text(place, f"step {step:,}", _GRAY, ImageFont.load_default(10), anchor)
    return np.asarray(image)


def with_cursor(plot: Array, step: int, steps: int) -> Array:
    """A copy with a vertical line at a step."""
    marked = plot.copy()
    marked[:, round(_x_of(step, steps, plot.shape[1]))] = _CURSOR
    return marked


def _x_of(step: float, steps: int, width: int) -> float:
    """The pixel column of a step."""
    left, right = (_GUTTER, width - _RIGHT) if width >= _MIN_LABELED else (0, width - 1)
    return left + step * (right - left) / max(1, steps - 1)


def _draw_curve(draw: ImageDraw.ImageDraw, curve: Curve, top: int, height: int, width: int) -> None:
    labeled, values, steps = width >= _MIN_LABELED, curve.values / 2, len(curve.values)  # half: a range may overflow
    known = values[np.isfinite(values)]
    low, high = (known.min(), known.max()) if known.size else (0.0, 0.0)
    first, last = top + (_TITLE if labeled else 4), top + height - 5
    left, right = round(_x_of(0, steps, width)), round(_x_of(steps - 1, steps, width))
    at = np.arange(left, right + 1)
    for i, column in enumerate(values.T):
        finite = np.isfinite(column)
        if finite.any():
            line = np.interp(np.linspace(0, steps - 1, len(at)), np.flatnonzero(finite), column[finite])
            rows = last - (line - low) / ((high - low) or 1.0) * (last - first)
            draw.line(list(zip(at.tolist(), rows.tolist(), strict=True)), COLORS[i % len(COLORS)])
    draw.line([(0, top + height - 1), (width, top + height - 1)], _LINE)
    if not labeled:
        return
    font = ImageFont.load_default(10)
    for value, row, anchor in ((high, first, "rt"), (low, last, "rb")):
        draw.text((left - 4, row), f"{2 * float(value):.4g}", _GRAY, font, anchor)
    x = left + draw.textlength(printable(curve.path, 60) + "  ", font)
    draw.text((left, top + 1), printable(curve.path, 60), _INK, font)
    for i, label in enumerate(curve.labels):
        text = f"{printable(label, 20)}  "
        if x + draw.textlength(text, font) > right:
            break
        draw.text((x, top + 1), text, COLORS[i % len(COLORS)], font)
        x += draw.textlength(text, font)
