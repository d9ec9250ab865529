"""Encodes pixels as JPEG and PNG."""

from __future__ import annotations

import functools

import numpy as np

from rlds_beam.typing import Array


def encode_jpeg(images: Array, quality: int = 95) -> list[bytes]:
    """Encodes uint8 [T, H, W, C] (C is 1 or 3) as T JPEGs with 4:2:0 chroma, like tf.io.encode_jpeg.

    Raises:
      ValueError: the dtype or number of channels is unsupported.
    """
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] not in (1, 3):
        raise ValueError(f"JPEG needs uint8 images with 1 or 3 channels, not {images.dtype}{images.shape[1:]}")
    import simplejpeg

    color = images.shape[-1] == 3
    return [
        simplejpeg.encode_jpeg(
            image,
            quality=quality,
            colorspace="RGB" if color else "GRAY",
            colorsubsampling="420" if color else "Gray",
        )
        for image in np.ascontiguousarray(images)
    ]


def encode_png(images: Array) -> list[bytes]:
    """Encodes uint8 or uint16 [T, H, W, C] (C is 1, 3, or 4) as T PNGs."""
    import imagecodecs

    return [
        imagecodecs.png_encode(image[..., 0] if image.shape[-1] == 1 else image)
        for image in np.ascontiguousarray(images)
    ]


@functools.lru_cache(maxsize=64)
def encode_zeros(shape: tuple[int, ...], dtype: str, encoding: str) -> bytes:
    """Encodes an image of zeros of shape (height, width, channels) as PNG or JPEG."""
    zeros = np.zeros((1, *shape), dtype)
    return (encode_jpeg(zeros) if encoding == "jpeg" else encode_png(zeros))[0]
