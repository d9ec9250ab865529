"""Draws anti-aliased shapes with exactly rounded operations, so the pixels are the same on every machine."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rlds_beam.typing import Array

SIZE = 128
"""Height and width of an image, in pixels."""

Point = tuple[float, float]
Color = Sequence[float]
"""Red, green, and blue, 0 to 255."""

_SHADOW = (70, 52, 40)
_GRID = np.arange(SIZE, dtype=np.float32)[:, None], np.arange(SIZE, dtype=np.float32)[None]


class Canvas:
    """An image [128, 128, 3] to draw anti-aliased shapes on; columns and rows are floats."""

    def __init__(self, pixels: Array):
        self.pixels = pixels.astype(np.float32)

    def capsule(self, start: Point, end: Point, radius: float, color: Color) -> None:
        """A line with round ends; a disc if the ends are the same."""
        (x0, y0), (x1, y1) = _snap(start), _snap(end)
        if (place := _inside(min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1), radius)) is None:
            return
        row, column = _GRID[0][place[0]] - y0, _GRID[1][:, place[1]] - x0
        dx, dy = x1 - x0, y1 - y0
        along = np.clip((column * dx + row * dy) / max(dx * dx + dy * dy, 1e-6), 0, 1)
        distance = np.sqrt((column - along * dx) ** 2 + (row - along * dy) ** 2)
        self._blend(place, radius - distance, color)

    def box(self, left: float, top: float, right: float, bottom: float, color: Color, radius: float = 1) -> None:
        """A box with round corners."""
        (left, top), (right, bottom) = _snap((left, top)), _snap((right, bottom))
        if (place := _inside(left, top, right, bottom)) is None:
            return
        column = np.abs(_GRID[1][:, place[1]] - (left + right) / 2) - (right - left) / 2 + radius
        row = np.abs(_GRID[0][place[0]] - (top + bottom) / 2) - (bottom - top) / 2 + radius
        outside = np.sqrt(np.maximum(column, 0) ** 2 + np.maximum(row, 0) ** 2)
        self._blend(place, radius - outside - np.minimum(np.maximum(column, row), 0), color)

    def shadow(self, center: Point, width: float, height: float, alpha: float) -> None:
        """A soft ellipse."""
        x, y = _snap(center)
        if (place := _inside(x - width, y - height, x + width, y + height)) is None:
            return
        far = ((_GRID[1][:, place[1]] - x) / width) ** 2 + ((_GRID[0][place[0]] - y) / height) ** 2
        self._blend(place, 1 - far - 0.5, _SHADOW, alpha)

    def _blend(self, place: tuple[slice, slice], depth: Array, color: Color, alpha: float = 1) -> None:
        """Paints the pixels by how deep they are inside of a shape, in pixels."""
        pixels = self.pixels[place]
        cover = (np.clip(depth + 0.5, 0, 1) * alpha)[..., None]
        pixels += cover * (np.array(color, np.float32) - pixels)

    def finish(self) -> Array:
        """The image as uint8."""
        return np.rint(self.pixels).astype(np.uint8)


def _snap(point: Point) -> Point:
    """Rounds to 1/16 of a pixel."""
    return round(point[0] * 16) / 16, round(point[1] * 16) / 16


def _inside(left: float, top: float, right: float, bottom: float, margin: float = 0) -> tuple[slice, slice] | None:
    """The pixels that a shape may touch; None if there are none."""
    rows = slice(max(0, math.floor(top - margin) - 1), min(SIZE, math.ceil(bottom + margin) + 2))
    columns = slice(max(0, math.floor(left - margin) - 1), min(SIZE, math.ceil(right + margin) + 2))
    return (rows, columns) if rows.start < rows.stop and columns.start < columns.stop else None
