"""Finding episodes that are in a dataset twice, without reading their bytes.

A TFRecord's framing already holds the length and the CRC32C of its payload, so one look at the
framing of all records gives a fingerprint of each. Only records whose fingerprints agree are
read, and compared by SHA-256.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlds_beam.at_work import at_work
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.keys import EpisodeKey
from rlds_beam.episodes.violations import Violation
from rlds_beam.formats.base import Headers, RecordFormat
from rlds_beam.reading.base import Segment, Source
from rlds_beam.reading.framing import Framing
from rlds_beam.reading.reader import read_segment, stretch

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True)
class Fingerprints:
    """Fingerprints of many records, column by column (24 bytes a record).

    Attributes:
      marks: uint64 [N], length and CRC32C of the payload mixed into one number.
      places: int64 [N, 2], number of the segment that was scanned, and position in it.
    """

    marks: Array
    places: Array

    @classmethod
    def concatenate(cls, parts: Iterable[Fingerprints]) -> Fingerprints:
        parts = [cls(np.zeros(0, np.uint64), np.zeros((0, 2), np.int64)), *parts]
        return cls(np.concatenate([p.marks for p in parts]), np.concatenate([p.places for p in parts]))

    def suspects(self) -> Array:
        """The places, int64 [M, 2], of records whose fingerprint another record has too."""
        _, inverse, counts = np.unique(self.marks, return_inverse=True, return_counts=True)
        suspects: Array = self.places[counts[inverse] > 1]
        return suspects


def scan(files: RecordFormat, segment_index: int, segment: Segment) -> Fingerprints:
    """Fingerprints of a segment's records; damaged ones have none."""
    with at_work(stretch(files, segment)):
        return _fingerprints(segment_index, files.scan(segment.shard.path, segment.start, segment.stop))


def known_fingerprints(framing: Framing, segments: Sequence[Segment]) -> Fingerprints | None:
    """Fingerprints of the records of all segments, from framing that is cheap to read; None where some is not."""
    if not all(framing.covers(shard) for shard in {segment.shard for segment in segments}):
        return None
    framing.look_at({segment.shard for segment in segments})
    return Fingerprints.concatenate(_fingerprints(i, framing.headers_of(s)) for i, s in enumerate(segments))


def _fingerprints(segment_index: int, headers: Headers) -> Fingerprints:
    positions, lengths, crcs = headers
    marks = (lengths.astype(np.uint64) << np.uint64(32)) ^ crcs
    return Fingerprints(marks, np.stack([np.full_like(positions, segment_index), positions], axis=1))


Suspects = tuple[str, Segment, set[int]]
"""Of a split's segment, the positions of the records that may be duplicates."""


def suspects_by_segment(marks: Fingerprints, segments: Sequence[tuple[str, Segment]]) -> Iterator[Suspects]:
    """The suspects of each segment that has any; `segments` are those that were numbered."""
    places: dict[int, set[int]] = defaultdict(set)
    for index, position in marks.suspects().tolist():
        places[index].add(position)
    for index, positions in places.items():
        yield (*segments[index], positions)


Hashed = tuple[bytes, EpisodeKey]
"""The SHA-256 of a record's payload, and the record's key."""


def confirm(files: RecordFormat, dataset: str, split: str, segment: Segment, positions: set[int]) -> Iterator[Hashed]:
    """The hash of each of the suspects among a segment's records."""
    if not positions:
        return
    within = dataclasses.replace(segment, start=min(positions), stop=max(positions) + 1)
    for record in read_segment(files, within):
        if record.position in positions:
            key = EpisodeKey(dataset, split, segment.shard.index, record.position)
            yield hashlib.sha256(record.payload).digest(), key


Duplicates = dict[EpisodeKey, EpisodeKey]
"""Each duplicate, and the episode that it repeats."""


def duplicates_among(hashed: Iterable[Hashed]) -> Duplicates:
    """Each duplicate, and the episode that it repeats: the one with the smallest key."""
    groups: dict[bytes, list[EpisodeKey]] = defaultdict(list)
    for digest, key in hashed:
        groups[digest].append(key)
    return {key: min(keys) for keys in groups.values() for key in keys if key != min(keys)}


def find_duplicates(source: Source, framing: Framing, segments: Sequence[tuple[str, Segment]]) -> Duplicates:
    """The duplicates among all records of these segments, each with its split; in this process."""
    marks = known_fingerprints(framing, [segment for _, segment in segments])
    if marks is None:
        marks = Fingerprints.concatenate(scan(source.files, i, segment) for i, (_, segment) in enumerate(segments))
    suspects = suspects_by_segment(marks, segments)
    hashed = (confirm(source.files, source.dataset, *suspect) for suspect in suspects)
    return duplicates_among(itertools.chain.from_iterable(hashed))


def marked(episode: Episode, duplicates: Mapping[EpisodeKey, EpisodeKey]) -> Episode:
    """The episode, with the fault that it is a duplicate, where it is one."""
    original = duplicates.get(episode.key)
    if original is None:
        return episode
    violation = Violation("duplicate_episode", f"the same bytes as {original}")
    return episode.replace(faults=(*episode.faults, violation))
