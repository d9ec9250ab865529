"""Public import path of `rlds_beam.drop_in.rlds_to_reverb`."""

from rlds_beam.drop_in.rlds_to_reverb import (
    convert_rlds_to_trajectories,
    create_trajectory_data_spec,
    get_rlds_step_features,
    push_rlds_to_reverb,
)

__all__ = [
    "convert_rlds_to_trajectories",
    "create_trajectory_data_spec",
    "get_rlds_step_features",
    "push_rlds_to_reverb",
]
