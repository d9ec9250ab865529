"""Options of zarr."""

from __future__ import annotations

import dataclasses
from typing import Literal

from rlds_beam.formats.arrays.options import LastStep, RawImages, last_step_option, raw_images_option
from rlds_beam.options import Options, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class ZarrOptions(Options):
    """Options for zarr."""

    compressor: Literal["lz4", "zstd"] = option("lz4", "Blosc compressor: lz4 is fast, zstd is small")
    images: Literal["blosc", "jpegxl"] = option("blosc", "images by the same compressor, or as lossless JPEG XL")
    last_step: LastStep | None = last_step_option()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ZarrSourceOptions(Options):
    """Replay buffers."""

    raw_images: RawImages = raw_images_option()
