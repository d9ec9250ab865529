"""`rlds_beam.drop_in.rlds_to_reverb`, under its documented import path."""

from rlds_beam.drop_in.rlds_to_reverb import (
    convert_rlds_to_trajectories as convert_rlds_to_trajectories,
)
from rlds_beam.drop_in.rlds_to_reverb import create_trajectory_data_spec as create_trajectory_data_spec
from rlds_beam.drop_in.rlds_to_reverb import get_rlds_step_features as get_rlds_step_features
from rlds_beam.drop_in.rlds_to_reverb import push_rlds_to_reverb as push_rlds_to_reverb
