"""Finds duplicate episodes without reading most of the bytes, and what changed between two versions of a dataset.

A TFRecord's framing holds the length and the CRC32C of its payload: a fingerprint of each record. Only records with
equal fingerprints are read and compared by SHA-256.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from rlds_beam.encoding.base import Headers, RecordFormat
from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.errors import Violation
from rlds_beam.reading.base import Segment
from rlds_beam.reading.changes import naming_shard
from rlds_beam.reading.reader import read_segment
from rlds_beam.typing import Array

_DIGEST_WORDS = 4
"""The number of 64-bit words in a SHA-256."""


@dataclasses.dataclass(frozen=True)
class Fingerprints:
    """Fingerprints of many records, in columns (24 bytes per record).

    Attributes:
      marks: the length and CRC32C of each payload, combined, uint64 [N].
      places: the index of the segment and the position in it, int64 [N, 2].
    """

    marks: Array
    places: Array

    @classmethod
    def concatenate(cls, parts: Iterable[Fingerprints]) -> Fingerprints:
        parts = [cls(np.zeros(0, np.uint64), np.zeros((0, 2), np.int64)), *parts]
        return cls(np.concatenate([p.marks for p in parts]), np.concatenate([p.places for p in parts]))

    def suspects(self) -> dict[int, Array]:
        """The positions of records whose fingerprint is not unique, int64 [N], ascending, by segment."""
        _, inverse, counts = np.unique(self.marks, return_inverse=True, return_counts=True)
        places = self.places[counts[inverse] > 1]
        places = places[np.lexsort((places[:, 1], places[:, 0]))]
        indices, starts = np.unique(places[:, 0], return_index=True)
        return dict(zip(indices.tolist(), np.split(places[:, 1], starts[1:]), strict=False))


def scan(files: RecordFormat, segment_index: int, segment: Segment) -> Fingerprints:
    """The fingerprints of a segment's records, except damaged ones. Raises UsageError if it cannot be read."""
    with naming_shard(segment.shard.path):
        return _fingerprints(segment_index, files.scan(segment.shard.path, segment.start, segment.stop))


def _fingerprints(segment_index: int, headers: Headers) -> Fingerprints:
    positions, lengths, crcs = headers
    marks = (lengths.astype(np.uint64) << np.uint64(32)) ^ crcs
    return Fingerprints(marks, np.stack([np.full_like(positions, segment_index), positions], axis=1))


Suspects = tuple[str, Segment, Array]
"""A split, one of its segments, and the positions (int64 [N], ascending) of possible duplicates in it."""


class Hashed(NamedTuple):
    """The SHA-256 of records of one shard (40 bytes per record).

    Attributes:
      split: the split's name.
      shard: the shard's index.
      positions: the positions of the records, int64 [N].
      digests: the digests, uint64 [N, 4].
    """

    split: str
    shard: int
    positions: Array
    digests: Array


def confirm(files: RecordFormat, split: str, segment: Segment, positions: Array) -> Hashed:
    """Hashes the records of a segment at these positions (ascending)."""
    read_positions, digests = [], bytearray()
    if len(positions):
        wanted = set(positions.tolist())
        within = dataclasses.replace(segment, start=int(positions[0]), stop=int(positions[-1]) + 1)
        for record in read_segment(files, within):
            if record.position in wanted:
                read_positions.append(record.position)
                digests += hashlib.sha256(record.payload).digest()
    rows = np.frombuffer(bytes(digests), np.uint64).reshape(-1, _DIGEST_WORDS)
    return Hashed(split, segment.shard.index, np.array(read_positions, np.int64), rows)


