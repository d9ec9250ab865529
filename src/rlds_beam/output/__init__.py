"""The contract of outputs, for authors of formats (docs/how_to/own_output.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlds_beam import lazy

if TYPE_CHECKING:
    from rlds_beam.output.base import Description as Description
    from rlds_beam.output.base import FileRangeWriter as FileRangeWriter
    from rlds_beam.output.base import Output as Output
    from rlds_beam.output.capabilities import CostHint as CostHint
    from rlds_beam.output.capabilities import CostHints as CostHints
    from rlds_beam.output.capabilities import GlobalIndices as GlobalIndices
    from rlds_beam.output.capabilities import IgnoresValues as IgnoresValues
    from rlds_beam.output.capabilities import ItemCounts as ItemCounts
    from rlds_beam.output.capabilities import LearnerColumns as LearnerColumns
    from rlds_beam.output.capabilities import MergedFile as MergedFile
    from rlds_beam.output.capabilities import MergesRanges as MergesRanges
    from rlds_beam.output.capabilities import MetadataFiles as MetadataFiles
    from rlds_beam.output.capabilities import Notes as Notes
    from rlds_beam.output.capabilities import ReportsUnusedSteps as ReportsUnusedSteps
    from rlds_beam.output.capabilities import SeveralFiles as SeveralFiles
    from rlds_beam.output.capabilities import SeveralSplits as SeveralSplits
    from rlds_beam.output.capabilities import Sidecars as Sidecars
    from rlds_beam.output.capabilities import SizePrediction as SizePrediction
    from rlds_beam.output.capabilities import StoredNames as StoredNames
    from rlds_beam.output.capabilities import WholeShards as WholeShards
    from rlds_beam.output.capabilities import WithoutMeaning as WithoutMeaning
    from rlds_beam.output.commits import RangeCommit as RangeCommit
    from rlds_beam.output.shards import EpisodeWriter as EpisodeWriter
    from rlds_beam.output.shards import ShardInfo as ShardInfo
    from rlds_beam.output.shards import ShardWriter as ShardWriter
    from rlds_beam.output.shards import WrittenFile as WrittenFile
    from rlds_beam.processing.ranges import RangeWriter as RangeWriter
    from rlds_beam.reading.plan import WorkRange as WorkRange

_HOMES = {
    "CostHint": "rlds_beam.output.capabilities",
    "CostHints": "rlds_beam.output.capabilities",
    "Description": "rlds_beam.output.base",
    "EpisodeWriter": "rlds_beam.output.shards",
    "FileRangeWriter": "rlds_beam.output.base",
    "GlobalIndices": "rlds_beam.output.capabilities",
    "IgnoresValues": "rlds_beam.output.capabilities",
    "ItemCounts": "rlds_beam.output.capabilities",
    "LearnerColumns": "rlds_beam.output.capabilities",
    "MergedFile": "rlds_beam.output.capabilities",
    "MergesRanges": "rlds_beam.output.capabilities",
    "MetadataFiles": "rlds_beam.output.capabilities",
    "Notes": "rlds_beam.output.capabilities",
    "Output": "rlds_beam.output.base",
    "RangeCommit": "rlds_beam.output.commits",
    "RangeWriter": "rlds_beam.processing.ranges",
    "ReportsUnusedSteps": "rlds_beam.output.capabilities",
    "SeveralFiles": "rlds_beam.output.capabilities",
    "SeveralSplits": "rlds_beam.output.capabilities",
    "ShardInfo": "rlds_beam.output.shards",
    "ShardWriter": "rlds_beam.output.shards",
    "Sidecars": "rlds_beam.output.capabilities",
    "SizePrediction": "rlds_beam.output.capabilities",
    "StoredNames": "rlds_beam.output.capabilities",
    "WholeShards": "rlds_beam.output.capabilities",
    "WithoutMeaning": "rlds_beam.output.capabilities",
    "WorkRange": "rlds_beam.reading.plan",
    "WrittenFile": "rlds_beam.output.shards",
}

__all__ = [*_HOMES]
__getattr__, __dir__ = lazy.exports(__name__, _HOMES)
