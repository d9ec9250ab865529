"""Pixels as JPEGs and PNGs."""

from __future__ import annotations

import functools
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any]"


def encode_jpeg(images: Array, quality: int = 95) -> list[bytes]:
    """uint8 [T, H, W, C] (C is 1 or 3) as T JPEGs, chroma halved as tf.io.encode_jpeg does.

    Raises:
      ValueError: another dtype, or another number of channels.
    """
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] not in (1, 3):
        raise ValueError(f"a JPEG holds uint8 images of 1 or 3 channels, not {images.dtype}{images.shape[1:]}")
    import simplejpeg

    colour = images.shape[-1] == 3
    return [
        simplejpeg.encode_jpeg(
            image,
            quality=quality,
            colorspace="RGB" if colour else "GRAY",
            colorsubsampling="420" if colour else "Gray",
        )
        for image in np.ascontiguousarray(images)
    ]


def encode_png(images: Array) -> list[bytes]:
    """uint8 or uint16 [T, H, W, C] (C is 1, 3 or 4) as T PNGs."""
    import imagecodecs

    return [
        imagecodecs.png_encode(image[..., 0] if image.shape[-1] == 1 else image)
        for image in np.ascontiguousarray(images)
    ]


@functools.lru_cache(maxsize=64)
def encode_zeros(shape: tuple[int, ...], dtype: str, encoding: str) -> bytes:
    """An image of zeros, (height, width, channels), as PNG or JPEG."""
    zeros = np.zeros((1, *shape), dtype)
    return (encode_jpeg(zeros) if encoding == "jpeg" else encode_png(zeros))[0]
