"""SCOPE-RL's SyntheticDataset and LoggedDataset."""

from rlds_beam.drop_in.scope_rl.logged_dataset import LoggedDataset, MultipleLoggedDataset
from rlds_beam.drop_in.scope_rl.synthetic_dataset import SyntheticDataset

__all__ = ["LoggedDataset", "MultipleLoggedDataset", "SyntheticDataset"]
