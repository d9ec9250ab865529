"""The keys of a dataset's episodes, in order, from the framing of its shards."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import numpy as np

from rlds_beam import storage
from rlds_beam.encoding.base import format_of, has_offsets
from rlds_beam.encoding.tfrecord.framing import OVERHEAD
from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.reading.base import Shard, Source

Positions = np.ndarray[Any, np.dtype[np.int64]]


class _Place(NamedTuple):
    """A shard of a split, and the slice of its records that the split takes."""

    split: str
    shard: Shard
    low: int
    high: int | None


class EpisodeIndex:
    """The keys of a dataset's episodes by number.

    The framing of a shard is read when one of its episodes is first asked for; until then, dataset_info.json says how
    many it has. Takes 8 bytes of memory per episode of these shards. Thread-safe.
    """

    def __init__(self, source: Source):
        self._source = source
        self._places = [
            place
            for split in source.splits
            for place in (
                [_Place(split.name, *taken) for taken in split.taken]
                if split.sliced
                else [_Place(split.name, shard, 0, None) for shard in split.shards]
            )
        ]
        self._numbers = {(place.split, place.shard.index): i for i, place in enumerate(self._places)}
        self._positions: dict[int, Positions] = {}
        self._lock = threading.Lock()
        self._counts = np.array([_read_declared(place) for place in self._places], np.int64)

    def __len__(self) -> int:
        return int(self._starts()[-1])

    def split_sizes(self) -> dict[str, int]:
        """The number of episodes of each split."""
        sizes = {split.name: 0 for split in self._source.splits}
        self._starts()
        for place, count in zip(self._places, self._counts.tolist(), strict=True):
            sizes[place.split] += count
        return sizes

    def split_range(self, split: str) -> tuple[int, int]:
        """The numbers of a split's episodes: the first, and the one after the last."""
        starts = self._starts()
        own = [i for i, place in enumerate(self._places) if place.split == split]
        return (int(starts[own[0]]), int(starts[own[-1] + 1])) if own else (0, 0)

    def keys(self, start: int, stop: int) -> list[EpisodeKey]:
        """The keys of the existing episodes from `start` to `stop` (exclusive)."""
        keys: list[EpisodeKey] = []
        number = max(start, 0)
        while number < stop:
            starts = self._starts()
            if number >= starts[-1]:
                break
            i = int(np.searchsorted(starts, number, side="right")) - 1
            positions, first = self._find_positions(i), int(starts[i])
            if self._starts()[i + 1] != starts[i + 1]:
                continue  # the shard has another number of records than dataset_info.json says
            place = self._places[i]
            for position in positions[number - first : stop - first].tolist():
                keys.append(EpisodeKey(self._source.dataset, place.split, place.shard.index, position))
            number = first + len(positions)
        return keys

    def number(self, key: EpisodeKey) -> int | None:
        """The number of an episode; None if the dataset has no such episode."""
        i = self._numbers.get((key.split, key.shard))
        if i is None or key.dataset != self._source.dataset:
            return None
        positions = self._find_positions(i)
        at = int(np.searchsorted(positions, key.position))
        if at == len(positions) or positions[at] != key.position:
            return None
        return int(self._starts()[i]) + at

    def _starts(self) -> Positions:
        """The number of each shard's first episode, then the total."""
        for i in np.flatnonzero(self._counts < 0).tolist():
            self._find_positions(i)
        return np.concatenate([[0], np.cumsum(self._counts)])

    def _find_positions(self, i: int) -> Positions:
        with self._lock:
            if i not in self._positions:
                place = self._places[i]
                positions = record_positions(self._source, place.shard)
                self._positions[i] = positions[place.low : place.high]
                self._counts[i] = len(self._positions[i])
            return self._positions[i]


def _read_declared(place: _Place) -> int:
    """The number of records according to the metadata; -1 if unknown."""
    if place.shard.records is None:
        return -1
    high = place.shard.records if place.high is None else place.high
    return max(0, min(high, place.shard.records) - place.low)


def record_positions(source: Source, shard: Shard) -> Positions:
    """The positions of a shard's records and damaged regions, ascending."""
    files = format_of(source.files, shard.path)
    if not storage.exists(shard.path):
        return np.empty(0, np.int64)
    whole = not files.is_splittable(shard.path)
    if not has_offsets(files, shard.path) and not whole:
        return np.arange(files.end(shard.path, shard.size), dtype=np.int64)
    headers = files.scan(shard.path)
    if whole or files.name != "tfrecord" or not shard.size:
        return headers.positions
    ends = headers.positions + headers.lengths + OVERHEAD
    before = np.concatenate([[0], ends])  # damage begins where the record before it ends
    after = np.append(headers.positions, shard.size)
    return np.union1d(headers.positions, before[before < after])
