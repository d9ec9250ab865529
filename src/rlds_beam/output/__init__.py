"""The contract of outputs, for authors of formats (docs/how_to/own_output.md)."""

from __future__ import annotations

from rlds_beam.output.base import (
    Description,
    GlobalIndices,
    Output,
)
from rlds_beam.output.commits import EarlierOutput, RangeCommit
from rlds_beam.output.shards import EpisodeWriter, MergedFile, ShardInfo, ShardWriter, WrittenFile
from rlds_beam.processing.ranges import RangeWriter
from rlds_beam.reading.base import WorkRange

__all__ = [
    "Description",
    "EarlierOutput",
    "EpisodeWriter",
    "GlobalIndices",
    "MergedFile",
    "Output",
    "RangeCommit",
    "RangeWriter",
    "ShardInfo",
    "ShardWriter",
    "WorkRange",
    "WrittenFile",
]
