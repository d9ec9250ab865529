"""Frames that files store as pixels, as PNGs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np

from rlds_beam.episodes.schema import Field
from rlds_beam.images.encoded_images import EncodedImages

Array: TypeAlias = "np.ndarray[Any, Any]"


def as_images(field: Field, raw_images: str) -> Field:
    """The field of frames of pixels (uint8 or uint16 [H, W, C], stored as bytes) as PNGs, if `raw_images` is `png`."""
    is_raw = field.dtype in ("uint8", "uint16") and field.encoding == "bytes" and len(field.shape) == 3
    return dataclasses.replace(field, encoding="png", feature="Image") if is_raw and raw_images == "png" else field


def as_png(pixels: Array, field: Field) -> EncodedImages:
    """Frames [T, H, W, C] as PNGs."""
    return EncodedImages(pngs([pixels]), field.shape, field.dtype, "png")


def pngs(pieces: Iterable[Array]) -> Array:
    """Frames as PNGs, fast rather than small. Holds the pixels of one piece at a time.

    Args:
      pieces: uint8 or uint16 [any, H, W, C], one after the other.

    Returns:
      object [T], bytes.
    """
    import imagecodecs

    rows: list[bytes] = []
    for piece in pieces:
        for image in np.ascontiguousarray(piece):
            rows.append(bytes(imagecodecs.png_encode(image if image.shape[-1] > 1 else image[..., 0], level=1)))
    return np.fromiter(rows, object, len(rows))
