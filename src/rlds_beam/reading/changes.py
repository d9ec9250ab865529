"""Detects input files that change while a job reads them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rlds_beam import storage
from rlds_beam.encoding.base import RecordFormat
from rlds_beam.errors import NotVerifiedError
from rlds_beam.reading.base import Shard, Source
from rlds_beam.reading.framing import Framing
from rlds_beam.reading.plan import select_segments

AGAIN = "run the same command again when the file no longer changes"
"""The remedy for a changed file in a job that keeps nothing."""


class Seen(NamedTuple):
    """A shard at the time the job was planned.

    Attributes:
      shard: the shard.
      stamps: stamps by path of the shard's file and its companions; None for a file in a bucket or a missing file.
      content: `Framing.content`; None if it was not requested, so that only the stamps count.
    """

    shard: Shard
    stamps: tuple[tuple[str, storage.Stamp | None], ...]
    content: str | None


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """The input files at the time the job was planned. Picklable.

    `verify` makes one system call for each local file with an unchanged stamp, which is nearly always the case. Only a
    file with a different stamp is read, to find out whether its content differs.

    Attributes:
      files: reads the records of a shard.
      seen: the shards by split and index.
      advice: the remedy for a changed file, for the error.
    """

    files: RecordFormat
    seen: dict[tuple[str, int], Seen]
    advice: str

    @classmethod
    def of(cls, source: Source, advice: str, framing: Framing | None = None) -> Snapshot:
        """Takes a snapshot of the input files, if there are any.

        Args:
          source: the dataset.
          advice: the remedy for a changed file.
          framing: the source's framing, for content fingerprints of local files. Without it, a local file counts as
            changed if its inode, size, or modification time has changed.

        Raises:
          UsageError: a file cannot be read.
        """
        places, stamps = [], []
        for split in source.splits if source.has_files else ():
            for shard in dict.fromkeys(segment.shard for segment in select_segments(source, split)):
                paths = (shard.path, *source.companions(shard))
                places.append((split.name, shard))
                stamps.append(tuple((path, storage.stamp(path)) for path in paths))  # before the content is read
        shards = [shard for _, shard in places]
        companions = [[path for path, _ in of_shard[1:]] for of_shard in stamps]
        contents: Sequence[str | None] = [None] * len(shards)
        if framing is not None or any(storage.scheme(shard.path) is not None for shard in shards):
            contents = (framing or Framing(source)).content(shards, companions)
        seen = {
            (split, shard.index): Seen(shard, stamp, content)
            for (split, shard), stamp, content in zip(places, stamps, contents, strict=True)
        }
        return cls(source.files, seen, advice)

    def content_of(self, split: str, index: int) -> str | None:
        """The fingerprint of a shard's content; None if it is not read, or has none."""
        seen = self.seen.get((split, index))
        return None if seen is None else seen.content

    def verify(self, split: str, index: int) -> None:
        """Raises NotVerifiedError if a shard has changed since the job was planned."""
        seen = self.seen.get((split, index))
        if seen is not None and (path := self._find_change(seen)) is not None:
            raise NotVerifiedError(f"{path} changed while the job was reading the dataset: {self.advice}")

    def verify_all(self) -> None:
        """Raises NotVerifiedError if any shard has changed."""
        places = list(self.seen)
        if places:
            storage.at_once(lambda place: self.verify(*place), places, self.seen[places[0]].shard.path)

    def _find_change(self, seen: Seen) -> str | None:
        now = [(path, storage.stamp(path)) for path, _ in seen.stamps]
        # Inode, size, and mtime stay the same if only a permission or the number of links changes.
        compared = 4 if seen.content is not None else 3
        different = [
            path
            for (path, before), (_, after) in zip(seen.stamps, now, strict=True)
            if before is None or after is None or before[:compared] != after[:compared]
        ]
        if not different:
            return None
        if seen.content is None:
            return different[0]
        companions = [path for path, _ in seen.stamps[1:]]
        (content,) = Framing(self.files).content([seen.shard], [companions])
        return None if content == seen.content else different[0]


def files_in(folders: Iterable[str]) -> list[str]:
    """The files in these local directories, sorted; for `Source.companions`."""
    return [os.path.join(folder, name) for folder in folders for name in storage.sizes(folder) if name[0] != "."]
