"""Reads, checks, connects, and writes the episodes of a work range: what every job does.

Also the stages that come before those of a job: the search for duplicates, and fitting connectors.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from rlds_beam.checking.duplicates import (
    Duplicates,
    Hashed,
    Suspects,
    confirm,
    duplicates_among,
    find_suspects,
    mark_duplicate,
    scan,
)
from rlds_beam.checking.rules import CheckOptions
from rlds_beam.checking.validation import screen_batches, validate_episode
from rlds_beam.checking.verdicts import IgnoredValues, Rejection, Verdict, count_verdict
from rlds_beam.connectors.base import Accumulator, Batch
from rlds_beam.connectors.pipeline import ConnectorRunner
from rlds_beam.encoding.base import RecordFormat
from rlds_beam.episodes.episode import Episode
from rlds_beam.errors import BadEpisode
from rlds_beam.processing.job import Job, Stage, Totals
from rlds_beam.processing.report import Processed, Report
from rlds_beam.reading.base import Source, WorkRange
from rlds_beam.reading.plan import plan_ranges
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.typing import Array
from rlds_beam.worker_status import count


class RangeWriter(Protocol):
    """Writes the checked episodes of one work range, in order.

    A writer may have `unused_steps`, available after `finish`: the `UnusedSteps` that are in no item, by reason
    (`trajectories.items.REASONS`).

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
        """Completes the range and names its files; returns a `ShardInfo`, or a list of `WrittenFile`."""

    def abort(self) -> None:
        """Removes the unfinished files; does nothing after `finish`."""


def check_and_connect(
    episode: Episode,
    check: CheckOptions,
    connecting: ConnectorRunner,
    ignored: IgnoredValues,
    write: Callable[[Batch], object],
) -> Processed:
    """Checks one record, runs the connectors on its accepted episodes, and writes all or none of the result.

    Args:
      episode: the episode as read, with its faults; marked if it is a duplicate.
      write: writes the batch, unless the connectors dropped all of it; raises BadEpisode if that fails.

    Raises:
      FailedRuleError: the episode breaks a rule whose policy is `fail`.
    """
    names, fps = connecting.probed.given.names, connecting.fps
    verdict = validate_episode(episode, check, ignored, names=names, fps=fps)
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
            rejection = Rejection.from_bad_episode(episode, bad)
            late_verdict = Verdict(episode.key, (), late_verdict.violations, rejection, size=len(episode.payload))
        return Processed(late_verdict)
    written = bool(batch.episodes) or not batch.dropped
    return Processed(verdict, batch.connected, batch.dropped, written)


def read_range(reader: EpisodeReader, work: WorkRange, duplicates: Duplicates) -> Iterator[Episode]:
    """Reads the episodes of a range in order, marked if they are duplicates, or their numbers are sound.

    The reader keeps none of them: episodes may be large.
    """
    for segment in work.segments:
        for episode in screen_batches(reader.batches(work.split, segment)):
            yield mark_duplicate(episode, duplicates)
            del episode


def write_range(
    episodes: Iterable[Episode],
    check: CheckOptions,
    connecting: ConnectorRunner,
    ignored: IgnoredValues,
    write: Callable[[Batch], object],
    reject: Callable[[Rejection], object] | None = None,
    measure: Callable[[Episode, Processed], object] | None = None,
) -> Report:
    """Checks, connects, and writes the episodes of a range.

    Args:
      episodes: the episodes (`read_range`).
      write: writes the batch of a record, as `RangeWriter.write`.
      reject: called with each rejected record.
      measure: called with each record: as it was read, and the result.

    Raises:
      FailedRuleError: a rule whose policy is `fail` is broken.
    """
    report = Report()
    for episode in episodes:
        record = check_and_connect(episode, check, connecting, ignored, write)
        report.add(record)
        count_verdict(record.verdict)
        if record.verdict.rejected is not None and reject is not None:
            reject(record.verdict.rejected)
        if measure is not None:
            measure(episode, record)
        del episode, record  # They may be large: free them before reading the next.
    return report


def find_duplicates(source: Source, name: str = "duplicates") -> Job:
    """The stages whose last result is the `Duplicates` of a dataset.

    Workers read the framing of all records, and the payload of records with equal fingerprints.
    """
    find = FindSuspects(f"suspects of {name}", source.files, plan_ranges(source))
    return find, HashSuspects(name, source.dataset, source.files, find.name)


