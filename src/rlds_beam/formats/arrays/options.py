"""Options of sources of arrays."""

from __future__ import annotations

import dataclasses
from typing import Literal

from rlds_beam.options import Options, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class RawImagesOptions(Options):
    """The option of sources whose files may store frames as pixels."""

    raw_images: Literal["png", "raw"] = option("png", "how to keep frames that are stored as pixels")
