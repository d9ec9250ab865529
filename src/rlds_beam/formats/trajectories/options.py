"""Options of the trajectories output."""

from __future__ import annotations

import dataclasses

from rlds_beam.options import option
from rlds_beam.output.options import ImageOptions
from rlds_beam.trajectories.options import FrameOptions, ItemOptions


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrajectoryOptions(FrameOptions, ItemOptions, ImageOptions):
    """What an item stores besides the trajectory."""

    keep: tuple[str, ...] = option(
        (), "text, episode fields, or episode_key to store in each item (comma separated)", metavar="FIELDS"
    )
