"""rlds-beam: RLDS datasets in, training data out, as Apache Beam pipelines.

The names below are the core: what an episode is and what can be done to one, without Beam. They
are imported when they are first used, so that `import rlds_beam` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from rlds_beam.checking import Rejection as Rejection
    from rlds_beam.checking import Verdict as Verdict
    from rlds_beam.checking import validate_episode as validate_episode
    from rlds_beam.episode import Episode as Episode
    from rlds_beam.errors import RldsBeamError as RldsBeamError
    from rlds_beam.frames import Frames as Frames
    from rlds_beam.frames import to_frames as to_frames
    from rlds_beam.items import windows as windows
    from rlds_beam.keys import EpisodeKey as EpisodeKey
    from rlds_beam.options import CheckOptions as CheckOptions
    from rlds_beam.options import FrameOptions as FrameOptions
    from rlds_beam.options import ItemOptions as ItemOptions
    from rlds_beam.report import Report as Report
    from rlds_beam.source import open_source as open_source
    from rlds_beam.trajectories import load_trajectories as load_trajectories
    from rlds_beam.trajectory_spec import trajectory_spec as trajectory_spec

_HOME = {
    "CheckOptions": "options",
    "Episode": "episode",
    "EpisodeKey": "keys",
    "FrameOptions": "options",
    "Frames": "frames",
    "ItemOptions": "options",
    "Rejection": "checking",
    "Report": "report",
    "RldsBeamError": "errors",
    "Verdict": "checking",
    "load_trajectories": "trajectories",
    "open_source": "source",
    "to_frames": "frames",
    "trajectory_spec": "trajectory_spec",
    "validate_episode": "checking",
    "windows": "items",
}

__all__ = [*_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'rlds_beam' has no attribute {name!r}")
    return getattr(importlib.import_module(f"rlds_beam.{_HOME[name]}"), name)
