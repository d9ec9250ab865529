"""The output of a user's pipeline: bundles write parts, which become shards when all are finished.

A conversion knows its work ranges before it starts: each range has a name, writes its file under that name, and
commits at once, so a killed job resumes. In a user's pipeline the runner chooses the bundles, and may choose others on
the next run. So a bundle writes parts with random names and commits nothing. When all bundles are finished, the parts
that the runner kept are sorted by their first episodes and become ranges. From there on the protocol is the same: a
commit for each range (`commits.commit_range`), then the checks, the metadata, and the manifest
(`manifest.commit_dataset`). Parts of failed bundles are removed.
"""

from __future__ import annotations

import dataclasses
import re
import uuid
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from rlds_beam import naming, storage
from rlds_beam.checking.verdicts import Rejection
from rlds_beam.encoding.checked_json import TEXT, check_json, read_json
from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.formats.trajectories.output import TrajectoryOutput, TrajectoryWriter
from rlds_beam.output.commits import commit_range, rejected_path
from rlds_beam.output.directory import check_output, make_ready
from rlds_beam.output.files import PARTS, REJECTED, REJECTED_LIST, listdir, to_json
from rlds_beam.output.manifest import commit_dataset
from rlds_beam.output.plans import OutputPlan, read_plan
from rlds_beam.output.removal import remove_output
from rlds_beam.output.shards import RejectedWriter, ShardInfo, WrittenFile
from rlds_beam.processing.report import Report
from rlds_beam.reading.plan import WorkRange
from rlds_beam.trajectories.items import Items

_PART = re.compile(r".+-[0-9a-f]{32}(\.spec|\.tfrecord|\.jsonl)?")


@dataclasses.dataclass(frozen=True)
class BundleFile:
    """A file written by a bundle.

    Attributes:
      split: the split of its episodes.
      path: the path; without the ending, for rejected records.
      info: what the file contains.
      predicted: the number of items that it should contain.
    """

    split: str
    path: str
    info: ShardInfo
    predicted: int = 0

    @property
    def first(self) -> EpisodeKey:
        """The key of the first record, which determines the order of shards."""
        return EpisodeKey.parse(self.info.first_key) if self.info.first_key else EpisodeKey("", self.split, 0, 0)


class BundleWriter:
    """Writes the items of a bundle: a part for each split."""

    def __init__(self, output: TrajectoryOutput):
        self._output = output
        self._open: dict[str, tuple[str, TrajectoryWriter]] = {}

    def add(self, items: Items) -> None:
        """Writes the items of an episode. Raises BadEpisode if they cannot be written; none of them were."""
        split = items.key.split
        if split not in self._open:
            path = _part_path(self._output.directory, split)
            self._open[split] = (path, TrajectoryWriter(path, self._output.conversion))
        self._open[split][1].write_items(items)

    def finish(self) -> list[BundleFile]:
        """Completes the parts of the bundle."""
        parts = [BundleFile(split, path, part.finish(), part.predicted) for split, (path, part) in self._open.items()]
        self._open = {}
        return parts

    def abort(self) -> None:
        """Removes unfinished parts."""
        for _, part in self._open.values():
            part.abort()
        self._open = {}


def _part_path(output: str, split: str, *directory: str) -> str:
    """A unique path in `directory` of the output."""
    name = f"{naming.check_name(split, 'the split of an episode')}-{uuid.uuid4().hex}"
    storage.makedirs(storage.below(output, *directory, PARTS))
    return storage.below(output, *directory, PARTS, name)


def write_rejections(output: str, rejections: Iterable[Rejection]) -> list[BundleFile]:
    """Writes the rejected records of a bundle: a part for each split."""
    writers: dict[str, tuple[str, RejectedWriter]] = {}
    for rejection in rejections:
        split = rejection.key.split
        if split not in writers:
            path = _part_path(output, split, REJECTED)
            writers[split] = (path, RejectedWriter(path))
        writers[split][1].write(rejection.payload, rejection.to_json(), rejection.key)
    parts = [(split, path, writer.commit()) for split, (path, writer) in writers.items()]
    return [BundleFile(split, path, info) for split, path, info in parts if info is not None]