@dataclasses.dataclass(frozen=True)
class FindSuspects(Stage):
    """Finds the records whose fingerprint is not unique: the list of `Suspects`."""

    name: str
    files: RecordFormat
    all_ranges: Sequence[WorkRange]

    def ranges(self, totals: Totals) -> Iterator[tuple[int, WorkRange]]:
        """Each range with the number of its first segment."""
        number = 0
        for work in self.all_ranges:
            yield number, work
            number += len(work.segments)

    def describe(self, work: tuple[int, WorkRange]) -> str:
        return super().describe(work[1])

    def process(self, work: tuple[int, WorkRange], totals: Totals) -> Array:
        number, segments = work[0], work[1].segments
        count(scanned=len(segments))
        return self.merge(scan(self.files, number + i, segment) for i, segment in enumerate(segments))

    def merge(self, partials: Iterable[Array]) -> Array:
        # 24 bytes per record, all in one place: 60 MB for all episodes of Open X-Embodiment.
        return np.concatenate([np.zeros((0, 3), np.int64), *partials])

    def finish(self, total: Array, totals: Totals) -> list[Suspects]:
        positions = find_suspects(total)
        segments = ((work.split, segment) for work in self.all_ranges for segment in work.segments)
        return [(*segment, positions[i]) for i, segment in enumerate(segments) if i in positions]


@dataclasses.dataclass(frozen=True)
class HashSuspects(Stage):
    """Hashes the suspects, and compares them: the `Duplicates`."""

    name: str
    dataset: str
    files: RecordFormat
    suspects: str

    def ranges(self, totals: Totals) -> Iterable[Suspects]:
        suspects: list[Suspects] = totals[self.suspects]
        return suspects

    def describe(self, work: Suspects) -> str:
        return work[1].shard.path

    def process(self, work: Suspects, totals: Totals) -> list[Hashed]:
        return [*confirm(self.dataset, self.files, *work)]

    def merge(self, partials: Iterable[list[Hashed]]) -> list[Hashed]:
        return [*itertools.chain.from_iterable(partials)]

    def finish(self, total: list[Hashed], totals: Totals) -> Duplicates:
        return duplicates_among(total)


def fit_connectors(
    reader: EpisodeReader,
    check: CheckOptions,
    connecting: ConnectorRunner,
    ignored: IgnoredValues,
    ranges: Sequence[WorkRange],
    keep: Callable[[Any], None] | None = None,
    name: str = "fitted",
    duplicates: str = "duplicates",
) -> Job:
    """A stage for each connector that must be fitted: all ranges are read. The last result is that of all of them.

    Args:
      reader, check, connecting, ignored: as in `write_range`.
      ranges: all ranges, also those that are already converted.
      keep: called with the results, to save them for another run.
      name: the name of the last stage.
      duplicates: the name of the stage that found the duplicates, if any did.
    """
    check = dataclasses.replace(check, fail=())  # failing is up to the conversion
    fit = FitConnector("", reader, check, connecting, ignored, ranges, duplicates)
    stages = list[Stage]()
    for i in range(1, connecting.unfitted):
        stages.append(dataclasses.replace(fit, name=f"{name} {i}", before=stages[-1].name if stages else ""))
    return (*stages, dataclasses.replace(fit, name=name, before=stages[-1].name if stages else "", keep=keep))


@dataclasses.dataclass(frozen=True)
class FitConnector(Stage):
    """Fits the first connector without a result: the results of the connectors so far.

    Accumulators are merged in the order of the ranges, so the result does not depend on the number of workers.
    """

    name: str
    reader: EpisodeReader
    check: CheckOptions
    connecting: ConnectorRunner
    ignored: IgnoredValues
    all_ranges: Sequence[WorkRange]
    duplicates: str
    before: str = ""
    keep: Callable[[Any], None] | None = None
    large = True

    def ranges(self, totals: Totals) -> Iterable[WorkRange]:
        return self.all_ranges

    def process(self, work: WorkRange, totals: Totals) -> list[tuple[str, Accumulator]]:
        connecting, duplicates = self.connecting.fit(totals.get(self.before, ())), totals.get(self.duplicates, {})
        accumulator = connecting.accumulator()
        for episode in read_range(self.reader, work, duplicates):
            verdict = validate_episode(episode, self.check, self.ignored)
            if verdict.rejected is None:
                with contextlib.suppress(BadEpisode):  # it will be rejected
                    connecting.accumulate(accumulator, verdict.episodes)
            del episode, verdict
        return [(str(work), accumulator)]

    def merge(self, partials: Iterable[list[tuple[str, Accumulator]]]) -> list[tuple[str, Accumulator]]:
        return [*itertools.chain.from_iterable(partials)]

    def finish(self, total: list[tuple[str, Accumulator]], totals: Totals) -> tuple[Any, ...]:
        before = tuple(totals.get(self.before, ()))
        gathered = [accumulator for _, accumulator in sorted(total, key=lambda entry: entry[0])]
        first = gathered[0] if gathered else self.connecting.fit(before).accumulator()
        results = (*before, first.merge(*gathered[1:]).finish())
        if self.keep is not None:
            self.keep(results)
        return results
