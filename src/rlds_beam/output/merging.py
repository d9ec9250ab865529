"""Outputs that do more when all ranges are finished: they merge the ranges' files, or number what is in them."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from rlds_beam.output.base import Output

if TYPE_CHECKING:
    from rlds_beam.output.commits import RangeCommit
    from rlds_beam.output.shards import ShardInfo
    from rlds_beam.reading.plan import WorkRange


class MergesRanges(Output):
    """`complete` merges the ranges' files into a few large files.

    It returns a list of `MergedFile` as `merged`; these replace the ranges' files, which are then removed. Until then
    the output takes twice its space.
    """


class MergedFile(NamedTuple):
    """A file merged from the files of a split's ranges.

    Attributes:
      file: the name in the output directory.
      split: the split.
      shard: the content of the file.
    """

    file: str
    split: str
    shard: ShardInfo


class GlobalIndices(Output):
    """Files contain, or are named by, indices that count through the whole dataset.

    The indices are known only when all ranges are finished. Then each range gets its indices and writes them into its
    files in place, or writes new files that replace these.
    """

    def with_ranges(self, ranges: Sequence[WorkRange]) -> Self:
        """A copy that knows all ranges of the plan; for file names that depend on other splits' ranges."""
        del ranges
        return self

    @abc.abstractmethod
    def global_indices(self, commits: Sequence[RangeCommit]) -> list[Any]:
        """The indices that each range's files need, as JSON."""

    @abc.abstractmethod
    def finish_range(self, commit: RangeCommit, indices: Any) -> RangeCommit:
        """Writes the indices into a range's files, in any worker; returns its commit with the new checksums.

        Alternatively writes new files (`replacing_files`) and returns a commit that names them; the range's old files
        are then removed. It may be killed and run again: equal indices must give equal bytes.
        """

    def replacing_files(self, indices: Any) -> Sequence[str]:
        """The names of new files that `finish_range` writes to replace a range's files, if any."""
        del indices
        return ()


def with_ranges(output: Output, ranges: Sequence[WorkRange]) -> Output:
    """A copy of the output that knows all ranges of the plan."""
    return output.with_ranges(ranges) if isinstance(output, GlobalIndices) else output
