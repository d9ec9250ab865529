"""The commits of an output: which ranges of its plan are finished."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlds_beam import storage
from rlds_beam.checking.report import Report
from rlds_beam.encoding.checked_json import (
    ANY,
    COUNT,
    FILE,
    FILE_PATH,
    TEXT,
    Kind,
    Maybe,
    check_json,
    parsing,
    read_json,
)
from rlds_beam.errors import NotVerifiedError, UsageError
from rlds_beam.output.files import COMMITS, PLAN, REJECTED, listdir, to_json
from rlds_beam.output.plans import OutputPlan, read_plan
from rlds_beam.output.shards import ROLES, SHARD_SCHEMA, ShardInfo, WrittenFile

if TYPE_CHECKING:
    from rlds_beam.reading.plan import WorkRange


@dataclasses.dataclass(frozen=True, kw_only=True)
class RangeCommit:
    """One finished range: the shard that it became (of some outputs, several), and what was found on the way.

    Attributes:
      split, index, of: of the range (`plan.WorkRange`).
      file: name of the shard in the output directory.
      beside: names of the files that belong to it.
      shard: what is in it.
      predicted: items that were to be in it.
      rejected: the range's rejected records; None where there are none.
      report: the range's `Report.to_json()`.
      plan: `OutputPlan.digest` of the job. A worker of a killed job may write a commit after the next one began, which
        is of another plan perhaps; such a commit does not count.
      more: the other files of a range that became several; `file`, `beside`, `shard` and `predicted` are of the first.
      numbers: what `FileOutput.finish_range` wrote into the files, after all ranges were finished, or whose files these
        are then.
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
    plan: str = ""
    more: tuple[WrittenFile, ...] = ()
    numbers: Any = None

    @property
    def range(self) -> str:
        """`str(work_range)`."""
        return f"{self.split}-{self.index:05d}-of-{self.of:05d}"

    @property
    def files(self) -> tuple[WrittenFile, ...]:
        """All files of the range."""
        return (WrittenFile(self.file, self.shard, self.predicted, self.beside), *self.more)

    @property
    def kept(self) -> tuple[WrittenFile, ...]:
        """Those that stay when the dataset is complete."""
        return tuple(one for one in self.files if one.role != "temporary")

    @property
    def names(self) -> list[str]:
        """The names of all of them, and of those that belong to them."""
        return [name for one in self.files for name in (one.file, *one.beside)]

    def to_json(self) -> dict[str, Any]:
        content = dataclasses.asdict(self)
        for name in ("more", "numbers"):
            if not content[name]:
                del content[name]
        for one in content.get("more", ()):
            if one["role"] == "items":
                del one["role"]
        return content

    @classmethod
    def from_json(cls, content: Any, path: str) -> RangeCommit:
        """Reads `to_json` back from the file at `path`.

        Raises:
          UsageError: it is not as rlds-beam writes it, or names a file outside of its directory.
        """
        check_json(content, _SCHEMA, path)
        rejected = content["rejected"]
        # An earlier version wrote trajectories only, and did not name their specs.
        beside = tuple(content.get("beside", (content["file"] + ".spec",)))
        with parsing(path):
            shard, kept = ShardInfo.from_json(content["shard"]), rejected and ShardInfo.from_json(rejected)
            more = tuple(
                WrittenFile(
                    one["file"],
                    ShardInfo.from_json(one["shard"]),
                    one["predicted"],
                    tuple(one["beside"]),
                    one.get("role", "items"),
                )
                for one in content.get("more", ())
            )
        known: dict[str, Any] = {"numbers": None}
        known |= {field.name: content[field.name] for field in dataclasses.fields(cls) if field.name in content}
        commit = cls(**{**known, "beside": beside, "shard": shard, "rejected": kept, "more": more})
        if storage.split(path)[1] != f"{commit.range}.json":
            raise UsageError(f"{path} is the commit of another range, {commit.range}: remove it")
        return commit


_ROLE = Kind(f"one of {', '.join(ROLES)}", lambda role: role in ROLES)
_FILE = {"file": FILE_PATH, "predicted": COUNT, "shard": SHARD_SCHEMA}
_SCHEMA = {
    **_FILE, "split": FILE, "index": COUNT, "of": COUNT, "beside?": [FILE_PATH], "rejected": Maybe(SHARD_SCHEMA),
    "report": {"*": ANY}, "plan?": TEXT, "numbers?": ANY,
    "more?": [{**_FILE, "beside": [FILE_PATH], "role?": _ROLE}],
}  # fmt: skip


def rejected_path(output: str, work: WorkRange) -> str:
    """Where the rejected records of a range go, without the ending: for `shards.RejectedWriter`."""
    return storage.below(output, REJECTED, str(work))


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
    plan: str = "",
    more: Sequence[WrittenFile] = (),
) -> RangeCommit:
    """Marks a range as done; its shard and its rejected records have their names already.

    Args:
      file: name of the shard.
      beside: names of the files that belong to it.
      predicted: items that were to be written.
      report: `Report.to_json()` of the range.
      plan: `OutputPlan.digest` of the job.
      more: the other files of a range that became several.

    Raises:
      NotVerifiedError: another number of items was written than predicted.
    """
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
        plan=plan,
        more=tuple(more),
    )
    for one in commit.files:
        for problem in _wrong_count(one):
            raise NotVerifiedError(storage.join(output, problem))
    write_commit(output, commit)
    return commit


