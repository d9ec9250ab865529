"""The commits of an output: which ranges of its plan are finished."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlds_beam import storage
from rlds_beam.errors import NotVerifiedError, UsageError
from rlds_beam.output.files import COMMITS, REJECTED, listdir, load_json, to_json
from rlds_beam.output.shards import ShardInfo

if TYPE_CHECKING:
    from rlds_beam.reading.plan import WorkRange


@dataclasses.dataclass(frozen=True, kw_only=True)
class RangeCommit:
    """One finished range: the shard that it became, and what was found on the way.

    Attributes:
      split, index, of: of the range (`plan.WorkRange`).
      file: name of the shard in the output directory.
      beside: names of the files that belong to it.
      shard: what is in it.
      predicted: items that were to be in it.
      rejected: the range's rejected records; None where there are none.
      report: the range's `Report.to_json()`.
    """

    split: str
    index: int
    of: int
    file: str
    shard: ShardInfo
    predicted: int
    rejected: ShardInfo | None
    report: Mapping[str, Any]
    beside: tuple[str, ...] = ()

    @property
    def range(self) -> str:
        """`str(work_range)`."""
        return f"{self.split}-{self.index:05d}-of-{self.of:05d}"

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> RangeCommit:
        """Reads `dataclasses.asdict(commit)` back.

        Raises:
          UsageError: it names a file outside of its directory.
        """
        rejected = content["rejected"]
        # An earlier version wrote trajectories only, and did not name their specs.
        beside = tuple(content.get("beside", (content["file"] + ".spec",)))
        for name in (content["file"], *beside):
            if storage.split(name)[0] or name in ("", ".", ".."):
                raise UsageError(f"a commit names the file {name!r}, which is not in its directory: remove the commit")
        return cls(
            **{
                **content,
                "beside": beside,
                "shard": ShardInfo.from_json(content["shard"]),
                "rejected": rejected and ShardInfo.from_json(rejected),
            }
        )


def rejected_path(output: str, work: WorkRange) -> str:
    """Where the rejected records of a range go, without the ending: for `shards.RejectedWriter`."""
    return storage.join(output, REJECTED, str(work))


def commit_range(
    output: str,
    work: WorkRange,
    file: str,
    shard: ShardInfo,
    *,
    beside: Sequence[str] = (),
    predicted: int,
    rejected: ShardInfo | None,
    report: Mapping[str, Any],
) -> RangeCommit:
    """Marks a range as done; its shard and its rejected records have their names already.

    Args:
      file: name of the shard.
      beside: names of the files that belong to it.
      predicted: items that were to be written.
      report: `Report.to_json()` of the range.

    Raises:
      NotVerifiedError: another number of items was written than predicted.
    """
    if shard.records != predicted:
        path = storage.join(output, file)
        raise NotVerifiedError(f"{path} holds {shard.records} items where {predicted} were predicted")
    commit = RangeCommit(
        split=work.split,
        index=work.index,
        of=work.of,
        file=file,
        shard=shard,
        predicted=predicted,
        rejected=rejected,
        report=report,
        beside=tuple(beside),
    )
    path = storage.join(output, COMMITS, f"{commit.range}.json")
    storage.write_text(path, to_json(dataclasses.asdict(commit)))
    return commit


def read_commits(output: str) -> dict[str, RangeCommit]:
    directory = storage.join(output, COMMITS)
    paths = [storage.join(directory, name) for name in listdir(directory) if not storage.is_temporary(name)]
    read = storage.at_once(load_json, paths, directory)
    commits = [RangeCommit.from_json(content) for content in read if content is not None]
    return {commit.range: commit for commit in commits}


def read_commit(output: str, work: WorkRange) -> RangeCommit | None:
    """The commit of a range that is done, and whose files are there; None where it is to be done."""
    path = storage.join(output, COMMITS, f"{work}.json")
    content = load_json(path) if storage.exists(path) else None
    commit = None if content is None else RangeCommit.from_json(content)
    return None if commit is None or any(problems_of(functools.partial(_size, output), commit)) else commit


def sizes(output: str) -> dict[str, int]:
    """The bytes of each file of an output, and of those that it rejected, by path below it."""
    rejected = storage.join(output, REJECTED)
    found = storage.sizes(output) if storage.isdir(output) else {}
    if storage.isdir(rejected):
        found |= {f"{REJECTED}/{name}": size for name, size in storage.sizes(rejected).items()}
    return found


def _size(output: str, name: str) -> int | None:
    """The bytes of one file; None where it is not there."""
    path = storage.join(output, name)
    return storage.size(path) if storage.exists(path) else None


def problems_of(size_of: Callable[[str], int | None], commit: RangeCommit) -> Iterator[str]:
    """What of a finished range is not as it was committed; `size_of` gives the bytes of a file, None if it is gone."""
    expected: dict[str, int | None] = {}
    if commit.shard.records:  # the empty shards of an empty split are removed in the end
        expected = {commit.file: commit.shard.bytes, **dict.fromkeys(commit.beside)}
    if commit.rejected is not None:
        expected |= {f"{REJECTED}/{commit.range}.tfrecord": commit.rejected.bytes}
        expected |= {f"{REJECTED}/{commit.range}.jsonl": None}
    for name, size in expected.items():
        found = size_of(name)
        if found is None:
            yield f"{name} is not there"
        elif size is not None and found != size:
            yield f"{name} has {found} bytes where {size} were written"
    if commit.shard.records != commit.predicted:
        yield f"{commit.file} holds {commit.shard.records} items where {commit.predicted} were predicted"
