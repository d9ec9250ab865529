"""The output directory of a conversion: what is finished, and when the whole of it is.

    OUTPUT/
      plan.json                                   written first: what this directory is being made of
      <name>-<split>.tfrecord-00000-of-00003      a shard, under its name once it is complete
      <name>-<split>.tfrecord-00000-of-00003.spec what stands beside it (`FileOutput.beside`)
      rejected/<split>-00000-of-00003.tfrecord    rejected records as they were read, where there are any
      rejected/<split>-00000-of-00003.jsonl       why, a line for each
      _commits/<split>-00000-of-00003.json        written behind the shard: this range is done
      features.json  dataset_info.json            the output's metadata (`FileOutput.complete`)
      checksums.xxh128                            for `xxh128sum --check`
      manifest.json                               written last: all is there, checked

A run that was killed at any point is taken up by the next one with the same plan, which does only
the ranges without a commit, and ends with the same bytes. A commit counts only while its files are
there in the size that it states.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlds_beam import storage
from rlds_beam.errors import NotVerifiedError, UsageError
from rlds_beam.output.checksums import FILES, checksum_files, with_checksum
from rlds_beam.output.shards import ShardInfo

if TYPE_CHECKING:
    from rlds_beam.reading.plan import WorkRange

PLAN, MANIFEST, REPORT, COMMITS, REJECTED = "plan.json", "manifest.json", "report.json", "_commits", "rejected"
VERSION = "1.0.0"
"""Of every dataset that is written."""

_METADATA = ("features.json", "dataset_info.json", REPORT, *FILES)
_SHARD = re.compile(r".+\.tfrecord-\d{5}-of-\d{5}(\.spec)?")
_KIND = "rlds-beam plan"


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


@dataclasses.dataclass(frozen=True)
class Finished:
    """What of a plan is done already.

    Attributes:
      ranges: by `str(work_range)`.
      complete: the dataset is committed; nothing is left to do.
    """

    ranges: Mapping[str, RangeCommit] = dataclasses.field(default_factory=dict)
    complete: bool = False


def rejected_path(output: str, work: WorkRange) -> str:
    """Where the rejected records of a range go, without the ending: for `shards.RejectedWriter`."""
    return storage.join(output, REJECTED, str(work))


def check_output(output: str, plan: Mapping[str, Any], *, overwrite: bool = False) -> None:
    """Says whether `open_output` would take the directory, and touches nothing.

    Args:
      output: a directory that is not there, is empty, or was written by rlds-beam.
      plan: all that the output depends on, as JSON: the source with its sizes, the options, the
        ranges, the version. Equal plans make equal bytes.
      overwrite: remove what an earlier run wrote, whatever its plan. Files that are not of
        rlds-beam's making stay.

    Raises:
      UsageError: the directory holds something else, or the output of another plan.
    """
    names = [name for name in _listdir(output) if not storage.is_temporary(name)]
    existing = _read_plan(output)
    wanted = json.loads(json.dumps(plan))  # as it reads back: lists for tuples
    if names and existing is None:
        raise UsageError(
            f"{output} is not empty, and rlds-beam did not write what is in it: name another directory, or an empty "
            "one (--overwrite replaces only what rlds-beam wrote)"
        )
    if existing is not None and existing != wanted and not overwrite:
        differences = "; ".join(_differences(existing, wanted))
        raise UsageError(
            f"{output} holds the output of another plan ({differences}): name another directory, or replace it whole "
            "with --overwrite"
        )


def open_output(
    output: str, plan: Mapping[str, Any], *, overwrite: bool = False, files: Sequence[str] = ()
) -> Finished:
    """Makes the output directory ready to be written to, or finds out how far an earlier run of the plan came.

    Args and what is raised: as for `check_output`.
      files: names of the files that may be written here, to be removed if the output is overwritten later.
    """
    check_output(output, plan, overwrite=overwrite)
    if overwrite:
        _remove_output(output)
    storage.makedirs(output)
    if _read_plan(output) is None:  # the plan comes first: from then on the directory is known as ours
        storage.write_text(storage.join(output, PLAN), _json({"kind": _KIND, "plan": plan, "files": list(files)}))
    storage.makedirs(storage.join(output, COMMITS))
    storage.makedirs(storage.join(output, REJECTED))
    return _finished(output)


def is_complete(output: str) -> bool:
    """Whether the dataset is committed, and all that it names is there. The plan was checked before."""
    return storage.exists(storage.join(output, MANIFEST)) and _finished(output).complete


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
    storage.write_text(path, _json(dataclasses.asdict(commit)))
    return commit


def commit_dataset(
    output: str, name: str, ranges: Sequence[WorkRange], complete: Callable[[Sequence[RangeCommit]], dict[str, Any]]
) -> dict[str, Any]:
    """Checks that every range is finished, then writes the output's metadata and manifest.json, in this order.

    Args:
      output: what `open_output` made ready.
      name: of the dataset.
      ranges: all ranges of the plan.
      complete: writes the metadata, and says what the manifest is to say of the records (`FileOutput.complete`).

    Returns:
      The manifest: items and bytes, `splits`, `shards` and `rejected` with their checksums, `fields`.

    Raises:
      NotVerifiedError: a shard is missing, of another size than it was written, or holds another
        number of items than predicted. No manifest is left then.
    """
    commits = read_commits(output)
    missing = [str(work) for work in ranges if str(work) not in commits]
    done = [commits[str(work)] for work in ranges if str(work) in commits]
    there = _sizes(output)
    wrong = [problem for commit in done for problem in _problems(there.get, commit)]
    if missing or wrong:
        storage.remove_files(output, [MANIFEST])
        unfinished = [f"{len(missing)} of {len(ranges)} ranges were not finished: {_some(missing)}"] if missing else []
        problems = _some([*unfinished, *wrong])
        raise NotVerifiedError(f"{output}: {problems}; run the same command again to make up for it")
    _remove_leftovers(output)
    manifest = _manifest(output, name, done, complete(done))
    for file, content in checksum_files([*manifest["shards"], *manifest["rejected"]]).items():
        storage.write_text(storage.join(output, file), content)
    storage.sync(output)  # a manifest that survives a power failure tells the truth
    storage.write_text(storage.join(output, MANIFEST), _json(manifest))
    storage.sync(output)
    return manifest


def is_output(path: str) -> bool:
    """Whether rlds-beam wrote the directory, finished or not."""
    return _read_plan(path) is not None


def read_manifest(path: str) -> dict[str, Any]:
    """The manifest of a finished dataset.

    Raises:
      UsageError: there is none: the conversion did not come to its end, or this is no output of rlds-beam.
    """
    manifest = _load(storage.join(path, MANIFEST)) if storage.exists(storage.join(path, MANIFEST)) else None
    if manifest is not None:
        return manifest | {kind: [*map(with_checksum, manifest[kind])] for kind in ("shards", "rejected")}
    if _read_plan(path) is not None:
        raise UsageError(f"{path} is not finished: it has no {MANIFEST}; run its `rlds-beam convert` again")
    raise UsageError(f"{path} is not a dataset that rlds-beam wrote: it has no {MANIFEST}")


def _manifest(output: str, name: str, done: Sequence[RangeCommit], records: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "version": VERSION,
        "items": sum(c.shard.records for c in done),
        "bytes": sum(c.shard.bytes for c in done),
        **records,
        "shards": [
            {
                "file": c.file,
                "split": c.split,
                "range": c.range,
                "predicted": c.predicted,
                **dataclasses.asdict(c.shard),
            }
            for c in done
        ],
        "rejected": [
            {"file": f"{REJECTED}/{c.range}.tfrecord", "range": c.range, **dataclasses.asdict(c.rejected)}
            for c in done
            if c.rejected is not None
        ],
        "plan_sha256": hashlib.sha256(_json(_read_plan(output)).encode()).hexdigest(),
    }


def _finished(output: str) -> Finished:
    """The ranges whose commit and files are there; a manifest that names any other is removed."""
    commits = read_commits(output)
    there = _sizes(output)  # after what it is held against: a file that came in between would be missed
    ranges = {name: commit for name, commit in commits.items() if not any(_problems(there.get, commit))}
    manifest = _load(storage.join(output, MANIFEST)) if storage.exists(storage.join(output, MANIFEST)) else None
    complete = manifest is not None and {shard["range"] for shard in manifest["shards"]} <= ranges.keys()
    if not complete:
        storage.remove_files(output, [MANIFEST])
    return Finished(ranges, complete)


def read_commits(output: str) -> dict[str, RangeCommit]:
    directory = storage.join(output, COMMITS)
    paths = [storage.join(directory, name) for name in _listdir(directory) if not storage.is_temporary(name)]
    read = storage.at_once(_load, paths, directory)
    commits = [RangeCommit.from_json(content) for content in read if content is not None]
    return {commit.range: commit for commit in commits}


def read_commit(output: str, work: WorkRange) -> RangeCommit | None:
    """The commit of a range that is done, and whose files are there; None where it is to be done."""
    path = storage.join(output, COMMITS, f"{work}.json")
    content = _load(path) if storage.exists(path) else None
    commit = None if content is None else RangeCommit.from_json(content)
    return None if commit is None or any(_problems(functools.partial(_size, output), commit)) else commit


def _load(path: str) -> dict[str, Any] | None:
    """The object in a JSON file; None where a power failure (or another program) left something else."""
    try:
        content = json.loads(storage.read_text(path))
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def _sizes(output: str) -> dict[str, int]:
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


def _problems(size_of: Callable[[str], int | None], commit: RangeCommit) -> Iterator[str]:
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


def _read_plan(output: str) -> Mapping[str, Any] | None:
    """The plan in a plan.json of ours; None where there is none, or one of anybody else's."""
    path = storage.join(output, PLAN)
    content = _load(path) if storage.exists(path) else None
    if content is None or content.get("kind") != _KIND:
        return None
    plan: Mapping[str, Any] = content["plan"]
    return plan


