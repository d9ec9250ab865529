"""The commits of an output, which mark finished ranges of its plan; and the manifest, which marks all of them.

The manifest is written when every range is finished and checked, with TFDS's metadata next to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec

from rlds_beam import naming, storage
from rlds_beam.encoding.metadata import Count, FileName, FilePath, convert, decode, decode_whole, encode
from rlds_beam.encoding.tfds.dataset_info import DATASET_INFO, DEFAULT_TEMPLATE, FEATURES, SplitInfo, dataset_info_json
from rlds_beam.encoding.tfds.features import features_json
from rlds_beam.errors import NotVerifiedError, UsageError
from rlds_beam.output.files import CHECKSUM_KIND, CHECKSUMS, COMMITS, MANIFEST, REJECTED, REPORT
from rlds_beam.output.plans import OutputPlan, read_plan, remove_parts
from rlds_beam.output.shards import MergedFile, ShardInfo, WrittenFile
from rlds_beam.processing.report import Report
from rlds_beam.reading.base import WorkRange
from rlds_beam.text import some

if TYPE_CHECKING:
    from rlds_beam.episodes.schema import Field


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


class EarlierOutput(NamedTuple):
    """A finished output that `convert --append` adds to. Picklable.

    Attributes:
      directory: its directory; that of the append is below it.
      plan: its plan.
      manifest: its manifest.
      commits: the commits of its ranges, in the order of the plan.
      unfinished: the digest of the plan of an append that was interrupted; None if there is none.
    """

    directory: str
    plan: OutputPlan
    manifest: Mapping[str, Any]
    commits: tuple[RangeCommit, ...]
    unfinished: str | None = None

    @property
    def ranges(self) -> list[WorkRange]:
        """Its ranges, without what they read."""
        return [WorkRange(commit.split, commit.index, commit.of, ()) for commit in self.commits]


def rejected_path(output: str, work: WorkRange) -> str:
    """The path of a range's rejected records without the ending, for `shards.RejectedWriter`."""
    return storage.below(output, REJECTED, str(work))


def commit_range(output: str, commit: RangeCommit) -> None:
    """Writes or replaces the commit of a range, whose files already have their final names.

    Raises:
      NotVerifiedError: the number of written items differs from the prediction.
    """
    for problem in _wrong_counts(commit):
        raise NotVerifiedError(storage.join(output, problem))
    storage.write_text(storage.below(output, COMMITS, f"{commit.range}.json"), encode(commit))


def read_commits(output: str, ranges: Sequence[str] | None = None) -> dict[str, RangeCommit]:
    """The commits of an output's plan by range, even if their files are missing.

    Args:
      ranges: the names of the ranges; all by default.

    Raises:
      UsageError: a commit is malformed.
    """
    directory, plan = storage.join(output, COMMITS), read_plan(output)
    names = storage.listdir(directory) if ranges is None else [f"{name}.json" for name in ranges]
    paths = [storage.join(directory, name) for name in names if name.endswith(".json")]
    read = storage.at_once(lambda path: decode_whole(path, RangeCommit), paths, directory)
    known = () if plan is None else plan.digests
    return {commit.range: commit for commit in read if commit is not None and commit.plan in known}


def read_reports(output: str, ranges: Iterable[WorkRange]) -> list[Report]:
    """The reports on finished ranges."""
    commits = read_commits(output)
    return [commits[str(work)].report for work in ranges if str(work) in commits]


def read_report(output: str) -> Report:
    """The report of a finished dataset. Raises UsageError if it is malformed."""
    return decode(storage.join(output, REPORT), Report)


def read_commit(output: str, work: WorkRange, plan: str) -> RangeCommit | None:
    """The commit of a finished range whose files exist; None if the range is not finished.

    Args:
      plan: the job's `OutputPlan.digest`.

    Raises:
      UsageError: the commit is malformed.
    """

    def size_of(name: str) -> int | None:
        path = storage.join(output, name)
        return storage.size(path) if storage.exists(path) else None

    commit = decode_whole(storage.join(output, COMMITS, f"{work}.json"), RangeCommit)
    if commit is None or commit.plan != plan or any(find_problems(size_of, commit)):
        return None
    return commit


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


