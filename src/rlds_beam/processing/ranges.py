"""Reads, checks, connects, and writes the episodes of a work range: what every job does."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from rlds_beam.checking.duplicates import mark_duplicate
from rlds_beam.checking.rules import CheckOptions
from rlds_beam.checking.screen import screen_batches
from rlds_beam.checking.validation import validate_episode
from rlds_beam.checking.verdicts import IgnoredValues, Rejection, Verdict, count_verdict
from rlds_beam.connectors.base import Accumulator, Batch
from rlds_beam.connectors.pipeline import ConnectorRunner
from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.errors import BadEpisode
from rlds_beam.processing.report import Processed, Report
from rlds_beam.reading.base import WorkRange
from rlds_beam.reading.reader import EpisodeReader

Duplicates = Mapping[EpisodeKey, EpisodeKey]
"""The result of `FindDuplicateEpisodes`: each duplicate and the episode it repeats."""


class RangeWriter(Protocol):
    """Writes the checked episodes of one work range, in order.

    Attributes:
      predicted: the number of items expected from the episodes so far, calculated and not counted.
    """

    @property
    def predicted(self) -> int: ...

    def write(self, batch: Batch) -> None:
        """Writes the episodes that the connectors returned for one record: all of them, or none if it raises.

        Raises:
          BadEpisode: an episode cannot be written, for example because an image cannot be decoded.
        """

    def finish(self) -> Any:
        """Completes the range and gives the file its name; for a single file, returns its `ShardInfo`."""

    def abort(self) -> None:
        """Removes the unfinished files; does nothing after `finish`."""


def check_and_connect(
    episode: Episode,
    check: CheckOptions,
    connecting: ConnectorRunner,
    ignored: IgnoredValues,
    write: Callable[[Batch], object],
    *,
    sound: bool = False,
) -> Processed:
    """Checks one record, runs the connectors on its accepted episodes, and writes all or none of the result.

    Args:
      episode: the episode as read, with its faults; marked if it is a duplicate.
      write: writes the batch, unless the connectors dropped all of it; raises BadEpisode if that fails.
      sound: see `validate_episode`.

    Raises:
      FailedRuleError: the episode breaks a rule whose policy is `fail`.
    """
    names, fps = connecting.probed.given.names, connecting.fps
    verdict = validate_episode(episode, check, ignored, sound=sound, names=names, fps=fps)
    if verdict.rejected is not None:
        return Processed(verdict)
    try:
        batch = connecting.connect(verdict.episodes, episode)
        if batch.episodes:
            write(batch)
    except BadEpisode as bad:
        # Some faults only show now: a damaged image body, an episode too long for one item.
        episode = episode.replace(faults=(*episode.faults, *bad.violations))
        late_verdict = validate_episode(episode, check, ignored, names=names, fps=fps)
        if late_verdict.rejected is None:  # the rule is accepted, but the episode could not be written
            rejection = Rejection.of(episode, bad)
            late_verdict = Verdict(episode.key, (), late_verdict.violations, rejection, size=len(episode.payload))
        return Processed(late_verdict)
    written = bool(batch.episodes) or not batch.dropped
    return Processed(verdict, batch.connected, batch.dropped, written)


def write_range(
    reader: EpisodeReader,
    work: WorkRange,
    check: CheckOptions,
    connecting: ConnectorRunner,
    ignored: IgnoredValues,
    duplicates: Duplicates,
    writer: RangeWriter,
    reject: Callable[[Rejection], object] | None,
) -> Report:
    """Reads, checks, connects, and writes the episodes of a range; the caller finishes the writer.

    Raises:
      FailedRuleError: a rule whose policy is `fail` is broken.
    """
    report = Report()
    for segment in work.segments:
        for episode, sound in screen_batches(reader.batches(work.split, segment)):
            episode = mark_duplicate(episode, duplicates)
            record = check_and_connect(episode, check, connecting, ignored, writer.write, sound=sound)
            report.add(record)
            count_verdict(record.verdict)
            if record.verdict.rejected is not None and reject is not None:
                reject(record.verdict.rejected)
            del episode, record  # They may be large: free them before reading the next.
    return report


@dataclasses.dataclass(frozen=True)
class RangeFitter:
    """Gathers from a range what fitted connectors need. Picklable.

    Has the attributes of `RangeConverter`, and `ignored` from its output.
    """

    reader: EpisodeReader
    check: CheckOptions
    connecting: ConnectorRunner
    ignored: IgnoredValues

    def gather(self, work: WorkRange, duplicates: Duplicates, results: Sequence[Any]) -> Accumulator:
        """The range's values for the first connector without a result.

        Args:
          results: the results of the connectors before it.
        """
        connecting = self.connecting.fit(results)
        accumulator = connecting.accumulator()
        check = dataclasses.replace(self.check, fail=())  # failing is up to the conversion
        for segment in work.segments:
            for episode, sound in screen_batches(self.reader.batches(work.split, segment)):
                verdict = validate_episode(mark_duplicate(episode, duplicates), check, self.ignored, sound=sound)
                if verdict.rejected is None:
                    with contextlib.suppress(BadEpisode):  # it will be rejected
                        connecting.accumulate(accumulator, verdict.episodes)
        return accumulator
