"""Base class of outputs with a few large files: ranges write parts, and `complete` merges them."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rlds_beam import storage
from rlds_beam.connectors.base import Batch
from rlds_beam.encoding.tfrecord.rows import frame
from rlds_beam.episodes.episode import Episode
from rlds_beam.errors import BadEpisode
from rlds_beam.formats.arrays.parts import Part, PartColumn, PartWriter
from rlds_beam.output.base import FileRangeWriter
from rlds_beam.output.commits import RangeCommit
from rlds_beam.output.merging import MergedFile, MergesRanges
from rlds_beam.output.shards import ShardInfo, ShardWriter
from rlds_beam.reading.plan import WorkRange
from rlds_beam.typing import Array

PARTS = "parts"
"""Directory of parts that are not yet merged."""


class MergedOutput(MergesRanges):
    """An output of a few large files.

    Attributes:
      splits: the names of the dataset's splits.
    """

    splits: tuple[str, ...]

    @property
    @abc.abstractmethod
    def part_columns(self) -> tuple[PartColumn, ...]:
        """The columns of a part."""

    @abc.abstractmethod
    def encode(self, episode: Episode) -> Sequence[Array]:
        """The rows of each column of a part.

        Raises:
          BadEpisode: the format cannot hold the episode.
        """

    def note(self, about: dict[str, Any], values: Sequence[Array]) -> None:
        """Adds what merging will need to know about this part."""

    @abc.abstractmethod
    def merge(self, split: str, parts: Sequence[Part]) -> Iterator[MergedFile]:
        """Writes the files of a split. Empty parts are not passed."""

    def describe_merged(self, parts: Mapping[str, Sequence[Part]]) -> dict[str, Any]:
        """Writes other files; returns the manifest's entry."""
        del parts
        return {}

    def measure(self, batches: Sequence[Batch]) -> int:
        size = 0
        for episode in (episode for batch in batches for episode in batch.episodes):
            try:
                size += sum(rows.nbytes for rows in self.encode(episode)) + self.overhead
            except BadEpisode:  # it will be rejected and kept as read
                size += len(frame(episode.payload))
        return size

    @property
    def overhead(self) -> int:
        """Overhead of an episode, in bytes."""
        return 0

    def file(self, work: WorkRange) -> str:
        return f"{PARTS}/{work}.part"

    def open_range(self, work: WorkRange) -> FileRangeWriter:
        return PartRangeWriter(self, storage.below(self.directory, self.file(work)))

    def complete(self, commits: Sequence[RangeCommit]) -> dict[str, Any]:
        parts: dict[str, list[Part]] = {}
        for commit in commits:
            if commit.items:
                part = Part(storage.join(self.directory, commit.files[0].file))
                parts.setdefault(commit.split, []).append(part)
        merged = [file for split, some in parts.items() for file in self.merge(split, some)]
        return {**self.describe_merged(parts), "merged": merged}


class PartRangeWriter:
    """Writes the part of a range (`output.base.FileRangeWriter`)."""

    def __init__(self, output: MergedOutput, path: str):
        self._output, self._part = output, PartWriter(path, output.part_columns)
        self._about: dict[str, Any] = {}
        self.predicted = 0

    def write(self, batch: Batch) -> None:
        encoded = [self._output.encode(episode) for episode in batch.episodes]
        for episode, values in zip(batch.episodes, encoded, strict=True):  # nothing can fail after encoding
            self._output.note(self._about, values)
            self._part.add(values, episode.key)
            self.predicted += 1

    def finish(self) -> ShardInfo:
        return self._part.commit(self._about)

    def abort(self) -> None:
        self._part.abort()


def write_merged(directory: str, name: str, split: str, episodes: int, pieces: Iterable[bytes]) -> MergedFile:
    """Writes these bytes to a file, which gets its name when complete."""
    with ShardWriter(storage.below(directory, name)) as writer:
        writer.write(pieces, episodes)
        return MergedFile(name, split, dataclasses.replace(writer.commit(), records=episodes))
