"""`rlds_beam.drop_in.reverb_observers`, under its documented import path."""

from rlds_beam.drop_in.reverb_observers import (
    ReverbAddEpisodeObserver,
    ReverbAddTrajectoryObserver,
    ReverbTrajectorySequenceObserver,
)

__all__ = ["ReverbAddEpisodeObserver", "ReverbAddTrajectoryObserver", "ReverbTrajectorySequenceObserver"]
