"""Reads the records of a segment as episodes; an unreadable record becomes an episode with faults."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rlds_beam.encoding.base import CheckedRecord, Damage, Record, RecordFormat
from rlds_beam.episodes.conformance import Conformance
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.keys import EpisodeKey
from rlds_beam.errors import BadEpisode, RldsBeamError, Violation
from rlds_beam.reading.base import Segment, Source
from rlds_beam.reading.changes import Snapshot
from rlds_beam.reading.decoding import EpisodeDecoder
from rlds_beam.user_functions import describe_error
from rlds_beam.worker_status import working_on

BATCH_BYTES, MAX_RECORDS = 1 << 20, 64
"""Maximum size of a batch: its records stay in the cache between reading, checking, and writing."""


def read_segment(files: RecordFormat, segment: Segment) -> Iterator[Record | Damage]:
    """The records and damages of a segment of a shard, in order.

    Adjacent segments give each record exactly once.
    """
    with working_on(stretch(files, segment)):
        yield from files.read(segment.shard.path, segment.start, segment.stop)


def stretch(files: RecordFormat, segment: Segment) -> str:
    """A segment in words: its file, and its bytes or records."""
    stop = "the end" if segment.stop is None else f"{segment.stop}"
    return f"{segment.shard.path}, {files.unit} {segment.start} to {stop}"


class EpisodeReader:
    """Reads the episodes of a dataset, segment by segment. Picklable; holds no open file between calls.

    Args:
      source: the dataset.
      snapshot: the dataset's snapshot, to detect files that change during the job.
    """

    def __init__(self, source: Source, snapshot: Snapshot | None = None):
        self.dataset, self.files, self.decoder = source.dataset, source.files, source.decoder
        self._conformance, self._source = Conformance(source.schema), type(source).__qualname__
        self._snapshot = snapshot
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
        with working_on(stretch(self.files, segment)):  # also while the last batch is checked and written
            records = self.files.read(segment.shard.path, segment.start, segment.stop)
            yield from self.decode_batches(split, segment, records)
        self.verify(split, segment)

    def decode_batches(
        self, split: str, segment: Segment, records: Iterable[Record | Damage]
    ) -> Iterator[list[Episode]]:
        """Decodes records of a segment, in the batches of `batches`."""
        for batch in self._together_or_alone(records):
            yield self.episodes(split, segment, batch)
            del batch  # freed before the next ones are read

    def _together_or_alone(self, records: Iterable[Record | Damage]) -> Iterator[list[Record | Damage]]:
        """The records in batches."""
        most = 1 if self._together is None else MAX_RECORDS
        waiting: list[Record | Damage] = []
        size = 0
        try:
            for record in records:
                if waiting and size + len(record.payload) > BATCH_BYTES:
                    yield waiting
                    waiting, size = [], 0
                waiting.append(record)
                size += len(record.payload)
                del record
                if size >= BATCH_BYTES or len(waiting) == most:
                    yield waiting
                    waiting, size = [], 0
        except (RldsBeamError, MemoryError, OSError):
            raise
        except Exception as error:  # a user's record format may raise anything
            raise RldsBeamError(f"{self._source}: its files {describe_error(error)}") from error
        if waiting:
            yield waiting

    def verify(self, split: str, segment: Segment) -> None:
        """Raises NotVerifiedError if the segment's file has changed since the snapshot."""
        if self._snapshot is not None:
            self._snapshot.verify(split, segment.shard.index)

    def episode(self, split: str, segment: Segment, record: Record | Damage) -> Episode:
        """Decodes one record into an episode."""
        return self.episodes(split, segment, [record])[0]

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
                detail = f"{record.reason} ({shard.path}, {self.files.unit} {record.position} to {record.stop})"
                fault = Violation("corrupt_record", detail)
                episodes.append(Episode(key, {}, payload=record.payload, faults=(fault,)))
                continue
            found = next(decoded)
            faults: Sequence[Violation] = ()
            if isinstance(found, BadEpisode):
                faults = found.violations
            elif not self._conforms:
                faults = self._conformance.violations(found)
            if faults or isinstance(found, BadEpisode):
                episodes.append(Episode(key, {}, payload=record.payload, faults=tuple(faults)))
            elif isinstance(record, CheckedRecord) and found.payload is record.payload:
                episodes.append(found.with_payload_crc(record.crc))
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
        return [self._attempt(payload, key) for payload, key in records]

    def _attempt(self, payload: bytes, key: EpisodeKey) -> Episode | BadEpisode:
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
