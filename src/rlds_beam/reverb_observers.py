"""`rlds_beam.drop_in.reverb_observers`, under its documented import path."""

from rlds_beam.drop_in.reverb_observers import ReverbAddEpisodeObserver as ReverbAddEpisodeObserver
from rlds_beam.drop_in.reverb_observers import ReverbAddTrajectoryObserver as ReverbAddTrajectoryObserver
from rlds_beam.drop_in.reverb_observers import ReverbTrajectorySequenceObserver as ReverbTrajectorySequenceObserver
