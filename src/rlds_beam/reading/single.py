"""Reads one episode, by its key or its number."""

from __future__ import annotations

from collections.abc import Iterator

from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.keys import EpisodeKey
from rlds_beam.errors import UsageError
from rlds_beam.reading.base import Segment, Shard, Source
from rlds_beam.reading.framing import has_offsets
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.text import count


def shard_of(source: Source, key: EpisodeKey) -> Shard:
    """The shard that holds a key.

    Raises:
      UsageError: the dataset has no such split or shard.
    """
    for split in source.splits:
        if split.name == key.split:
            for shard in split.shards:
                if shard.index == key.shard:
                    return shard
    raise UsageError(f"{key}: {source.dataset} has no such shard")


def read_episode(source: Source, key: EpisodeKey) -> Episode:
    """Reads the record at `key`; an unreadable one becomes an episode with faults.

    `key.part` is ignored: a record is read whole.

    Raises:
      UsageError: the dataset has no record at this key.
    """
    shard = shard_of(source, key)
    for start in _starts(source, shard, key.position):
        for episode in EpisodeReader(source).read(key.split, Segment(shard, start, key.position + 1)):
            if episode.key.position == key.position:
                return episode
    raise UsageError(f"{key}: there is no record at this position of {shard.path}")


def _starts(source: Source, shard: Shard, position: int) -> Iterator[int]:
    """Where to begin reading: at the record, or, if it is damaged, at an intact one before it."""
    yield position
    if position and has_offsets(source.files):
        before = source.files.scan(shard.path, 0, position).positions
        yield from (int(before[i]) for i in (-1, -2) if len(before) >= -i)
        yield 0


def episode_at(source: Source, number: int) -> Episode:
    """Reads an episode by its number in the selected splits, from 0; a negative one counts from the end.

    The metadata or else the framing says how many records a shard has; those with a damaged frame are not counted.

    Raises:
      UsageError: the dataset has no such episode.
    """
    left = number if number >= 0 else number + sum(high - low for _, _, low, high in _count(source))
    for split, shard, low, high in _count(source) if left >= 0 else ():
        if left < high - low:
            position, _ = source.files.positions(shard.path, low + left, low + left + 1)
            return read_episode(source, EpisodeKey(source.dataset, split, shard.index, position))
        left -= high - low
    total = sum(high - low for _, _, low, high in _count(source))
    raise UsageError(f"episode {number}: {source.dataset} has {count(total, 'episode')}, numbered from 0")


def _count(source: Source) -> Iterator[tuple[str, Shard, int, int]]:
    """The split, the shard, and the range of records of each shard."""
    for split in source.splits:
        if split.sliced:
            yield from ((split.name, shard, low, high) for shard, low, high in split.taken)
            continue
        for shard in split.shards:
            records = shard.records
            yield split.name, shard, 0, len(source.files.scan(shard.path).positions) if records is None else records
