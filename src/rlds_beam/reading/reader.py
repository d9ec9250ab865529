"""Reads the records of a segment as episodes; an unreadable record becomes an episode with faults."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rlds_beam.encoding.base import CheckedRecord, Damage, Record, RecordFormat
from rlds_beam.episodes.conformance import Conformance
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.keys import EpisodeKey
from rlds_beam.errors import BadEpisode, RldsBeamError, Violation
from rlds_beam.reading.base import Segment, Source
from rlds_beam.reading.changes import Snapshot
from rlds_beam.user_functions import raised
from rlds_beam.worker_status import working_on


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

    def read(self, split: str, segment: Segment) -> Iterator[Episode]:
        """Reads every record of `segment` as an episode, in order; an unreadable one has `faults`.

        Raises:
          NotVerifiedError: at the end of the segment, if its file has changed since the snapshot.
        """
        for record in read_segment(self.files, segment):
            yield self.episode(split, segment, record)
            del record  # freed before the next one is read
        self.verify(split, segment)

    def verify(self, split: str, segment: Segment) -> None:
        """Raises NotVerifiedError if the segment's file has changed since the snapshot."""
        if self._snapshot is not None:
            self._snapshot.verify(split, segment.shard.index)

    def episode(self, split: str, segment: Segment, record: Record | Damage) -> Episode:
        """Decodes one record into an episode."""
        key = EpisodeKey(self.dataset, split, segment.shard.index, record.position)
        if isinstance(record, Damage):
            detail = f"{record.reason} ({segment.shard.path}, {self.files.unit} {record.position} to {record.stop})"
            return Episode(key, {}, payload=record.payload, faults=(Violation("corrupt_record", detail),))
        faults: Sequence[Violation]
        try:
            episode = self.decoder.decode(record.payload, key)
            if not isinstance(episode, Episode):
                raise BadEpisode(Violation("not_an_example", f"{self._source}: its decoder returned {episode!r:.80}"))
            faults = self._conformance.violations(episode)
        except BadEpisode as bad:
            faults = bad.violations
        except (RldsBeamError, MemoryError, OSError):
            raise
        except Exception as error:  # a user's decoder may raise anything
            faults = (Violation("not_an_example", f"{self._source}: its decoder {raised(error)}"),)
        if faults:
            return Episode(key, {}, payload=record.payload, faults=tuple(faults))
        if isinstance(record, CheckedRecord) and episode.payload is record.payload:
            return episode.with_payload_crc(record.crc)
        return episode
