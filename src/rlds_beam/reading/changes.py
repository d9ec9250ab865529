"""Noticing that an input file changes while a job reads it."""

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

AGAIN = "run the same command again once the file stays as it is"
"""What to do about a changed file, for a job that keeps nothing."""

Stamp = tuple[int, int, int, int]
"""Inode, size, time of the last change of the content, time of the last change of anything. A program cannot set the
last one (ctime), so equal stamps mean equal content, even if a replaced file has the times of the old one."""


class _Seen(NamedTuple):
    """One shard when the job was planned.

    Attributes:
      shard: the shard.
      stamps: by path, of the shard's file and its companions; None of a file in a bucket, or of none.
      content: `Framing.content`; None if it was not asked for, and the stamps alone count.
    """

    shard: Shard
    stamps: tuple[tuple[str, Stamp | None], ...]
    content: str | None


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """The input's files when the job was planned. Pickles.

    `verify` takes a call of the operating system for each local file whose stamp is the same, which is nearly always.
    Only a file with another stamp is read, to find out whether its content differs.

    Attributes:
      files: how the records of a shard are read.
      seen: by split and index of the shard.
      advice: what to do about a file that changed, for the error.
    """

    files: RecordFormat
    seen: dict[tuple[str, int], _Seen]
    advice: str

    @classmethod
    def of(cls, source: Source, advice: str, framing: Framing | None = None) -> Snapshot:
        """Looks at the input's files, if it has any.

        Args:
          source: the dataset.
          advice: what to do about a file that changed.
          framing: the source's framing, for fingerprints of the content of local files. Without it, a local file has
            changed if its inode, size, or modification time has.

        Raises:
          UsageError: a file cannot be read.
        """
        places, stamps = [], []
        for split in source.splits if source.has_files else ():
            for shard in dict.fromkeys(segment.shard for segment in select_segments(source, split)):
                paths = (shard.path, *source.companions(shard))
                places.append((split.name, shard))
                stamps.append(tuple((path, _stamp(path)) for path in paths))  # before the content is read
        shards = [shard for _, shard in places]
        companions = [[path for path, _ in of_shard[1:]] for of_shard in stamps]
        contents: Sequence[str | None] = [None] * len(shards)
        if framing is not None or any(storage.scheme(shard.path) is not None for shard in shards):
            contents = (framing or Framing(source)).content(shards, companions)
        seen = {
            (split, shard.index): _Seen(shard, stamp, content)
            for (split, shard), stamp, content in zip(places, stamps, contents, strict=True)
        }
        return cls(source.files, seen, advice)

    def content(self) -> dict[str, list[tuple[str, str | None]]]:
        """By split: the name of each shard, and the fingerprint of its content."""
        by_split: dict[str, list[tuple[str, str | None]]] = {}
        for (split, _), seen in self.seen.items():
            by_split.setdefault(split, []).append((storage.split(seen.shard.path)[1], seen.content))
        return by_split

    def verify(self, split: str, index: int) -> None:
        """Raises NotVerifiedError if a shard that was read is not what it was when the job was planned."""
        seen = self.seen.get((split, index))
        if seen is not None and (path := self._changed(seen)) is not None:
            raise NotVerifiedError(f"{path} changed while the job was reading the dataset: {self.advice}")

    def verify_all(self) -> None:
        """Raises NotVerifiedError if any of the shards has changed."""
        places = list(self.seen)
        if places:
            storage.at_once(lambda place: self.verify(*place), places, self.seen[places[0]].shard.path)

    def _changed(self, seen: _Seen) -> str | None:
        now = [(path, _stamp(path)) for path, _ in seen.stamps]
        # Inode, size and modification time stay when only a permission or the number of links changes.
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


def _stamp(path: str) -> Stamp | None:
    if storage.scheme(path) is not None:
        return None
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def files_in(folders: Iterable[str]) -> list[str]:
    """The files in these local directories, sorted: for `Source.companions`."""
    return [os.path.join(folder, name) for folder in folders for name in storage.sizes(folder) if name[0] != "."]