VERSION = "1.0.0"
"""The version of every written dataset."""


def commit_dataset(
    output: str,
    name: str,
    ranges: Sequence[WorkRange],
    complete: Callable[[Sequence[RangeCommit]], dict[str, Any]],
    plan: str | None = None,
    earlier: EarlierOutput | None = None,
) -> dict[str, Any]:
    """Checks that every range is finished, then writes the output's metadata and manifest.json, in this order.

    Args:
      output: a directory prepared by `directory.make_ready`.
      name: the dataset's name.
      ranges: all ranges of the plan.
      complete: writes the metadata and returns the manifest's entry (`Output.complete`).
      plan: the job's `OutputPlan.digest`; by default that of the directory's plan.
      earlier: the output that the directory is appended to; metadata and manifest are then those of the whole.

    Returns:
      The manifest: items and bytes; `splits`; `shards` and `rejected` with their checksums; `fields`.

    Raises:
      NotVerifiedError: a shard is missing, its size changed, or its number of items differs from the prediction (no
        manifest is left then); or another command changed the plan.
    """
    own = _own_plan(output, plan)
    commits = read_commits(output)
    missing = [str(work) for work in ranges if str(work) not in commits]
    done = [commits[str(work)] for work in ranges if str(work) in commits]
    there = storage.sizes(output, below=True)
    wrong = [problem for commit in done for problem in find_problems(there.get, commit)]
    if missing or wrong:
        storage.remove_files(output, [MANIFEST])
        unfinished = [f"{len(missing)} of {len(ranges)} ranges were not finished: {some(missing)}"] if missing else []
        problems = some([*unfinished, *wrong])
        raise NotVerifiedError(f"{output}: {problems}; run the same command again to complete it")
    storage.remove_leftovers(output)
    every = [*(earlier.commits if earlier is not None else ()), *done]
    if earlier is not None:
        splits = list(dict.fromkeys(commit.split for commit in every))
        every.sort(key=lambda commit: splits.index(commit.split))
    records = complete(every)
    merged = records.pop("merged", None)
    manifest = _manifest(name, every, records, merged, own)
    if earlier is not None:
        counts = {n: sum(getattr(c.report, n) for c in done) for n in ("records", "rejected", "items_written")}
        added = {"dataset": own.content["dataset"], **counts, "plan_sha256": own.digest}
        manifest |= {"plan_sha256": earlier.plan.digest, "appends": [*earlier.manifest.get("appends", ()), added]}
    lines = [
        f"{file['checksum'].removeprefix(CHECKSUM_KIND)}  {file['file']}\n"
        for file in (*manifest["shards"], *manifest["rejected"])
        if file["records"]  # the empty files of an empty split are removed
    ]
    if lines:
        storage.write_text(storage.below(output, CHECKSUMS), "".join(lines))
    storage.sync(output)  # so that the manifest is true even after a power failure
    if merged is not None:
        remove_parts(output, [name for commit in done for name in commit.names])
    storage.write_text(storage.below(output, MANIFEST), encode(manifest))
    storage.sync(output)
    remove_temporary(output, done)
    _own_plan(output, own.digest)  # without a lock, another command may have replaced the plan, and the manifest
    return manifest


def _own_plan(output: str, digest: str | None) -> OutputPlan:
    plan = read_plan(output)
    if plan is None or digest not in (None, plan.digest):
        raise NotVerifiedError(f"{output} was replaced by another command while this one ran: run it again")
    return plan


