"""The directory that a user's pipeline writes to, and the rejected records that it keeps there.

A conversion knows its work ranges before it starts: each commits at once, so a killed job resumes. In a user's
pipeline the runner chooses the bundles, and may choose others on the next run. So its bundles write parts with random
names (`keyed_parts`), and nothing is committed before all of them are finished.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from rlds_beam import naming, storage
from rlds_beam.checking.verdicts import Rejection
from rlds_beam.encoding.metadata import decode_whole, encode
from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.output.commits import rejected_path
from rlds_beam.output.directory import check_output, make_ready
from rlds_beam.output.files import PARTS, REJECTED, REJECTED_LIST
from rlds_beam.output.plans import OutputPlan, read_plan, remove_output
from rlds_beam.output.shards import RejectedWriter, ShardInfo
from rlds_beam.reading.base import WorkRange
from rlds_beam.writing.keyed_parts import KeyedSink, remove_parts


class RejectedPart(NamedTuple):
    """The rejected records of a bundle: their split, the path without its ending, and what the file contains."""

    split: str
    path: str
    info: ShardInfo


def write_rejections(output: str, rejections: Iterable[Rejection]) -> list[RejectedPart]:
    """Writes the rejected records of a bundle: a part for each split."""
    writers: dict[str, tuple[str, RejectedWriter]] = {}
    for rejection in rejections:
        split = rejection.key.split
        if split not in writers:
            name = f"{naming.check_name(split, 'the split of an episode')}-{uuid.uuid4().hex}"
            storage.makedirs(storage.below(output, REJECTED, PARTS))
            path = storage.below(output, REJECTED, PARTS, name)
            writers[split] = (path, RejectedWriter(path))
        writers[split][1].write(rejection.payload, rejection.to_json(), rejection.key)
    parts = [(split, path, writer.commit()) for split, (path, writer) in writers.items()]
    return [RejectedPart(split, path, info) for split, path, info in parts if info is not None]


def commit_rejections(output: str, parts: Sequence[RejectedPart]) -> dict[str, Any]:
    """Names parts of rejected records `rejected/<split>-00000-of-00003`, and lists them in `rejected.json`.

    Replaces those that an earlier pipeline listed.
    """
    listed = []
    for work, part in _number(parts):
        path = rejected_path(output, work)
        for ending in (".tfrecord", ".jsonl"):
            if storage.exists(part.path + ending):  # else an earlier attempt moved it
                storage.rename(part.path + ending, path + ending)
        listed.append({"file": path + ".tfrecord", **msgspec.structs.asdict(part.info)})
    content = {"id": uuid.uuid4().hex, "records": sum(part.info.records for part in parts), "files": listed}
    storage.makedirs(storage.below(output, REJECTED))
    new = {f"{work}{ending}" for work, _ in _number(parts) for ending in (".tfrecord", ".jsonl")}
    storage.remove_files(output, [f"{REJECTED}/{name}" for name in {*read_rejected_list(output).files} - new])
    storage.write_text(storage.below(output, REJECTED, REJECTED_LIST), encode(content))
    remove_parts(output, REJECTED)
    return content


class RejectedList(NamedTuple):
    """The content of `rejected.json`.

    Attributes:
      id: changes each time the file is written; None if it does not exist.
      files: the names of the files in `rejected/` that it lists.
    """

    id: str | None = None
    files: tuple[str, ...] = ()


def read_rejected_list(output: str) -> RejectedList:
    """Reads the `rejected.json` of an output. Raises UsageError if it is not a list that rlds-beam writes."""
    path = storage.join(output, REJECTED, REJECTED_LIST)
    content = decode_whole(path, _RejectedFiles)
    if content is None:
        return RejectedList()
    names = [storage.split(entry.file)[1].removesuffix(".tfrecord") for entry in content.files]
    ours = [name for name in names if naming.is_range(name)]
    return RejectedList(content.id, tuple(f"{name}{ending}" for name in ours for ending in (".tfrecord", ".jsonl")))


class _RejectedFile(msgspec.Struct):
    file: str


class _RejectedFiles(msgspec.Struct):
    files: tuple[_RejectedFile, ...]
    id: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class PipelineSink(KeyedSink):
    """A keyed sink whose directory may hold an earlier output, and the rejected records of the same pipeline.

    Attributes:
      directory, shards: as in `KeyedSink`.
      output_plan: the plan of the pipeline.
      overwrite: whether what was there is replaced.
      listed: the `RejectedList.id` before the pipeline ran. A list with another id is from this run, and stays.
    """

    directory: str
    shards: int | None
    output_plan: OutputPlan
    overwrite: bool
    listed: str | None

    def open(self) -> None:
        """Prepares the directory; raises UsageError if something was written to it since it was checked."""
        existing = read_plan(self.directory)
        if existing is not None and existing.content != self.output_plan.content:
            check_output(self.directory, self.output_plan, overwrite=self.overwrite)
            listed = read_rejected_list(self.directory)
            remove_output(self.directory, kept=() if listed.id == self.listed else (REJECTED_LIST, *listed.files))
            remove_parts(self.directory)
        make_ready(self.directory, self.output_plan)


def _number(parts: Sequence[RejectedPart]) -> list[tuple[WorkRange, RejectedPart]]:
    numbered = []
    for split in sorted({part.split for part in parts}):
        own = sorted(
            (part for part in parts if part.split == split),
            key=lambda part: (EpisodeKey.parse(str(part.info.first_key)), part.path),
        )
        numbered += [(WorkRange(split, i, len(own), ()), part) for i, part in enumerate(own)]
    return numbered