class Duplicates(Mapping[EpisodeKey, EpisodeKey]):
    """A mapping from each duplicate to the episode that it repeats (48 bytes per duplicate).

    Args:
      dataset: the `dataset` of all keys.
      splits: the names of the splits.
      copies: the duplicates in ascending order, int64 [N, 3]: index of the split, index of the shard, position.
      firsts: the episode that each of them repeats, int64 [N, 3].
    """

    def __init__(self, dataset: str, splits: Sequence[str], copies: Array, firsts: Array):
        self._dataset, self._splits, self._copies, self._firsts = dataset, tuple(splits), copies, firsts
        begins = np.flatnonzero((copies[1:, :2] != copies[:-1, :2]).any(axis=1)) + 1
        starts = [0, *begins.tolist()] if len(copies) else []
        self._rows = {
            (self._splits[split], shard): rows
            for (split, shard), rows in zip(
                copies[starts, :2].tolist(), itertools.pairwise([*starts, len(copies)]), strict=True
            )
        }

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._dataset, self._splits, self._copies, self._firsts)

    def __getitem__(self, key: EpisodeKey) -> EpisodeKey:
        rows = self._rows.get((key.split, key.shard))
        if rows is None or key.part or key.dataset != self._dataset:
            raise KeyError(key)
        row: int = rows[0] + int(np.searchsorted(self._copies[slice(*rows), 2], key.position))
        if row == rows[1] or self._copies[row, 2] != key.position:
            raise KeyError(key)
        return self._key(self._firsts[row])

    def __iter__(self) -> Iterator[EpisodeKey]:
        return map(self._key, self._copies)

    def __len__(self) -> int:
        return len(self._copies)

    def __repr__(self) -> str:
        return f"<Duplicates: {len(self):,}>"

    def _key(self, place: Array) -> EpisodeKey:
        split, shard, position = place.tolist()
        return EpisodeKey(self._dataset, self._splits[split], shard, position)


def duplicates_among(dataset: str, hashed: Iterable[Hashed]) -> Duplicates:
    """Finds each duplicate and the episode that it repeats, which has the smallest key."""
    hashed = list(hashed)
    splits = sorted({part.split for part in hashed})
    places = [
        np.stack(np.broadcast_arrays(splits.index(part.split), part.shard, part.positions), axis=1) for part in hashed
    ]
    place = np.concatenate([np.zeros((0, 3), np.int64), *places])
    digests = np.concatenate([np.zeros((0, _DIGEST_WORDS), np.uint64), *(part.digests for part in hashed)])
    order = np.lexsort((*place.T[::-1], *digests.T))
    place, digests = place[order], digests[order]
    is_copy = np.zeros(len(place), bool)
    is_copy[1:] = (digests[1:] == digests[:-1]).all(axis=1)
    first = np.maximum.accumulate(np.where(is_copy, 0, np.arange(len(place))))  # the row with the group's smallest key
    copies, firsts = place[is_copy], place[first[is_copy]]
    order = np.lexsort(copies.T[::-1])
    return Duplicates(dataset, splits, copies[order], firsts[order])


def mark_duplicate(episode: Episode, duplicates: Mapping[EpisodeKey, EpisodeKey]) -> Episode:
    """Adds the fault `duplicate_episode` to the episode if it is a duplicate."""
    original = duplicates.get(episode.key) if duplicates else None
    if original is None:
        return episode
    violation = Violation("duplicate_episode", f"byte-identical to {original}")
    return episode.replace(faults=(*episode.faults, violation))


Digest: TypeAlias = tuple[EpisodeKey, int]
"""The key of a record, and the digest of its bytes."""


Changes: TypeAlias = tuple[int, list[str], list[str], list[list[str]]]
"""How many records are equal; the keys of those added, removed, and changed (before and after)."""


def compare_contents(first: Sequence[Digest], second: Sequence[Digest]) -> Changes:
    """Compares two versions of a dataset, each sorted by key.

    Equal records match wherever they are in a split. A record is changed if the one before it is equal in both.
    """
    counts = [Counter((key.split, digest) for key, digest in version) for version in (first, second)]
    common = counts[0] & counts[1]
    rests: dict[tuple[str, int, int], tuple[list[str], list[str]]] = {}  # by the last equal record before them
    for side, version in enumerate((first, second)):
        seen: Counter[tuple[str, int]] = Counter()
        before: dict[str, tuple[str, int, int]] = {}
        for key, digest in version:
            if seen[key.split, digest] < common[key.split, digest]:
                seen[key.split, digest] += 1
                before[key.split] = key.split, digest, seen[key.split, digest]
            else:
                rests.setdefault(before.get(key.split, (key.split, 0, 0)), ([], []))[side].append(str(key))
    pairs = [pair for olds, news in rests.values() for pair in itertools.zip_longest(olds, news)]
    added = [new for old, new in pairs if old is None]
    removed = [old for old, new in pairs if new is None]
    return common.total(), added, removed, [[old, new] for old, new in pairs if old is not None and new is not None]
