"""Small JPEGs of an episode's images, and curves as pixels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rlds_beam.episodes.episode import Episode
from rlds_beam.images.thumbnails import (
    Thumbnail,
    image_of,
    is_image,
    row_of,
    small_pixels,
    spread,
    stack_rows,
    thumbnail,
)
from rlds_beam.typing import Array
from rlds_beam.viewing.curves import Curve


def cameras_of(episode: Episode) -> list[str]:
    """The paths of the step fields that hold images, sorted."""
    return sorted(path for path, column in episode.steps.items() if is_image(column))


def frames_of(
    episode: Episode, count: int, height: int = 96, most: int | None = None
) -> dict[str, list[tuple[int, Thumbnail]]]:
    """Thumbnails of each camera: (step, JPEG) for up to `count` steps, evenly spaced from the first to the last.

    Args:
      most: the maximum number of cameras; None for all.
    """
    steps = spread(len(episode), count)
    return {
        path: [(step, thumbnail(image_of(episode.steps[path], step), height)) for step in steps]
        for path in cameras_of(episode)[:most]
    }


def strip(episode: Episode, count: int, height: int, cameras: Sequence[str] | None = None) -> Array:
    """One picture of an episode: a row for each camera, a column for each of `count` steps.

    Returns:
      uint8 [H, W, 3]; all images of a row have `height` rows. Empty if the episode has no images.
    """
    steps = spread(len(episode), count)
    rows = []
    for path in (cameras_of(episode) if cameras is None else cameras) if steps else ():
        column = episode.steps[path]
        rows.append(row_of([small_pixels(image_of(column, step), height)[0] for step in steps], height))
    return stack_rows(rows)


def faults_of(frames: Mapping[str, Sequence[tuple[int, Thumbnail]]]) -> list[str]:
    """The faults of thumbnails: `observation/image, step 3: the JPEG is cut short`."""
    return [f"{path}, step {step}: {one.fault}" for path, some in frames.items() for step, one in some if one.fault]


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