def _differences(old: Any, new: Any, path: str = "") -> list[str]:
    """The first few places where two plans differ, for a person."""
    if isinstance(old, dict) and isinstance(new, dict):
        found: list[str] = []
        for key in [*old, *(k for k in new if k not in old)]:
            found += _differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)
        return found[:5]
    return [] if old == new else [f"{path} was {_short(old)} and is now {_short(new)}"]


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _remove_output(output: str) -> None:
    """Removes what rlds-beam writes, the manifest first and the plan last: a half removed output is known as such."""
    planned = {*_METADATA, *(_load(storage.join(output, PLAN)) or {}).get("files", ())}
    storage.remove_files(output, [MANIFEST])
    storage.remove_files(output, [n for n in _listdir(output) if n in planned or _SHARD.fullmatch(n)])
    storage.rmtree(storage.join(output, COMMITS))
    storage.rmtree(storage.join(output, REJECTED))
    _remove_leftovers(output)
    storage.remove_files(output, [PLAN])


def _remove_leftovers(output: str) -> None:
    """Removes the temporary files of writers that were killed."""
    for directory in (output, storage.join(output, COMMITS), storage.join(output, REJECTED)):
        storage.remove_files(directory, [name for name in _listdir(directory) if storage.is_temporary(name)])


def _listdir(path: str) -> list[str]:
    return storage.listdir(path) if storage.isdir(path) else []


def _json(content: Any) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _some(texts: Sequence[str]) -> str:
    return ", ".join(texts[:3]) + (f" and {len(texts) - 3} more" if len(texts) > 3 else "")
