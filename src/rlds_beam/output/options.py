"""What is written: the options."""

from __future__ import annotations

import dataclasses

from rlds_beam.options import Options, option
from rlds_beam.trajectories.options import Images


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputOptions(Options):
    """What is written."""

    to: str = option(
        "trajectories", "trajectories, columns, rlds, numpy, d3rlpy, minari, or module:Class (an output of your own)"
    )
    images: Images = option("raw", "how images are written: decoded, or as JPEG")
    keep: tuple[str, ...] = option(
        (), "text, fields of the episode and episode_key, to carry in each item beside the trajectory (comma separated)"
    )
