"""Public import path of `rlds_beam.drop_in.reverb_observers`."""

from rlds_beam.drop_in.reverb_observers import (
    ReverbAddEpisodeObserver,
    ReverbAddTrajectoryObserver,
    ReverbTrajectorySequenceObserver,
)

__all__ = ["ReverbAddEpisodeObserver", "ReverbAddTrajectoryObserver", "ReverbTrajectorySequenceObserver"]
