"""TF-Agents trajectories: frames, items, their spec, and records."""

from typing import TYPE_CHECKING

from rlds_beam import lazy

if TYPE_CHECKING:
    from rlds_beam.formats.trajectories.loaders import decoder as decoder
    from rlds_beam.formats.trajectories.loaders import load_trajectories as load_trajectories
    from rlds_beam.trajectories.frames import Frames as Frames
    from rlds_beam.trajectories.frames import to_frames as to_frames
    from rlds_beam.trajectories.items import Items as Items
    from rlds_beam.trajectories.items import windows as windows
    from rlds_beam.trajectories.options import FrameOptions as FrameOptions
    from rlds_beam.trajectories.options import ItemOptions as ItemOptions
    from rlds_beam.trajectories.spec import TrajectorySpec as TrajectorySpec
    from rlds_beam.trajectories.spec import trajectory_spec as trajectory_spec

__getattr__, __dir__, __all__ = lazy.exports(__name__)
