"""Options of the keep_ranges output."""

from __future__ import annotations

import dataclasses

from rlds_beam.options import Options, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class KeepRangesOptions(Options):
    """keep_ranges output."""

    velocity: str = option("action_dict/joint_velocity", "field of the commanded joint velocities", metavar="FIELD")
    episode_name: str = option(
        "{episode_metadata/recording_folderpath}--{episode_metadata/file_path}",
        "name of an episode in the file: a template with episode fields, or key, in braces",
        metavar="TEXT",
    )
