"""Reads the records of a segment as episodes, or one by its key; unreadable records become episodes with faults."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from rlds_beam.encoding.base import CheckedRecord, Damage, Record, format_of
from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.episodes.schema import compare_with_schema
from rlds_beam.errors import BadEpisode, RldsBeamError, UsageError, Violation
from rlds_beam.reading.base import Segment, Shard, Source
from rlds_beam.reading.changes import Snapshot, naming_shard
from rlds_beam.reading.decoding import EpisodeDecoder
from rlds_beam.text import count
from rlds_beam.user_functions import describe_error

BATCH_BYTES, MAX_RECORDS = 1 << 20, 64
"""Maximum size of a batch: its records stay in the cache between reading, checking, and writing."""


class EpisodeReader:
    """Reads the episodes of a dataset, segment by segment. Picklable; holds no open file between calls.

    Args:
      source: the dataset.
      snapshot: the dataset's snapshot, to detect files that change during the job.
    """

    def __init__(self, source: Source, snapshot: Snapshot | None = None):
        self.dataset, self.files, self.decoder = source.dataset, source.files, source.decoder
        self._schema, self._source = source.schema, type(source).__qualname__
        self._snapshot, self._real = snapshot, source.last_action == "real"
        ours = self.decoder if isinstance(self.decoder, EpisodeDecoder) else None
        self._together = ours if source.has_files else None
        self._conforms = ours is not None and source.schema.fast and source.schema == ours.schema

    def read(self, split: str, segment: Segment) -> Iterator[Episode]:
        """Reads every record of `segment` as an episode, in order; an unreadable one has `faults`.

        Raises:
          NotVerifiedError: at the end of the segment, if its file has changed since the snapshot.
        """
        for episodes in self.batches(split, segment):
            episodes.reverse()
            while episodes:  # each is freed before the next one is read
                yield episodes.pop()

    def batches(self, split: str, segment: Segment) -> Iterator[list[Episode]]:
        """Reads episodes as `read` does, several short ones at a time: they are cheaper to decode and check together.

        A batch has at most `MAX_RECORDS` episodes of `BATCH_BYTES`, or one longer episode.
        """
        records = self.files.read(segment.shard.path, segment.start, segment.stop)
        yield from self.decode_batches(split, segment, records)
        if self._snapshot is not None:
            self._snapshot.verify(split, segment.shard)

    def decode_batches(
        self, split: str, segment: Segment, records: Iterable[Record | Damage]
    ) -> Iterator[list[Episode]]:
        """Decodes records of a segment, in the batches of `batches`."""
        most = 1 if self._together is None else MAX_RECORDS
        waiting: list[Record | Damage] = []
        size = 0
        for record in records:
            if waiting and size + len(record.payload) > BATCH_BYTES:
                yield self.episodes(split, segment, waiting)
                waiting, size = [], 0
            waiting.append(record)
            size += len(record.payload)
            del record  # freed before the next ones are read
            if size >= BATCH_BYTES or len(waiting) == most:
                yield self.episodes(split, segment, waiting)
                waiting, size = [], 0
        if waiting:
            yield self.episodes(split, segment, waiting)

    def episodes(self, split: str, segment: Segment, records: Sequence[Record | Damage]) -> list[Episode]:
        """Decodes records into episodes."""
        shard = segment.shard
        keys = [EpisodeKey(self.dataset, split, shard.index, record.position) for record in records]
        pairs = [*zip(records, keys, strict=True)]
        intact = [(record.payload, key) for record, key in pairs if isinstance(record, Record)]
        decoded = iter(self._decode(intact))
        episodes = []
        for record, key in pairs:
            if isinstance(record, Damage):
                unit = format_of(self.files, shard.path).unit
                detail = f"{record.reason} ({shard.path}, {unit} {record.position} to {record.stop})"
                fault = Violation("corrupt_record", detail)
                episodes.append(Episode(key, {}, payload=record.payload, faults=(fault,)))
                continue
            found = next(decoded)
            faults: Sequence[Violation] = ()
            if isinstance(found, BadEpisode):
                faults = found.violations
            elif not self._conforms:
                faults = compare_with_schema(found, self._schema)
            if faults or isinstance(found, BadEpisode):
                episodes.append(Episode(key, {}, payload=record.payload, faults=tuple(faults)))
                continue
            if self._real:
                found.note(last_action_is_real=True)
            if isinstance(record, CheckedRecord) and found.payload is record.payload:
                episodes.append(found.note(payload_crc=record.crc))
            else:
                episodes.append(found)
        return episodes

    def _decode(self, records: Sequence[tuple[bytes, EpisodeKey]]) -> list[Episode | BadEpisode]:
        if self._together is not None and len(records) > 1:
            try:
                return self._together.decode_all(*zip(*records, strict=True))
            except (RldsBeamError, MemoryError, OSError):
                raise
            except Exception:  # decoding one by one shows whose it is
                pass
        return [self._decode_one(payload, key) for payload, key in records]

    def _decode_one(self, payload: bytes, key: EpisodeKey) -> Episode | BadEpisode:
        episode: Any
        try:
            episode = self.decoder.decode(payload, key)
        except BadEpisode as bad:
            return bad
        except (RldsBeamError, MemoryError, OSError):
            raise
        except Exception as error:  # a user's decoder may raise anything
            return BadEpisode(Violation("not_an_example", f"{self._source}: its decoder {describe_error(error)}"))
        if not isinstance(episode, Episode):
            return BadEpisode(Violation("not_an_example", f"{self._source}: its decoder returned {episode!r:.80}"))
        return episode


def find_shard(source: Source, key: EpisodeKey) -> Shard:
    """The shard that holds a key. Raises UsageError if the dataset has no such split or shard."""
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
    shard = find_shard(source, key)
    for start in dict.fromkeys((key.position, 0)):  # damage is read with the intact record before it
        for episode in EpisodeReader(source).read(key.split, Segment(shard, start, key.position + 1)):
            if episode.key.position == key.position:
                return episode
    raise UsageError(f"{key}: there is no record at this position of {shard.path}")


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
        for shard, low, high in split.taken:
            yield split.name, shard, low, len(source.files.scan(shard.path).positions) if high is None else high


_SAMPLE_SHARDS = 8  # the most shards
_SAMPLE_BYTES = 64 << 20  # the most bytes of records; at least one is read


def sample_episodes(
    source: Source, left_out: Collection[str] = (), most: int = 32, *, unreadable: bool = False
) -> Iterator[Episode]:
    """The first episodes of shards across the dataset, if possible without some fields; none of a recording.

    Args:
      source: the dataset.
      left_out: the step fields that are not needed.
      most: the most episodes to read.
      unreadable: whether to yield unreadable ones also, with their faults.
    """
    shards = ((split.name, shard) for split in source.splits for shard in split.shards)  # there may be a million
    total, chosen = sum(len(split.shards) for split in source.splits), list[tuple[str, Shard]]()
    for i, (split, shard) in enumerate(shards if source.has_files else ()):
        if shard.size and len(chosen) <= i * min(most, _SAMPLE_SHARDS) // total:
            chosen.append((split, shard))
    reader, size = EpisodeReader(source.without(left_out, "not looked at")), 0
    for split, shard in chosen:
        with naming_shard(shard.path):
            for episode in itertools.islice(reader.read(split, Segment(shard)), -(-most // len(chosen))):
                size += len(episode.payload)
                if unreadable or not episode.faults:
                    yield episode
                if size > _SAMPLE_BYTES:
                    return
