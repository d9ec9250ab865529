"""The contract of outputs, for authors of formats (docs/how_to/own_output.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlds_beam import lazy

if TYPE_CHECKING:
    from rlds_beam.output.base import Description as Description
    from rlds_beam.output.base import EarlierOutput as EarlierOutput
    from rlds_beam.output.base import FileRangeWriter as FileRangeWriter
    from rlds_beam.output.base import GlobalIndices as GlobalIndices
    from rlds_beam.output.base import MergedFile as MergedFile
    from rlds_beam.output.base import MergesRanges as MergesRanges
    from rlds_beam.output.base import Output as Output
    from rlds_beam.output.commits import RangeCommit as RangeCommit
    from rlds_beam.output.shards import EpisodeWriter as EpisodeWriter
    from rlds_beam.output.shards import ShardInfo as ShardInfo
    from rlds_beam.output.shards import ShardWriter as ShardWriter
    from rlds_beam.output.shards import WrittenFile as WrittenFile
    from rlds_beam.processing.ranges import RangeWriter as RangeWriter
    from rlds_beam.reading.plan import WorkRange as WorkRange

__getattr__, __dir__, __all__ = lazy.exports(__name__)
