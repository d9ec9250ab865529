"""Options of the NPZ source."""

from __future__ import annotations

import dataclasses

from rlds_beam.formats.arrays.options import RawImages, raw_images_option
from rlds_beam.options import Options, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class NpzOptions(Options):
    """NumPy's .npz files."""

    profile: str | None = option(
        None, "layout of the files: exorl, d4rl, ogbench, or a YAML file (recognized by default)", metavar="NAME"
    )
    raw_images: RawImages = raw_images_option()
