"""Completes the ranges' files with indices that are known only at the end (`GlobalIndices`)."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from rlds_beam import storage
from rlds_beam.errors import RldsBeamError
from rlds_beam.output import commits
from rlds_beam.output.checksums import checksum_of
from rlds_beam.output.commits import RangeCommit
from rlds_beam.output.merging import GlobalIndices
from rlds_beam.output.plans import add_files
from rlds_beam.output.removing import remove_parts
from rlds_beam.reading.plan import WorkRange
from rlds_beam.text import count


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
            raise self._wrong(f"global_indices returned {len(indices)} entries for {count(len(done), 'part')}")
        numbered = list(zip(done, indices, strict=True))
        if files := [file for _, numbers in numbered for file in self.output.replacing_files(numbers)]:
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
            now = commits.read_again(self.output.directory, commit)
            finished = now
            if now.numbers != numbers:
                finished = dataclasses.replace(self._finish(now, numbers), numbers=numbers)
                commits.write_commit(self.output.directory, finished)
        written = self.output.files(self._works[commit.range])
        remove_parts(self.output.directory, {*written} - {*finished.names})

    def _finish(self, commit: RangeCommit, numbers: Any) -> RangeCommit:
        """Calls `finish_range`, which may be a user's, and checks its result."""
        paths = {file.file: storage.below(self.output.directory, file.file) for file in commit.files}
        stamps = {file: storage.stamp(path) for file, path in paths.items()}
        finished = self.output.finish_range(commit, numbers)
        if not isinstance(finished, RangeCommit):
            raise self._wrong(f"finish_range returned {finished!r:.60}, expected a RangeCommit")
        old = {file.file: file.shard.checksum for file in commit.files}
        for one in finished.files:
            same = one.shard.checksum == old.get(one.file)
            changed = same and storage.stamp(paths[one.file]) != stamps[one.file]
            if changed and checksum_of(paths[one.file]) != one.shard.checksum:
                raise self._wrong(f"finish_range changed {one.file} but returned its old checksum")
        return finished

    def _wrong(self, what: str) -> RldsBeamError:
        return RldsBeamError(
            f"the output {type(self.output).__qualname__}: its {what}; see rlds_beam.output.GlobalIndices"
        )

    @functools.cached_property
    def _works(self) -> dict[str, WorkRange]:
        return {str(work): work for work in self.ranges}
