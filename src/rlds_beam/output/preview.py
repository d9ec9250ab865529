"""The preview of a written dataset, which its README.md shows: frames of the first episodes of its first ranges."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from rlds_beam.episodes.episode import Column
from rlds_beam.images.thumbnails import GAP, find_image, join_pictures, small_pixels, spread, stack_rows, thumbnail
from rlds_beam.typing import Array

PREVIEW = "preview.jpg"
SHOWN = f"![The cameras of the first episodes]({PREVIEW})"
"""The line of README.md that shows it."""

_EPISODES, _CAMERAS, _FRAMES, _HEIGHT = 3, 3, 6, 96
_STRIP_HEIGHT = (_HEIGHT + GAP) * _CAMERAS
"""Maximum height of a strip."""

RANGES = 2 * _EPISODES
"""The first ranges of a split, of which `make_strip` is used: more than are shown, as some may have no episodes."""


def make_strip(cameras: Sequence[Column]) -> bytes:
    """The frames of an episode as a JPEG: a row for each camera; empty without images.

    A damaged image becomes a crossed gray rectangle.
    """
    rows = []
    for column in cameras[:_CAMERAS]:
        if steps := spread(len(column), _FRAMES):
            pictures = [_picture(find_image(column, step)) for step in steps]
            rows.append(join_pictures(pictures, max(map(len, pictures))))
    return bytes(thumbnail(stack_rows(rows), _STRIP_HEIGHT)) if rows else b""


def _picture(image: bytes | Array) -> Array:
    """An image of at most `_HEIGHT` rows, uint8 [h, w, 3]; a small one is enlarged by a whole factor."""
    pixels = small_pixels(image, _HEIGHT)[0]
    factor = max(1, _HEIGHT // len(pixels))
    return pixels.repeat(factor, axis=0).repeat(factor, axis=1)


def join_previews(parts: Iterable[bytes]) -> bytes:
    """The preview: the first few ranges that are not empty, below each other; empty if there are none."""
    first = itertools.islice((part for part in parts if part), _EPISODES)
    rows = [small_pixels(part, _STRIP_HEIGHT)[0] for part in first]
    return bytes(thumbnail(stack_rows(rows), (_STRIP_HEIGHT + GAP) * _EPISODES)) if rows else b""
