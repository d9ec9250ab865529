"""Detects input files that change while a job reads them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rlds_beam import storage
from rlds_beam.encoding.base import RecordFormat
from rlds_beam.errors import NotVerifiedError
from rlds_beam.reading.base import Shard, Source, Split
from rlds_beam.reading.framing import Framing
from rlds_beam.reading.shard_list import Columns, ShardList
from rlds_beam.typing import Array

_AT_ONCE = 8192
"""Shards whose fingerprints are texts at the same time."""

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


class _SeenFiles(NamedTuple):
    """The shards of a split at the time the job was planned; a hundred bytes for each.

    Attributes:
      shards: the shards of the split.
      columns: a row for each shard that is read, sorted by index: `index`, `position` in `shards`, `stamp` (-1: none),
        and `content` (empty: none).
      companions: the stamps of files that are read along with a shard, by its index.
    """

    shards: Sequence[Shard]
    columns: Columns
    companions: Mapping[int, tuple[tuple[str, storage.Stamp | None], ...]]

    def at(self, row: int) -> Seen:
        columns = self.columns
        shard = self.shards[int(columns["position"][row])]
        inode, *others = columns["stamp"][row].tolist()
        stamp = None if inode < 0 else (inode, *others)
        content = columns["content"][row].decode() or None
        return Seen(shard, ((shard.path, stamp), *self.companions.get(shard.index, ())), content)

    def find(self, index: int) -> Seen | None:
        indices = self.columns["index"]
        row = int(np.searchsorted(indices, index))
        return self.at(row) if row < len(indices) and indices[row] == index else None


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """The input files at the time the job was planned. Picklable.

    `verify` makes one system call for each local file with an unchanged stamp, which is nearly always the case. Only a
    file with a different stamp is read, to find out whether its content differs.

    Attributes:
      files: reads the records of a shard.
      splits: the files of each split.
      advice: the remedy for a changed file, for the error.
    """

    files: RecordFormat
    splits: Mapping[str, _SeenFiles]
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
        splits = {}
        for split in source.splits if source.has_files else ():
            taken = split.shards if not split.sliced else [shard for shard, _, _ in split.taken]
            positions = {shard.index: i for i, shard in enumerate(split.shards)} if split.sliced else None
            beside = {shard.index: files for shard in taken if (files := source.companions(shard))}
            stamps = np.full((len(taken), 4), -1, np.int64)
            index, position = np.zeros((2, len(taken)), np.int64)
            for i, shard in enumerate(taken):  # before the content is read
                stamps[i] = storage.stamp(shard.path) or -1
                index[i], position[i] = shard.index, i if positions is None else positions[shard.index]
            companions = {i: tuple((path, storage.stamp(path)) for path in files) for i, files in beside.items()}
            content = np.full(len(taken), b"", "S1")
            if framing is not None or any(storage.scheme(shard.path) is not None for shard in taken[:1]):
                content = _contents(framing or Framing(source), taken, beside)
            order = np.argsort(index, kind="stable")
            columns = {"index": index, "position": position, "stamp": stamps, "content": content}
            found = Columns({name: column[order] for name, column in columns.items()})
            splits[split.name] = _SeenFiles(split.shards, found, companions)
        return cls(source.files, splits, advice)

    def __iter__(self) -> Iterator[tuple[str, Seen]]:
        """The shards with their splits."""
        for split, files in self.splits.items():
            yield from ((split, files.at(row)) for row in range(len(files.columns["index"])))

    def only(self, chosen: Mapping[str, Collection[int]]) -> Snapshot:
        """A snapshot of these shards, by split and index."""
        splits = {}
        for split, files in self.splits.items():
            kept = np.isin(files.columns["index"], list(chosen.get(split, ())))
            columns = Columns({name: column[kept] for name, column in files.columns.arrays.items()})
            splits[split] = files._replace(columns=columns)
        return dataclasses.replace(self, splits=splits)

    def contents(self, split: Split) -> Array:
        """The fingerprint of each shard's content, as bytes (N,); empty if it is not read, or has none."""
        shards, found = split.shards, self.splits.get(split.name)
        if found is None or not len(found.columns["index"]):
            return np.full(len(shards), b"", "S1")
        known, content = found.columns["index"], found.columns["content"]
        wanted = shards.indices if isinstance(shards, ShardList) else np.array([s.index for s in shards], np.int64)
        rows = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
        return np.where(known[rows] == wanted, content[rows], b"")

    def verify(self, split: str, index: int) -> None:
        """Raises NotVerifiedError if a shard has changed since the job was planned."""
        seen = self._find(split, index)
        if seen is not None and (path := self._find_change(seen)) is not None:
            raise NotVerifiedError(f"{path} changed while the job was reading the dataset: {self.advice}")

    def _find(self, split: str, index: int) -> Seen | None:
        return self.splits[split].find(index) if split in self.splits else None

    def verify_all(self) -> None:
        """Raises NotVerifiedError if any shard has changed."""
        for split, files in self.splits.items():
            places = [(split, index) for index in files.columns["index"].tolist()]
            if places:
                storage.at_once(lambda place: self.verify(*place), places, files.shards[0].path)

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


def _contents(framing: Framing, shards: Sequence[Shard], companions: Mapping[int, Sequence[str]]) -> Array:
    """The fingerprints of shards, bytes (N,); empty for a missing file."""
    parts = [np.full(0, b"", "S1")]
    for start in range(0, len(shards), _AT_ONCE):
        some = shards[start : start + _AT_ONCE]
        found = framing.content(some, [companions.get(shard.index, ()) for shard in some])
        parts.append(np.array([(text or "").encode() for text in found], np.bytes_))
    return np.concatenate(parts)


def files_in(folders: Iterable[str]) -> list[str]:
    """The files in these local directories, sorted; for `Source.companions`."""
    return [os.path.join(folder, name) for folder in folders for name in storage.sizes(folder) if name[0] != "."]
