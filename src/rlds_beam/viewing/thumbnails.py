"""Small JPEGs of an episode's images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
