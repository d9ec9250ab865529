"""rlds-beam: RLDS datasets in, training data out, as Apache Beam pipelines.

The names below are the public core, without Beam: what an episode is and what can be done to one. They are imported
when they are first used, so that `import rlds_beam` costs nothing. The rest of the public surface is
`rlds_beam.transforms`, `rlds_beam.pipelines`, `rlds_beam.rlds_to_reverb` and `rlds_beam.reverb_observers`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlds_beam import lazy

__version__ = "0.1.0"

if TYPE_CHECKING:
    from rlds_beam.checking.options import CheckOptions as CheckOptions
    from rlds_beam.checking.report import Report as Report
    from rlds_beam.checking.verdicts import Rejection as Rejection
    from rlds_beam.checking.verdicts import Verdict as Verdict
    from rlds_beam.checking.verdicts import validate_episode as validate_episode
    from rlds_beam.episodes.episode import Episode as Episode
    from rlds_beam.episodes.keys import EpisodeKey as EpisodeKey
    from rlds_beam.errors import RldsBeamError as RldsBeamError
    from rlds_beam.output.loading import load_trajectories as load_trajectories
    from rlds_beam.reading.source import open_source as open_source
    from rlds_beam.trajectories.frames import Frames as Frames
    from rlds_beam.trajectories.frames import to_frames as to_frames
    from rlds_beam.trajectories.items import windows as windows
    from rlds_beam.trajectories.options import FrameOptions as FrameOptions
    from rlds_beam.trajectories.options import ItemOptions as ItemOptions
    from rlds_beam.trajectories.spec import trajectory_spec as trajectory_spec

_HOMES = {
    "CheckOptions": "rlds_beam.checking.options",
    "Episode": "rlds_beam.episodes.episode",
    "EpisodeKey": "rlds_beam.episodes.keys",
    "FrameOptions": "rlds_beam.trajectories.options",
    "Frames": "rlds_beam.trajectories.frames",
    "ItemOptions": "rlds_beam.trajectories.options",
    "Rejection": "rlds_beam.checking.verdicts",
    "Report": "rlds_beam.checking.report",
    "RldsBeamError": "rlds_beam.errors",
    "Verdict": "rlds_beam.checking.verdicts",
    "load_trajectories": "rlds_beam.output.loading",
    "open_source": "rlds_beam.reading.source",
    "to_frames": "rlds_beam.trajectories.frames",
    "trajectory_spec": "rlds_beam.trajectories.spec",
    "validate_episode": "rlds_beam.checking.verdicts",
    "windows": "rlds_beam.trajectories.items",
}

__all__ = [*_HOMES]
__getattr__, __dir__ = lazy.exports(__name__, _HOMES)
