"""SCOPE-RL's SyntheticDataset and LoggedDataset. Public import path of `rlds_beam.drop_in.scope_rl`."""

from typing import TYPE_CHECKING

from rlds_beam import lazy

if TYPE_CHECKING:
    from rlds_beam.drop_in.scope_rl.logged_dataset import LoggedDataset as LoggedDataset
    from rlds_beam.drop_in.scope_rl.logged_dataset import MultipleLoggedDataset as MultipleLoggedDataset
    from rlds_beam.drop_in.scope_rl.synthetic_dataset import SyntheticDataset as SyntheticDataset

__getattr__, __dir__, __all__ = lazy.exports(__name__)
