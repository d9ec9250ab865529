"""Converts the images of a trajectory leaf to pixels or JPEGs, including empty ones (`columns.ZERO_IMAGE`)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_beam.images.encoded_images import ZERO_IMAGE, EncodedImages
from rlds_beam.images.encoding import encode_jpeg
from rlds_beam.images.headers import JPEG_END, jpeg_start
from rlds_beam.images.stored import StoredImages

if TYPE_CHECKING:
    from rlds_beam.episodes.episode import Column
    from rlds_beam.trajectories.spec import SpecLeaf

Array = np.ndarray[Any, Any]


def pixels_of(images: EncodedImages, leaf: SpecLeaf) -> Array:
    """Decodes images to [n, H, W, C] in the leaf's dtype; an empty image becomes zeros.

    Raises:
      BadEpisode: an image cannot be decoded, or its size is not the leaf's.
    """
    there = images.data != ZERO_IMAGE
    if there.all():
        return images.decode(leaf.path)
    pixels = np.zeros((len(images), *leaf.shape), leaf.dtype)
    if there.any():
        pixels[there] = images[there].decode(leaf.path)
    return pixels


def jpegs_of(column: Column, leaf: SpecLeaf, quality: int) -> list[bytes | memoryview]:
    """Converts the images of a column to JPEGs; JPEGs of the leaf's shape are passed on without a copy.

    Args:
      column: uint8 [n, H, W, C], or encoded images.
      leaf: the leaf, of shape (H, W, C) with 1 or 3 channels.
      quality: the quality, 0 to 100, of images that are not JPEGs already.

    Raises:
      BadEpisode: an image cannot be decoded, or its size is not the leaf's.
    """
    if not isinstance(column, EncodedImages):
        return [*encode_jpeg(column, quality)]
    jpegs: list[Any] = column.pieces() if isinstance(column, StoredImages) else column.data.tolist()
    others = []
    for step in _not_known(column, leaf.shape):
        image = column.image(step)
        if image == ZERO_IMAGE:
            jpegs[step] = zero_jpeg(leaf.shape, quality)
        elif not _is_jpeg_of(image, leaf.shape):
            others.append(step)
    if others:
        for step, jpeg in zip(others, encode_jpeg(pixels_of(column[others], leaf), quality), strict=True):
            jpegs[step] = jpeg
    return jpegs


def _not_known(images: EncodedImages, shape: tuple[int, ...]) -> Sequence[int]:
    """The steps whose images may not be JPEGs of the shape: those that start differently from the first one, or all."""
    if not len(images):
        return ()
    first, start = images.image(0), _starts.get(shape, b"")
    if not (start and first.startswith(start)):
        start = jpeg_start(first) if _is_jpeg_of(first, shape) else b""
        _starts[shape] = start
    return images.unlike(start, JPEG_END) if start else range(len(images))


_starts: dict[tuple[int, ...], bytes] = {}
"""The first bytes of the last JPEG of each shape; a camera's JPEGs start alike."""


@functools.cache
def zero_jpeg(shape: tuple[int, ...], quality: int) -> bytes:
    """A JPEG of zeros."""
    return encode_jpeg(np.zeros((1, *shape), np.uint8), quality)[0]


def _is_jpeg_of(data: bytes, shape: tuple[int, ...]) -> bool:
    if not data.startswith(b"\xff\xd8\xff"):
        return False
    import simplejpeg

    try:
        height, width, colorspace, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError:
        return False
    channels = {"Gray": 1, "RGB": 3, "YCbCr": 3}.get(colorspace)
    return (height, width, channels) == shape
