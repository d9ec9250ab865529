"""Frames that files store as pixels, as PNGs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np

from rlds_beam.episodes.schema import Field
from rlds_beam.typing import Array


def as_images(field: Field, raw_images: str) -> Field:
    """The field of frames of pixels (uint8 or uint16 [H, W, C], stored as bytes) as PNGs, if `raw_images` is `png`."""
    is_raw = field.dtype in ("uint8", "uint16") and field.encoding == "bytes" and len(field.shape) == 3
    return dataclasses.replace(field, encoding="png", feature="Image") if is_raw and raw_images == "png" else field


def pngs(pieces: Iterable[Array]) -> Array:
    """Frames as PNGs, fast rather than small. Holds the pixels of one piece at a time.

    Args:
      pieces: uint8 or uint16 [any, H, W, C], one after the other.

    Returns:
      object [T], bytes.
    """
    rows = [png(frame) for piece in pieces for frame in piece]
    return np.fromiter(rows, object, len(rows))


def png(frame: Array) -> bytes:
    """A frame, uint8 or uint16 [H, W, C], as a PNG."""
    import imagecodecs

    pixels = np.ascontiguousarray(frame if frame.shape[-1] > 1 else frame[..., 0])
    return bytes(imagecodecs.png_encode(pixels, level=1))
