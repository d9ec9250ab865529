"""Outputs that merge the files of all ranges at the end, or number their frames and episodes."""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from rlds_beam.errors import RldsBeamError
from rlds_beam.output import commits
from rlds_beam.output.base import Output
from rlds_beam.output.commits import RangeCommit
from rlds_beam.output.plans import add_files
from rlds_beam.output.removal import remove_parts
from rlds_beam.reading.plan import WorkRange
from rlds_beam.text import count

if TYPE_CHECKING:
    from rlds_beam.output.shards import ShardInfo


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

    The indices are known only when all ranges are finished. Then each range gets its own and writes its final files.
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
        """Writes a range's files with their indices, in any worker; returns its commit with these files.

        Files that the commit no longer names are then removed. It may be killed and run again: equal indices must give
        equal bytes.
        """

    def replacing_files(self, commit: RangeCommit, indices: Any) -> Sequence[str]:
        """The names of the new files that `finish_range` writes, if any."""
        del commit, indices
        return ()


def with_ranges(output: Output, ranges: Sequence[WorkRange]) -> Output:
    """A copy of the output that knows all ranges of the plan."""
    return output.with_ranges(ranges) if isinstance(output, GlobalIndices) else output


@dataclasses.dataclass(frozen=True)
class RangeFinisher:
    """Completes the ranges' files when all are finished (`GlobalIndices.finish_range`). Picklable."""

    output: GlobalIndices
    ranges: tuple[WorkRange, ...]

    def commits(self) -> list[tuple[RangeCommit, Any]]:
        """The commit of each finished range, and the indices that its files need.

        Raises:
          RldsBeamError: the output did not return the indices of each range.
        """
        committed = commits.read_commits(self.output.directory)
        done = [committed[str(work)] for work in self.ranges if str(work) in committed]
        if len(done) < len(self.ranges):
            return []  # reported by `manifest.commit_dataset`
        indices = self.output.global_indices(done)
        if len(indices) != len(done):
            raise self._wrong(f"global_indices returned {len(indices)} entries for {count(len(done), 'range')}")
        numbered = list(zip(done, indices, strict=True))
        if files := [file for entry in numbered for file in self.output.replacing_files(*entry)]:
            add_files(self.output.directory, files)  # the plan names them before they exist
        return numbered

    def finish(self, commit: RangeCommit, numbers: Any) -> None:
        """Completes a range's files and commits it again with their new checksums.

        Files that it no longer has are removed afterward.

        Raises:
          RldsBeamError: the output did not return the range's new commit.
        """
        finished = commit
        if commit.numbers != numbers:
            # A runner may repeat a range that is already completed and whose first files are gone.
            finished = commits.read_again(self.output.directory, commit)
        if finished.numbers != numbers:
            finished = self.output.finish_range(finished, numbers)
            if not isinstance(finished, RangeCommit):
                raise self._wrong(f"finish_range returned {finished!r:.60}, expected a RangeCommit")
            report = {**finished.report, "bytes_written": sum(file.shard.bytes for file in finished.kept)}
            finished = dataclasses.replace(finished, numbers=numbers, report=report)
            commits.write_commit(self.output.directory, finished)
        written = self.output.files(self._works[commit.range])
        remove_parts(self.output.directory, {*written} - {*finished.names})

    def _wrong(self, what: str) -> RldsBeamError:
        return RldsBeamError(
            f"the output {type(self.output).__qualname__}: its {what}; see rlds_beam.output.GlobalIndices"
        )

    @functools.cached_property
    def _works(self) -> dict[str, WorkRange]:
        return {str(work): work for work in self.ranges}
