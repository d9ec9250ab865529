"""The options of `--from=ros2`."""

from __future__ import annotations

import dataclasses

from rlds_beam.formats.arrays.options import RawImages, raw_images_option
from rlds_beam.options import Options, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ros2Options(Options):
    """ROS 2 bags."""

    topics: str | None = option(
        None, "YAML that maps topics to step fields (rlds-beam inspect BAG proposes one)", metavar="FILE"
    )
    ros_distro: str | None = option(
        None,
        "ROS 2 distribution whose types a bag without definitions uses: humble (latest by default)",
        metavar="NAME",
    )
    raw_images: RawImages = raw_images_option()
