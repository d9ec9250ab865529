"""Reads and checks the episodes of a work range, and summarizes them: what the jobs do that write no items."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rlds_beam.checking.duplicates import marked
from rlds_beam.checking.options import CheckOptions
from rlds_beam.checking.rules import ADVICE
from rlds_beam.checking.screening import screened
from rlds_beam.checking.signals.table import EpisodeTable
from rlds_beam.checking.verdicts import count_verdict
from rlds_beam.connectors.base import Batch
from rlds_beam.connectors.runner import ConnectorRunner
from rlds_beam.connectors.statistics.dataset_statistics import DatasetStatistics, Groups
from rlds_beam.encoding.tfds.dataset_info import DATASET_INFO, FEATURES
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.keys import EpisodeKey
from rlds_beam.errors import FailedRuleError, UsageError, Violation
from rlds_beam.processing.ranges import Duplicates, check_and_connect
from rlds_beam.processing.report import Report
from rlds_beam.reading.base import Segment, Shard, Source, Split
from rlds_beam.reading.framing import Framing, reading_shard
from rlds_beam.reading.plan import WorkRange, plan_ranges
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.text import count

_MAX_FILES = 1000
"""The most segments of files that become ranges of their own."""


@dataclasses.dataclass(frozen=True)
class RangeSummary:
    """What was found in some ranges.

    Attributes:
      report: the report on the records read.
      statistics: the statistics of the accepted episodes, after any connectors; empty if not computed.
      signals: the signals of every record, as read, except those of which connectors kept nothing. None if they are not
        measured.
    """

    report: Report
    statistics: DatasetStatistics
    signals: EpisodeTable | None

    def to_json(self) -> dict[str, Any]:
        """The statistics and the report."""
        return {"statistics": self.statistics.to_json(), "report": self.report.to_json()}


def plan_summaries(source: Source, framing: Framing) -> tuple[WorkRange, ...]:
    """The ranges to summarize, the same on every run.

    Ranges of several small files are cut at the files, which balances the workers, unless there are too many.
    """
    ranges = plan_ranges(source, starts=framing.record_starts)
    if sum(len(work.segments) for work in ranges) > _MAX_FILES:
        return ranges
    cut: list[WorkRange] = []
    for split, works in itertools.groupby(ranges, key=lambda work: work.split):
        segments = [segment for work in works for segment in work.segments]
        cut += (WorkRange(split, i, len(segments), (segment,)) for i, segment in enumerate(segments))
    return tuple(cut)


def report_of(summary: RangeSummary) -> Report:
    """The report of a summary, for `beam.Map`."""
    return summary.report


@dataclasses.dataclass(frozen=True)
class RangeSummarizer:
    """Summarizes ranges. Picklable.

    Attributes:
      reader: reads the dataset.
      check: the policy of each rule.
      connecting: the connectors that run over accepted episodes.
      measured: an empty table for the signals; None to measure nothing.
      groups: makes the `Groups` of a part of the data, by its name; None to compute no statistics.
    """

    reader: EpisodeReader
    check: CheckOptions
    connecting: ConnectorRunner
    measured: EpisodeTable | None = None
    groups: Callable[[str], Groups] | None = None

    def summarize(self, work: WorkRange, duplicates: Duplicates, results: Sequence[Any] = ()) -> RangeSummary:
        """Reads, checks, connects, and summarizes the episodes of a range.

        Args:
          results: the results of fitted connectors.

        Raises:
          FailedRuleError: a rule whose policy is `fail` is broken.
        """
        connecting, ignored = self.connecting.fit(results), self.connecting.ignored_values()
        report = Report()
        groups = None if self.groups is None else self.groups(str(work))
        signals = None if self.measured is None else self.measured.merge()

        def add(batch: Batch) -> None:
            if groups is not None:
                for accepted in batch.episodes:
                    groups.add(accepted)

        for segment in work.segments:
            for episode, sound in screened(self.reader.batches(work.split, segment)):
                episode = marked(episode, duplicates)
                record = check_and_connect(episode, self.check, connecting, ignored, add, sound=sound)
                report.add(record)
                count_verdict(record.verdict)
                if signals is not None and (record.written or record.verdict.rejected is not None):
                    signals.add(episode, record.verdict)
                del episode, record  # They may be large: free them before reading the next.
        return RangeSummary(report, DatasetStatistics() if groups is None else groups.finish(), signals)

    def merge(self, summaries: Iterable[RangeSummary]) -> RangeSummary:
        """Merges the summaries of different ranges; their order does not matter."""
        every = [*summaries]
        signals = [summary.signals for summary in every if summary.signals is not None]
        return RangeSummary(
            Report().merge(*(summary.report for summary in every)),
            DatasetStatistics().merge(*(summary.statistics for summary in every)),
            None if self.measured is None else self.measured.merge(*signals),
        )


_SAMPLES = 5
_ENOUGH = 3  # With fewer bad records, the schema may still be right.


def check_source(source: Source, options: CheckOptions) -> Report:
    """Compares a dataset's files with its metadata, and its first records with its schema.

    Returns:
      A report that counts the accepted violations.

    Raises:
      UsageError: a violation is not accepted, or `reject` names a field that the dataset does not have. No record was
        converted.
    """
    if options.reject is not None:
        from rlds_beam.checking.signals.conditions import check_fields, parse_reject

        check_fields(parse_reject(options.reject), source.schema)
    report = Report(left_out=dict(source.left_out), notes=tuple(source.notes))
    for violation in (*source.violations, *_schema_mismatch(source)):
        if options.policy(violation.rule) != "accept":
            raise UsageError(
                f"{violation}. {ADVICE[violation.rule].capitalize()}, or continue with the existing files: "
                f"--accept={violation.rule}"
            )
        report.add_violation(violation, EpisodeKey(source.dataset, "all", 0, 0), "accepted")
    return report


def check_counts(source: Source, read: Mapping[str, int], options: CheckOptions) -> Report:
    """Compares the number of records read from each shard with dataset_info.json.

    Args:
      source: the dataset; for a sliced split, only the records in the slice count.
      read: `split:shard` -> number of records, as in `Report.shards`.
      options: `short_shard` may be accepted.

    Returns:
      A report with a `short_shard` for each shard that holds another number.

    Raises:
      FailedRuleError: there is one, and its policy is `fail`.
    """
    report = Report()
    policy = options.policy("short_shard")
    for split in source.splits:
        for shard, expected, of_slice in _expected(split):
            key = EpisodeKey(source.dataset, split.name, shard.index, 0)
            records = read.get(key.shard_name, 0)
            if records == expected:
                continue
            said = "the dataset's metadata" if source.tfds is None else DATASET_INFO
            detail = f"{shard.path} holds {count(records, 'record')}{of_slice}; {said} says {expected:,}"
            if policy == "fail":
                raise FailedRuleError(f"short_shard: {detail}. {ADVICE['short_shard'].capitalize()}")
            report.add_violation(
                Violation("short_shard", detail), key, "accepted" if policy == "accept" else "rejected"
            )
    return report


def _expected(split: Split) -> Iterator[tuple[Shard, int, str]]:
    """The number of records that dataset_info.json states for each shard, if it does, and of what slice."""
    if not split.sliced:
        yield from ((shard, shard.records, "") for shard in split.shards if shard.records is not None)
        return
    name = f"{split.name}[{split.start or ''}:{'' if split.stop is None else split.stop}]"
    for shard, low, high in split.taken:
        yield shard, high - low, f" of {name}"


def _schema_mismatch(source: Source) -> Iterator[Violation]:
    """Yields a violation if all of the first records break the schema in the same way."""
    samples = [{(v.rule, v.field): v for v in episode.faults} for episode in _first_episodes(source)]
    if len(samples) < _ENOUGH:
        return
    for rule, field in set.intersection(*map(set, samples)):
        if rule in ("missing_field", "wrong_dtype_or_shape"):
            said = "the dataset's schema" if source.tfds is None else FEATURES
            detail = f"{said} does not fit the records: {samples[0][rule, field]}"
            yield Violation("schema_mismatch", f"{detail} (the same in all of the first {len(samples)})")


def _first_episodes(source: Source) -> list[Episode]:
    """The first few episodes of the first shards."""
    reader = EpisodeReader(source)
    shards = [(split.name, shard) for split in source.splits for shard in split.shards if shard.size][:_SAMPLES]
    each = -(-_SAMPLES // max(1, len(shards)))
    episodes: list[Episode] = []
    for name, shard in shards:
        with reading_shard(shard):
            episodes += itertools.islice(reader.read(name, Segment(shard)), each)
    return episodes
