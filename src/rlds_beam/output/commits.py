"""The commits of an output, which mark finished ranges of its plan."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from rlds_beam import naming, storage
from rlds_beam.encoding.metadata import Count, FileName, decode_whole, encode
from rlds_beam.errors import NotVerifiedError
from rlds_beam.output.files import COMMITS, REJECTED
from rlds_beam.output.plans import read_plan, remove_parts
from rlds_beam.output.shards import ShardInfo, WrittenFile
from rlds_beam.processing.report import Report

if TYPE_CHECKING:
    from rlds_beam.reading.base import WorkRange


class RangeCommit(msgspec.Struct, frozen=True, kw_only=True):
    """A finished range: its files and its report.

    Attributes:
      split, index, of: the range (`plan.WorkRange`).
      files: the written files; one, unless the output has several.
      rejected: the range's rejected records; None if there are none.
      report: the report on the range.
      plan: the job's `OutputPlan.digest`. A worker of a killed job may write a commit after the next job began,
        perhaps with another plan; such a commit does not count.
      numbers: the range's global indices, once `GlobalIndices.finish_range` has written them.
    """

    split: FileName
    index: Count
    of: Count
    files: Annotated[tuple[WrittenFile, ...], msgspec.Meta(min_length=1)]
    rejected: ShardInfo | None
    report: Report
    plan: str
    numbers: Any = None

    @property
    def range(self) -> str:
        """`str(work_range)`."""
        return f"{self.split}-{naming.format_shard_number(self.index, self.of)}"

    @property
    def items(self) -> int:
        """The number of items in the files."""
        return sum(file.shard.records for file in self.files if file.role == "items")

    @property
    def kept(self) -> tuple[WrittenFile, ...]:
        """The files that remain when the dataset is complete."""
        return tuple(file for file in self.files if file.role != "temporary")

    @property
    def names(self) -> list[str]:
        """The names of all files, including their sidecars."""
        return [name for file in self.files for name in (file.file, *file.beside)]


def rejected_path(output: str, work: WorkRange) -> str:
    """The path of a range's rejected records without the ending, for `shards.RejectedWriter`."""
    return storage.below(output, REJECTED, str(work))


def commit_range(
    output: str,
    work: WorkRange,
    files: Iterable[WrittenFile],
    *,
    rejected: ShardInfo | None,
    report: Report,
    plan: str,
) -> RangeCommit:
    """Marks a range as finished; its files and rejected records already have their final names.

    Args:
      files: the written files.
      rejected: the range's rejected records, if any.
      report: the report on the range.
      plan: the job's `OutputPlan.digest`.

    Raises:
      NotVerifiedError: the number of written items differs from the prediction.
    """
    commit = RangeCommit(
        split=work.split,
        index=work.index,
        of=work.of,
        files=tuple(files),
        rejected=rejected,
        report=report,
        plan=plan,
    )
    for problem in _wrong_counts(commit):
        raise NotVerifiedError(storage.join(output, problem))
    write_commit(output, commit)
    return commit


def write_commit(output: str, commit: RangeCommit) -> None:
    """Writes or replaces a range's commit."""
    storage.write_text(storage.below(output, COMMITS, f"{commit.range}.json"), encode(commit))


def read_commits(output: str) -> dict[str, RangeCommit]:
    """The commits of an output's plan by range, even if their files are missing.

    Raises:
      UsageError: a commit is malformed.
    """
    directory, plan = storage.join(output, COMMITS), read_plan(output)
    names = [name for name in storage.listdir(directory) if name.endswith(".json") and not storage.is_temporary(name)]
    read = storage.at_once(_load, [storage.join(directory, name) for name in names], directory)
    known = () if plan is None else plan.digests
    return {commit.range: commit for commit in read if commit is not None and commit.plan in known}


def _load(path: str) -> RangeCommit | None:
    return decode_whole(path, RangeCommit)


def read_reports(output: str, ranges: Iterable[WorkRange]) -> list[Report]:
    """The reports on finished ranges."""
    commits = read_commits(output)
    return [commits[str(work)].report for work in ranges if str(work) in commits]


def read_commit(output: str, work: WorkRange, plan: str) -> RangeCommit | None:
    """The commit of a finished range whose files exist; None if the range is not finished.

    Args:
      plan: the job's `OutputPlan.digest`.

    Raises:
      UsageError: the commit is malformed.
    """
    commit = decode_whole(storage.join(output, COMMITS, f"{work}.json"), RangeCommit)
    if commit is None or commit.plan != plan or any(find_problems(functools.partial(_size, output), commit)):
        return None
    return commit


def read_again(output: str, commit: RangeCommit) -> RangeCommit:
    """Reads a commit again; returns `commit` if it is gone."""
    path = storage.join(output, COMMITS, f"{commit.range}.json")
    return decode_whole(path, RangeCommit) or commit


def _size(output: str, name: str) -> int | None:
    """The size of a file; None if it does not exist."""
    path = storage.join(output, name)
    return storage.size(path) if storage.exists(path) else None


def remove_temporary(output: str, commits: Iterable[RangeCommit]) -> None:
    """Removes the files that only an unfinished dataset needs."""
    remove_parts(output, [file.file for commit in commits for file in commit.files if file.role == "temporary"])


def find_problems(
    size_of: Callable[[str], int | None], commit: RangeCommit, *, complete: bool = False
) -> Iterator[str]:
    """The differences between a finished range and its commit.

    Args:
      size_of: returns the size of a file; None if it is gone.
      complete: whether the dataset is complete, so that temporary files are no longer needed.
    """
    expected: dict[str, int | None] = {}
    for file in commit.files:
        needed = file.role != "temporary" or not complete
        if file.shard.records and needed:  # empty shards of an empty split are removed at the end
            expected |= {file.file: file.shard.bytes, **dict.fromkeys(file.beside)}
    if commit.rejected is not None:
        expected |= {f"{REJECTED}/{commit.range}.tfrecord": commit.rejected.bytes}
        expected |= {f"{REJECTED}/{commit.range}.jsonl": None}
    for name, size in expected.items():
        actual = size_of(name)
        if actual is None:
            yield f"{name} is missing"
        elif size is not None and actual != size:
            yield f"{name} has {actual} bytes, but {size} were written"
    yield from _wrong_counts(commit)


def _wrong_counts(commit: RangeCommit) -> Iterator[str]:
    for file in commit.files:
        if file.shard.records != file.predicted:
            yield f"{file.file} holds {file.shard.records} items, but {file.predicted} were predicted"