def commit_parts(output: TrajectoryOutput, parts: Sequence[BundleFile], plan: str) -> dict[str, Any]:
    """Names the parts as shards, finishes the dataset, and returns its manifest. Can be repeated.

    Args:
      plan: the `OutputPlan.digest` of the pipeline.

    Raises:
      NotVerifiedError: the number of items differs from the prediction, or another pipeline replaced the output.
    """
    ranges = []
    for work, part in _number(parts):
        file = output.file(work)
        for ending in ("", *output.sidecars):
            _rename(part.path + ending, storage.below(output.directory, file + ending))
        written = WrittenFile(file, part.info, part.predicted, output.list_sidecars(file))
        report = Report(items_written=part.info.records)
        commit_range(output.directory, work, [written], rejected=None, report=report, plan=plan)
        ranges.append(work)
    committed = commit_dataset(output.directory, output.name, ranges, output.complete, plan)
    remove_parts(output.directory)
    return committed


def commit_rejections(output: str, parts: Sequence[BundleFile]) -> dict[str, Any]:
    """Names parts of rejected records `rejected/<split>-00000-of-00003`, and lists them in `rejected.json`.

    Replaces those that an earlier pipeline listed.
    """
    listed = []
    for work, part in _number(parts):
        path = rejected_path(output, work)
        for ending in (".tfrecord", ".jsonl"):
            _rename(part.path + ending, path + ending)
        listed.append({"file": path + ".tfrecord", **dataclasses.asdict(part.info)})
    content = {"id": uuid.uuid4().hex, "records": sum(part.info.records for part in parts), "files": listed}
    storage.makedirs(storage.below(output, REJECTED))
    new = {f"{work}{ending}" for work, _ in _number(parts) for ending in (".tfrecord", ".jsonl")}
    storage.remove_files(output, [f"{REJECTED}/{name}" for name in {*read_rejected_list(output).files} - new])
    storage.write_text(storage.below(output, REJECTED, REJECTED_LIST), to_json(content))
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
    content = read_json(path) if storage.exists(path) else None
    if content is None:
        return RejectedList()
    check_json(content, {"id?": TEXT, "files": [{"file": TEXT}]}, path)
    names = [storage.split(entry["file"])[1].removesuffix(".tfrecord") for entry in content["files"]]
    ours = [name for name in names if naming.is_range(name)]
    return RejectedList(
        content.get("id"), tuple(f"{name}{ending}" for name in ours for ending in (".tfrecord", ".jsonl"))
    )


def open_parts(output: str, plan: OutputPlan, *, overwrite: bool, rejected: str | None) -> None:
    """Prepares the output directory for parts when the pipeline runs. Can be repeated.

    Args:
      plan: the plan of the pipeline.
      overwrite: see `check_output`.
      rejected: the `RejectedList.id` before the pipeline ran. A list with another id is from this run, and stays.

    Raises:
      UsageError: something was written to the directory since it was checked.
    """
    existing = read_plan(output)
    if existing is not None and existing.content != plan.content:
        check_output(output, plan, overwrite=overwrite)
        listed = read_rejected_list(output)
        remove_output(output, kept=() if listed.id == rejected else (REJECTED_LIST, *listed.files))
        remove_parts(output)
    make_ready(output, plan)


def remove_parts(output: str, *directory: str) -> None:
    """Removes parts, for example of failed bundles, from `directory` of the output."""
    parts = "/".join((*directory, PARTS))
    names = listdir(storage.below(output, parts))
    ours = [name for name in names if _PART.fullmatch(storage.final_name(name) or name)]
    storage.remove_files(output, [f"{parts}/{name}" for name in ours])
    storage.remove_empty(storage.below(output, parts))


def _number(parts: Sequence[BundleFile]) -> list[tuple[WorkRange, BundleFile]]:
    numbered = []
    for split in sorted({part.split for part in parts}):
        own = sorted((part for part in parts if part.split == split), key=lambda part: (part.first, part.path))
        numbered += [(WorkRange(split, i, len(own), ()), part) for i, part in enumerate(own)]
    return numbered


def _rename(source: str, destination: str) -> None:
    """Moves a file, unless an earlier attempt already did."""
    if storage.exists(source):
        storage.rename(source, destination)
