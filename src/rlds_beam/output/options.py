"""The options for images that several outputs share."""

from __future__ import annotations

import dataclasses
from typing import Literal

from rlds_beam.options import Options, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageOptions(Options):
    """Options for images."""

    images: Literal["raw", "jpeg"] = option("raw", "decoded, or as JPEGs")
