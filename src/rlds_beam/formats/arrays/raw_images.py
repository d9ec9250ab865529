"""Frames that files store as pixels: the option `--raw_images`, and PNGs of them."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, TypeAlias

import numpy as np

from rlds_beam.episodes.schema import Field
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.options import Options, option

Array: TypeAlias = "np.ndarray[Any, Any]"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RawImagesOptions(Options):
    """The option of sources whose files may store frames as pixels."""

    raw_images: Literal["png", "raw"] = option("png", "how to keep frames that are stored as pixels")


def as_images(field: Field, raw_images: str) -> Field:
    """The field of frames of pixels (uint8 or uint16 [H, W, C], stored as bytes) as PNGs, if `raw_images` is `png`."""
    is_raw = field.dtype in ("uint8", "uint16") and field.encoding == "bytes" and len(field.shape) == 3
    return dataclasses.replace(field, encoding="png", feature="Image") if is_raw and raw_images == "png" else field


def as_png(pixels: Array, field: Field) -> EncodedImages:
    """Frames as PNGs, fast rather than small."""
    import imagecodecs

    images = (imagecodecs.png_encode(one if one.shape[-1] > 1 else one[..., 0], level=1) for one in pixels)
    return EncodedImages(np.fromiter(map(bytes, images), object, len(pixels)), field.shape, field.dtype, "png")