def write_commit(output: str, commit: RangeCommit) -> None:
    """Writes the commit of a range, or another in its place."""
    storage.write_text(storage.below(output, COMMITS, f"{commit.range}.json"), to_json(commit.to_json()))


def read_commits(output: str) -> dict[str, RangeCommit]:
    """The commits of an output's plan by range, whether their files are there or not.

    Raises:
      UsageError: one of them is not as rlds-beam writes it, or of files that are not in the plan of this output.
    """
    directory, plan = storage.join(output, COMMITS), read_plan(output)
    paths = [storage.join(directory, name) for name in listdir(directory) if _is_commit(name)]
    read = storage.at_once(read_json, paths, directory)
    found = [RangeCommit.from_json(c, path) for c, path in zip(read, paths, strict=True) if c is not None]
    commits = [commit for commit in found if plan is None or commit.plan in ("", plan.digest)]
    for commit in commits:
        for file in commit.names:
            if plan is None or not plan.names(file) or not plan.names_range(commit.range):
                path = storage.join(directory, f"{commit.range}.json")
                raise UsageError(f"{path} names {file}, which the {PLAN} of {output} does not: remove the commit")
    return {commit.range: commit for commit in commits}


def read_reports(output: str, ranges: Iterable[WorkRange]) -> list[Report]:
    """The reports on the ranges that are finished."""
    commits, reports = read_commits(output), []
    for work in ranges:
        if str(work) in commits:
            with parsing(storage.join(output, COMMITS, f"{work}.json")):
                reports.append(Report.from_json(commits[str(work)].report))
    return reports


def read_commit(output: str, work: WorkRange, files: Sequence[str], plan: str = "") -> RangeCommit | None:
    """The commit of a range that is done, and whose files are there; None where it is to be done.

    Args:
      files: the names of the range's files.
      plan: `OutputPlan.digest` of the job.

    Raises:
      UsageError: it is not as rlds-beam writes it, or the commit of another file.
    """
    path = storage.join(output, COMMITS, f"{work}.json")
    content = read_json(path) if storage.exists(path) else None
    if content is None:
        return None
    commit = RangeCommit.from_json(content, path)
    found = [one.file for one in commit.files]
    if commit.numbers is None and found != list(files):  # a range that is finished may have others
        raise UsageError(
            f"{path} names {', '.join(found)}, where the range's file is {', '.join(files)}: remove the commit"
        )
    of_another_plan = plan and commit.plan not in ("", plan)
    return None if of_another_plan or any(problems_of(functools.partial(_size, output), commit)) else commit


def read_again(output: str, commit: RangeCommit) -> RangeCommit:
    """A commit as it is now; as it was read, where it is gone."""
    path = storage.join(output, COMMITS, f"{commit.range}.json")
    content = read_json(path) if storage.exists(path) else None
    return commit if content is None else RangeCommit.from_json(content, path)


def _is_commit(name: str) -> bool:
    return name.endswith(".json") and not storage.is_temporary(name)


def sizes(output: str, plan: OutputPlan | None) -> dict[str, int]:
    """The bytes of each file of an output, and of those that it rejected, by path below the directory."""
    found = storage.sizes(output) if storage.isdir(output) else {}
    for name in (REJECTED, *(plan.directories if plan is not None else ())):
        directory = storage.join(output, name)
        if storage.isdir(directory):
            found |= {f"{name}/{file}": size for file, size in storage.sizes(directory).items()}
    return found


def _size(output: str, name: str) -> int | None:
    """The bytes of one file; None where it is not there."""
    path = storage.join(output, name)
    return storage.size(path) if storage.exists(path) else None


def problems_of(size_of: Callable[[str], int | None], commit: RangeCommit, *, complete: bool = False) -> Iterator[str]:
    """What of a finished range is not as it was committed.

    Args:
      size_of: gives the bytes of a file, None if it is gone.
      complete: the dataset is, so that temporary files are not needed any more.
    """
    expected: dict[str, int | None] = {}
    for one in commit.files:
        if one.shard.records and not (
            complete and one.role == "temporary"
        ):  # the empty shards of an empty split are removed in the end
            expected |= {one.file: one.shard.bytes, **dict.fromkeys(one.beside)}
    if commit.rejected is not None:
        expected |= {f"{REJECTED}/{commit.range}.tfrecord": commit.rejected.bytes}
        expected |= {f"{REJECTED}/{commit.range}.jsonl": None}
    for name, size in expected.items():
        found = size_of(name)
        if found is None:
            yield f"{name} is not there"
        elif size is not None and found != size:
            yield f"{name} has {found} bytes where {size} were written"
    for one in commit.files:
        yield from _wrong_count(one)


def _wrong_count(one: WrittenFile) -> Iterator[str]:
    if one.shard.records != one.predicted:
        yield f"{one.file} holds {one.shard.records} items where {one.predicted} were predicted"
