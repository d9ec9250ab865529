"""TF-Agents trajectories: frames, items, their spec, and records."""

from typing import TYPE_CHECKING

from rlds_beam import lazy

if TYPE_CHECKING:
    from rlds_beam.formats.trajectories.loading import decoder as decoder
    from rlds_beam.formats.trajectories.loading import load_trajectories as load_trajectories

__all__ = ["decoder", "load_trajectories"]
__getattr__, __dir__ = lazy.exports(
    __name__,
    {
        "decoder": "rlds_beam.formats.trajectories.loading",
        "load_trajectories": "rlds_beam.formats.trajectories.loading",
    },
)
