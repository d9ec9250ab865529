"""The manifest of an output, written when all of its ranges are finished and checked; TFDS's metadata next to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from rlds_beam import storage
from rlds_beam.encoding.metadata import Count, FileName, FilePath, convert, decode_whole, encode
from rlds_beam.encoding.tfds.dataset_info import DATASET_INFO, DEFAULT_TEMPLATE, FEATURES, SplitInfo, dataset_info_json
from rlds_beam.encoding.tfds.features import features_json
from rlds_beam.errors import NotVerifiedError, UsageError
from rlds_beam.output.commits import RangeCommit, find_problems, read_commits, remove_temporary
from rlds_beam.output.files import CHECKSUM_KIND, CHECKSUMS, MANIFEST, REJECTED
from rlds_beam.output.plans import OutputPlan, read_plan, remove_parts
from rlds_beam.output.shards import ShardInfo
from rlds_beam.text import some

if TYPE_CHECKING:
    from rlds_beam.episodes.schema import Field
    from rlds_beam.output.base import EarlierOutput, MergedFile
    from rlds_beam.output.shards import WrittenFile
    from rlds_beam.reading.base import WorkRange

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
      output: a directory prepared by `open_output`.
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
    there = storage.sizes_below(output)
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


def is_merged(manifest: Mapping[str, Any], size_of: Callable[[str], int | None]) -> bool:
    """Whether the files merged from the ranges exist; False for an output without such files."""
    files = manifest["shards"] if manifest.get("merged") is True else []
    return bool(files) and all(size_of(file["file"]) == file["bytes"] for file in files)


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
