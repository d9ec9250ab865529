"""Reads one episode by its key."""

from __future__ import annotations

from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.keys import EpisodeKey
from rlds_beam.errors import UsageError
from rlds_beam.reading.base import Segment, Shard, Source
from rlds_beam.reading.reader import EpisodeReader


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
    segment = Segment(shard_of(source, key), key.position, key.position + 1)
    for episode in EpisodeReader(source).read(key.split, segment):
        if episode.key.position == key.position:
            return episode
    raise UsageError(f"{key}: there is no record at this position of {segment.shard.path}")
