"""Finds duplicate episodes without reading most of the bytes.

A TFRecord's framing holds the length and the CRC32C of its payload: a fingerprint of each record. Only records with
equal fingerprints are read and compared by SHA-256.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

import numpy as np

from rlds_beam.encoding.base import RecordFormat
from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.errors import Violation
from rlds_beam.reading.base import Segment
from rlds_beam.reading.changes import naming_shard
from rlds_beam.typing import Array


def scan(files: RecordFormat, index: int, segment: Segment) -> Array:
    """The intact records of a segment, int64 [N, 3]: length and CRC32C combined, the segment's index, and the position.

    Raises:
      UsageError: the segment cannot be read.
    """
    with naming_shard(segment.shard.path):
        positions, lengths, crcs = files.scan(segment.shard.path, segment.start, segment.stop)
    return np.stack([(lengths.astype(np.int64) << 32) ^ crcs, np.full_like(positions, index), positions], axis=1)


def find_suspects(records: Array) -> dict[int, Array]:
    """The positions of records (int64 [N, 3], as `scan`) that are not unique, int64 [N], ascending, by segment."""
    _, inverse, counts = np.unique(records[:, 0], return_inverse=True, return_counts=True)
    places = records[counts[inverse] > 1, 1:]
    places = places[np.lexsort((places[:, 1], places[:, 0]))]
    indices, starts = np.unique(places[:, 0], return_index=True)
    return dict(zip(indices.tolist(), np.split(places[:, 1], starts[1:]), strict=False))


Suspects = tuple[str, Segment, Array]
"""A split, one of its segments, and the positions (int64 [N], ascending) of possible duplicates in it."""


Hashed: TypeAlias = tuple[bytes, EpisodeKey]
"""The SHA-256 of a record, and its key."""

Duplicates: TypeAlias = dict[EpisodeKey, EpisodeKey]
"""Each duplicate, and the episode that it repeats."""


def confirm(dataset: str, files: RecordFormat, split: str, segment: Segment, positions: Array) -> Iterator[Hashed]:
    """Hashes the records of a segment at these positions (ascending)."""
    if not len(positions):
        return
    wanted = set(positions.tolist())
    within = dataclasses.replace(segment, start=int(positions[0]), stop=int(positions[-1]) + 1)
    for record in files.read(within.shard.path, within.start, within.stop):
        if record.position in wanted:
            key = EpisodeKey(dataset, split, segment.shard.index, record.position)
            yield hashlib.sha256(record.payload).digest(), key


def duplicates_among(hashed: Iterable[Hashed]) -> Duplicates:
    """Finds each duplicate and the episode that it repeats, which has the smallest key."""
    first: dict[bytes, EpisodeKey] = {}
    ordered = sorted(hashed, key=lambda pair: (pair[1].split, pair[1].shard, pair[1].position))
    return {key: first[digest] for digest, key in ordered if first.setdefault(digest, key) is not key}


def mark_duplicate(episode: Episode, duplicates: Mapping[EpisodeKey, EpisodeKey]) -> Episode:
    """Adds the fault `duplicate_episode` to the episode if it is a duplicate."""
    original = duplicates.get(episode.key) if duplicates else None
    if original is None:
        return episode
    violation = Violation("duplicate_episode", f"byte-identical to {original}")
    return episode.replace(faults=(*episode.faults, violation))
