"""Options of the HDF5 source."""

from __future__ import annotations

import dataclasses

from rlds_beam.formats.arrays.options import RawImages, raw_images_option
from rlds_beam.options import Options, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hdf5Options(Options):
    """HDF5 files of robots."""

    profile: str | None = option(
        None,
        "layout of the files: aloha, robomimic, libero, isaaclab, robotwin, xpolicylab, robomind, droid, agibot, or "
        "a YAML file (recognized by default)",
        metavar="NAME",
    )
    raw_images: RawImages = raw_images_option()
