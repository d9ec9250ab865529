"""Publishes a finished output: its plan first, its data in commits, its metadata and manifest last.

So the Hub shows at any time what a local directory would: a plan without a manifest is unfinished, and the same command
resumes it. A file whose content the Hub has is not sent again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from rlds_beam import storage, worker_status
from rlds_beam._version import __version__
from rlds_beam.encoding.checked_json import read_json
from rlds_beam.errors import BucketError, NotVerifiedError, UsageError
from rlds_beam.hub.repository import FileToSend, RemoteFile, Repository
from rlds_beam.output.files import MANIFEST, PLAN, compute_checksum, listdir
from rlds_beam.output.manifest import read_manifest
from rlds_beam.output.plans import OutputPlan, holds, read_plan
from rlds_beam.text import count, format_size, printable, some

_FILES, _BYTES = 200, 4 << 30
"""Most files and bytes in a commit, if there is more than one file. The Hub must make a commit within a minute."""
_HARMLESS = (".gitattributes", "README.md", "LICENSE", "LICENSE.md", "LICENSE.txt")
"""Files that may be in a repository before the first upload."""


@dataclasses.dataclass(frozen=True)
class Upload:
    """An output to publish.

    Attributes:
      directory: the output.
      plan: its plan.
      data: its data files.
      metadata: its other files; the manifest is the last one.
      tags: the tags that loaders look up.
    """

    directory: str
    plan: OutputPlan
    data: tuple[FileToSend, ...]
    metadata: tuple[FileToSend, ...]
    tags: tuple[str, ...]

    @property
    def files(self) -> tuple[FileToSend, ...]:
        return (*self.data, *self.metadata)


@dataclasses.dataclass(frozen=True)
class Work:
    """The files that an upload adds and removes.

    Attributes:
      missing: the files that the Hub does not have.
      stale: files of an earlier upload that do not belong to this one.
      is_new: whether the repository must be created.
    """

    missing: tuple[FileToSend, ...]
    stale: tuple[str, ...]
    is_new: bool

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.missing)


def open_upload(directory: str, destination: str) -> Upload:
    """Finds the files of a finished output, and checks their sizes.

    Raises:
      UsageError: the directory is not a finished output on this machine.
      NotVerifiedError: a file is missing or has another size than the manifest says.
    """
    if storage.scheme(directory) is not None:
        raise UsageError(f"{directory}: only a directory on this machine can be published; copy it first")
    plan = read_plan(directory) if storage.isdir(directory) else None
    if plan is None:
        raise UsageError(
            f"{directory} is not an output of rlds-beam (it has no {PLAN}): convert the dataset first; 'hf upload' "
            "publishes any directory"
        )
    manifest = read_manifest(directory)
    shards = {entry["file"]: entry for entry in manifest["shards"] if entry["records"] or entry["bytes"]}
    data: list[FileToSend] = []
    metadata: list[FileToSend] = []
    for name in _names(directory, plan):
        path = storage.below(directory, name)
        size, shard = storage.size(path), shards.pop(name, None)
        if shard is not None and size != shard["bytes"]:
            raise NotVerifiedError(f"{path} has {size:,} bytes, but {MANIFEST} says {shard['bytes']:,}: convert again")
        file = FileToSend(name, path, size, "" if shard is None else shard["checksum"])
        (metadata if shard is None else data).append(file)
    if lost := [name for name, shard in shards.items() if shard["records"]]:
        raise NotVerifiedError(f"{directory}: missing {some(lost)}: run its command again")
    if not any(file.name == CARD for file in metadata):
        content = card(directory, plan, manifest, destination).encode()
        metadata.append(FileToSend(CARD, content, len(content)))
    metadata.sort(key=lambda file: (file.name == MANIFEST, file.name))
    return Upload(directory, plan, tuple(data), tuple(metadata), _tags(directory, plan))


def _names(directory: str, plan: OutputPlan) -> Iterator[str]:
    """The files of an output; temporary files, commits, and rejected records stay here."""
    for parent in ("", *plan.directories):
        for name in storage.sizes(storage.join(directory, parent)) if listdir(storage.join(directory, parent)) else ():
            file = f"{parent}/{name}" if parent else name
            if plan.names(file) or file in (PLAN, MANIFEST, CARD):
                yield file


def _tags(directory: str, plan: OutputPlan) -> tuple[str, ...]:
    """LeRobot loads the tag of its codebase version, not the branch."""
    if plan.content.get("to") != "lerobot":
        return ()
    info = read_json(storage.join(directory, "meta/info.json"))
    version = info.get("codebase_version") if isinstance(info, dict) else None
    return (version,) if isinstance(version, str) else ()


def survey(upload: Upload, repository: Repository, *, private: bool, overwrite: bool) -> Work:
    """Compares an output with the repository; changes nothing.

    Raises:
      UsageError: the repository holds something else, or is public although `private` was asked for.
      BucketAccessError: it cannot be used.
    """
    about = repository.about()
    if about is None:
        return Work(upload.files, (), True)
    if private and about.get("private") is False:
        raise UsageError(f"{repository.path} exists and is public: make it private in its settings, or drop --private")
    head = repository.head()
    there = {} if head is None else repository.files(head)
    earlier = read_plan(repository.at(head)) if head is not None and PLAN in there else None
    wanted = {file.name for file in upload.files}
    ours = {name for name in there if earlier is not None and (earlier.names(name) or name in (PLAN, MANIFEST))}
    others = sorted(there.keys() - ours - {*_HARMLESS})
    if not overwrite and earlier is None and others:
        raise UsageError(
            f"{repository.path} holds files that rlds-beam did not upload ({some(others)}): choose another repository, "
            "or add --overwrite, which keeps them"
        )
    if not overwrite and earlier is not None and earlier.content != upload.plan.content:
        raise UsageError(
            f"{repository.path} holds another output, of {earlier.content.get('dataset')}: choose another repository, "
            "or replace it with --overwrite"
        )
    missing = tuple(file for file in upload.files if not _is_there(file, there.get(file.name)))
    return Work(missing, tuple(sorted(ours - wanted - {*_HARMLESS})), False)


def _is_there(file: FileToSend, remote: RemoteFile | None) -> bool:
    """Whether the Hub has a file. A card that people may have edited there is kept if this one was generated."""
    return file.equals(remote) or (remote is not None and isinstance(file.content, bytes))


def publish(upload: Upload, work: Work, repository: Repository, message: str, *, private: bool = False) -> str:
    """Does the work; returns the last commit.

    Raises:
      NotVerifiedError: a file has another checksum than the manifest says; the metadata was not sent.
      BucketError: the Hub failed; the same call resumes.
    """
    if work.is_new:
        repository.create(private)
    if (head := repository.head()) is None:
        repository.create_branch()
        if (head := repository.head()) is None:
            raise BucketError(f"{repository.path}: the Hub made the branch {repository.branch}, but does not have it")
    batches = _batches(upload, work)
    stale = {*work.stale}
    if len(batches) > 1:  # until the last commit, the Hub must not show a finished dataset
        stale |= ({batch.name for batch in batches[-1]} - {PLAN, *_HARMLESS}) & repository.files(head).keys()
    for number, batch in enumerate(batches, 1):
        for file in batch:
            _verify(file)
        part = f" (part {number} of {len(batches)})" if len(batches) > 1 else ""
        head = repository.commit(f"{message}{part}", batch, sorted(stale))
        worker_status.count(bytes=sum(file.size for file in batch))
        stale = set()
    return head


def _batches(upload: Upload, work: Work) -> list[list[FileToSend]]:
    """The files of each commit: all in one if they are few; else the plan first, and metadata last."""
    if not work.missing and not work.stale:
        return []
    if len(work.missing) <= _FILES and work.bytes <= _BYTES:
        return [[*work.missing]]
    names = {file.name for file in upload.metadata}
    batches: list[list[FileToSend]] = [[file for file in work.missing if file.name == PLAN]]
    size = 0
    for file in work.missing:
        if file.name in names:
            continue
        if len(batches[-1]) >= _FILES or size + file.size > _BYTES:
            batches.append([])
            size = 0
        batches[-1].append(file)
        size += file.size
    # A finished dataset has its manifest in the last commit even if the Hub has the same one now: it is removed first.
    last = [file for file in upload.metadata if file.name != PLAN and (file in work.missing or file.name == MANIFEST)]
    return [*([batches[0]] if batches[0] else []), *batches[1:], last]


def _verify(file: FileToSend) -> None:
    if file.checksum and isinstance(file.content, str) and compute_checksum(file.content) != file.checksum:
        raise NotVerifiedError(
            f"{file.content} differs from its checksum in {MANIFEST}: it was damaged after it was written; convert "
            "again with --overwrite"
        )


CARD = "README.md"
_CARD = """---
tags:
- rlds-beam
- {to}
---

# {name}

{items} items in {files}, {size}: {held}, written by rlds-beam {version} from `{dataset}`. `manifest.json` lists the
files with their checksums, and `plan.json` the input and the options.

```python
import rlds_beam

{read}
```
"""


def card(directory: str, plan: OutputPlan, manifest: Mapping[str, Any], destination: str) -> str:
    """The text of the card.

    Args:
      directory: the output.
      plan: its plan.
      manifest: its manifest.
      destination: the repository that it is published in.
    """
    del directory
    to = printable(plan.content.get("to"), 40)
    readable = to in ("columns", "trajectories", "rlds")
    read = f'rows = rlds_beam.open_dataset("{destination}")' if readable else f'rlds_beam.inspect("{destination}")'
    return _CARD.format(
        to=to,
        name=manifest["name"],
        items=f"{manifest['items']:,}",
        files=count(len(manifest["shards"]), "file"),
        size=format_size(manifest["bytes"]),
        held=holds(plan),
        version=__version__,
        dataset=printable(plan.content.get("dataset"), 100).replace("`", "'"),
        read=read,
    )
