"""Where a robot moves: the options."""

from __future__ import annotations

import dataclasses

from rlds_beam.options import Options, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class KeepRangesOptions(Options):
    """Where a robot moves."""

    velocity: str = option(
        "action_dict/joint_velocity", "the field of the joint velocities that were commanded", metavar="FIELD"
    )
    episode_name: str = option(
        "{episode_metadata/recording_folderpath}--{episode_metadata/file_path}",
        "the name of an episode in the file: a text with fields of the episode, or key, in braces",
        metavar="TEXT",
    )
