"""TF-Agents trajectories: frames, items, their spec, and records."""

from typing import TYPE_CHECKING

from rlds_beam import lazy

if TYPE_CHECKING:
    from rlds_beam.formats.trajectories.loading import decoder as decoder
    from rlds_beam.formats.trajectories.loading import load_trajectories as load_trajectories
    from rlds_beam.trajectories.frames import Frames as Frames
    from rlds_beam.trajectories.frames import to_frames as to_frames
    from rlds_beam.trajectories.items import Items as Items
    from rlds_beam.trajectories.items import windows as windows
    from rlds_beam.trajectories.options import FrameOptions as FrameOptions
    from rlds_beam.trajectories.options import ItemOptions as ItemOptions
    from rlds_beam.trajectories.spec import TrajectorySpec as TrajectorySpec
    from rlds_beam.trajectories.spec import trajectory_spec as trajectory_spec

__all__ = [
    "FrameOptions",
    "Frames",
    "ItemOptions",
    "Items",
    "TrajectorySpec",
    "decoder",
    "load_trajectories",
    "to_frames",
    "trajectory_spec",
    "windows",
]
__getattr__, __dir__ = lazy.exports(
    __name__,
    {
        "FrameOptions": "rlds_beam.trajectories.options",
        "Frames": "rlds_beam.trajectories.frames",
        "ItemOptions": "rlds_beam.trajectories.options",
        "Items": "rlds_beam.trajectories.items",
        "TrajectorySpec": "rlds_beam.trajectories.spec",
        "decoder": "rlds_beam.formats.trajectories.loading",
        "load_trajectories": "rlds_beam.formats.trajectories.loading",
        "to_frames": "rlds_beam.trajectories.frames",
        "trajectory_spec": "rlds_beam.trajectories.spec",
        "windows": "rlds_beam.trajectories.items",
    },
)