def read_manifest(path: str) -> dict[str, Any]:
    """The manifest of a finished dataset.

    Raises:
      UsageError: there is none (the conversion is unfinished, or rlds-beam did not write the directory), or it is
        malformed.
    """
    manifest = load_manifest(path)
    if manifest is not None:
        return manifest
    if read_plan(path) is not None:
        raise UsageError(f"{path} is not finished: it has no {MANIFEST}; run its `rlds-beam convert` again")
    raise UsageError(f"rlds-beam did not write {path}: it has no {MANIFEST}")


def load_manifest(path: str) -> dict[str, Any] | None:
    """The manifest of an output; None if there is none or a power failure truncated it.

    Raises:
      UsageError: it is malformed.
    """
    file = storage.join(path, MANIFEST)
    content = decode_whole(file, dict[str, Any])
    if content is not None:
        convert(content, _Manifest, file)
    return content


class _File(ShardInfo, frozen=True, kw_only=True):
    file: FilePath
    split: FileName
    range: FileName
    predicted: Count


class _Rejected(ShardInfo, frozen=True, kw_only=True):
    range: FileName


class _Manifest(msgspec.Struct):
    name: FileName
    version: FileName
    items: Count
    bytes: Count
    shards: tuple[_File, ...]
    rejected: tuple[_Rejected, ...]
    plan_sha256: str


def _manifest(
    name: str,
    done: Sequence[RangeCommit],
    records: Mapping[str, Any],
    merged: Sequence[MergedFile] | None,
    plan: OutputPlan,
) -> dict[str, Any]:
    if merged is None:
        files = [(c.split, c.range, file.file, file.predicted, file.shard) for c in done for file in c.kept]
    else:
        files = [(file.split, file.split, file.file, file.shard.records, file.shard) for file in merged]
    return {
        "name": name,
        "version": VERSION,
        "items": sum(commit.items for commit in done),
        "bytes": sum(shard.bytes for *_, shard in files),
        **records,
        **({} if merged is None else {"merged": True}),
        "shards": [
            {"file": file, "split": split, "range": range_, "predicted": predicted, **msgspec.structs.asdict(shard)}
            for split, range_, file, predicted, shard in files
        ],
        "rejected": [
            {"file": f"{REJECTED}/{c.range}.tfrecord", "range": c.range, **msgspec.structs.asdict(c.rejected)}
            for c in done
            if c.rejected is not None
        ],
        "plan_sha256": plan.digest,
    }


def split_infos(directory: str, files: Iterable[tuple[str, WrittenFile]]) -> list[SplitInfo]:
    """The splits of the files, which are given as (split, file).

    Leaves out a split without records and removes its empty files, because TFDS cannot read it.
    """
    by_split: dict[str, list[WrittenFile]] = {}
    for split, file in files:
        by_split.setdefault(split, []).append(file)
    splits = []
    for split, own in by_split.items():
        if any(file.shard.records for file in own):
            lengths = tuple(file.shard.records for file in own)
            template = _template(own[0].file, len(own))
            splits.append(SplitInfo(split, lengths, sum(file.shard.bytes for file in own), template))
        else:
            storage.remove_files(directory, [name for file in own for name in (file.file, *file.beside)])
    return splits


def _template(file: str, shards: int) -> str:
    """The template of the shards' names: those of an appended split keep the number of shards of its beginning."""
    _, number, of = file.rpartition("-of-")
    if not number or not of.isdigit() or int(of) == shards:
        return DEFAULT_TEMPLATE
    return DEFAULT_TEMPLATE.replace("{SHARD_X_OF_Y}", f"{{SHARD_INDEX}}-of-{of}")


def write_tfds_metadata(
    directory: str,
    name: str,
    splits: Iterable[SplitInfo],
    fields: Mapping[str, Field],
    *,
    file_format: str = "tfrecord",
    description: str = "",
) -> None:
    """Writes features.json and dataset_info.json, unless there are no splits."""
    info = dataset_info_json(name, VERSION, splits, file_format=file_format, description=description)
    if info["splits"]:
        storage.write_text(storage.below(directory, FEATURES), encode(features_json(fields)))
        storage.write_text(storage.below(directory, DATASET_INFO), encode(info))
