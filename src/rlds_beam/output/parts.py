"""The output of a user's pipeline: parts that bundles wrote, named as shards when all are finished.

A bundle has no name that is the same on another run, so it writes a part with a random name. The parts that the runner
committed are listed, put in the order of their first episodes, and become the shards of the dataset; parts of bundles
that failed are left over, and removed.
"""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from rlds_beam import storage
from rlds_beam.checking.report import Report
from rlds_beam.checking.verdicts import Rejection
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.keys import EpisodeKey
from rlds_beam.output import manifest
from rlds_beam.output.shards import RejectedWriter, ShardInfo
from rlds_beam.output.trajectories import TrajectoryOutput, TrajectoryWriter
from rlds_beam.reading.plan import WorkRange

PARTS = "_parts"


@dataclasses.dataclass(frozen=True)
class Part:
    """A file that a bundle wrote.

    Attributes:
      split: of its episodes.
      path: without the ending, for rejected records.
      info: what is in it.
      predicted: items that were to be in it.
    """

    split: str
    path: str
    info: ShardInfo
    predicted: int = 0

    @property
    def first(self) -> EpisodeKey:
        """Of the first record; what the order of the shards follows."""
        return EpisodeKey.parse(self.info.first_key) if self.info.first_key else EpisodeKey("", self.split, 0, 0)


class PartWriter:
    """Writes the items of the episodes of one bundle: a part for each split that it meets."""

    def __init__(self, output: TrajectoryOutput):
        self._output = output
        self._open: dict[str, tuple[str, TrajectoryWriter]] = {}

    def add(self, episode: Episode) -> None:
        """Writes the items of one valid episode.

        Raises:
          BadEpisode: it cannot be written; nothing of it was.
        """
        split = episode.key.split
        if split not in self._open:
            path = _part_path(self._output.directory, split)
            self._open[split] = (path, TrajectoryWriter(path, self._output.conversion))
        self._open[split][1].write([episode])

    def finish(self) -> list[Part]:
        """Completes the parts of the bundle."""
        parts = [Part(split, path, part.finish(), part.predicted) for split, (path, part) in self._open.items()]
        self._open = {}
        return parts

    def abort(self) -> None:
        """Removes what was not finished."""
        for _, part in self._open.values():
            part.abort()
        self._open = {}


def _part_path(output: str, split: str) -> str:
    """A name that no other bundle takes."""
    storage.makedirs(storage.join(output, PARTS))
    return storage.join(output, PARTS, f"{split}-{uuid.uuid4().hex}")


def write_rejections(output: str, rejections: Iterable[Rejection]) -> list[Part]:
    """Writes the rejected records of one bundle: a part for each split."""
    writers: dict[str, tuple[str, RejectedWriter]] = {}
    for rejection in rejections:
        split = rejection.key.split
        if split not in writers:
            path = _part_path(storage.join(output, manifest.REJECTED), split)
            writers[split] = (path, RejectedWriter(path))
        writers[split][1].write(rejection.payload, rejection.to_json(), rejection.key)
    parts = [(split, path, writer.commit()) for split, (path, writer) in writers.items()]
    return [Part(split, path, info) for split, path, info in parts if info is not None]


def commit_parts(output: TrajectoryOutput, parts: Sequence[Part]) -> dict[str, Any]:
    """Names the parts as shards and finishes the dataset; returns its manifest. May be run again.

    Raises:
      NotVerifiedError: another number of items was written than predicted.
    """
    ranges = []
    for work, part in _numbered(parts):
        file = output.file(work)
        for ending in ("", *output.beside):
            _rename(part.path + ending, storage.join(output.directory, file + ending))
        manifest.commit_range(
            output.directory, work, file, part.info,
            beside=[file + ending for ending in output.beside],
            predicted=part.predicted, rejected=None, report=Report(items_written=part.info.records).to_json(),
        )  # fmt: skip
        ranges.append(work)
    committed = manifest.commit_dataset(output.directory, output.name, ranges, output.complete)
    storage.rmtree(storage.join(output.directory, PARTS))
    return committed


def commit_rejections(output: str, parts: Sequence[Part]) -> dict[str, Any]:
    """Names the parts of rejected records `rejected/<split>-00000-of-00003`, and lists them in `rejected.json`."""
    listed = []
    for work, part in _numbered(parts):
        path = manifest.rejected_path(output, work)
        for ending in (".tfrecord", ".jsonl"):
            _rename(part.path + ending, path + ending)
        listed.append({"file": path + ".tfrecord", **dataclasses.asdict(part.info)})
    content = {"records": sum(part.info.records for part in parts), "files": listed}
    directory = storage.join(output, manifest.REJECTED)
    storage.makedirs(directory)
    storage.write_text(storage.join(directory, "rejected.json"), json.dumps(content, indent=2) + "\n")
    storage.rmtree(storage.join(directory, PARTS))
    return content


def _numbered(parts: Sequence[Part]) -> list[tuple[WorkRange, Part]]:
    numbered = []
    for split in sorted({part.split for part in parts}):
        own = sorted((part for part in parts if part.split == split), key=lambda part: (part.first, part.path))
        numbered += [(WorkRange(split, i, len(own), ()), part) for i, part in enumerate(own)]
    return numbered


def _rename(source: str, destination: str) -> None:
    """Moves a file; one that an earlier attempt moved already is where it should be."""
    if storage.exists(source):
        storage.rename(source, destination)
