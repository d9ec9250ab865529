"""The option of sources whose files may store frames as pixels."""

from __future__ import annotations

from typing import Any, Literal

from rlds_beam.options import option

RawImages = Literal["png", "raw"]


def raw_images_option() -> Any:
    """The field `raw_images` of a source's options."""
    return option("png", "how to keep frames that are stored as pixels")
