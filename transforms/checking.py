"""Checks episodes: passes on the good ones, sets the others aside, and counts them all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import TaggedOutput

from rlds_beam.checking.duplicates import Duplicates, mark_duplicate
from rlds_beam.checking.rules import CheckOptions
from rlds_beam.checking.verdicts import Rejection, count_verdict
from rlds_beam.connectors.base import Batch
from rlds_beam.connectors.pipeline import ConnectorRunner
from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.processing.ranges import check_and_connect
from rlds_beam.processing.report import Processed, Report
from rlds_beam.transforms.duplicates import as_side_input
from rlds_beam.transforms.elements import combine_windows


class CheckResult(NamedTuple):
    """The outputs of `ValidateEpisodes`.

    Attributes:
      accepted: a PCollection of `Episode`, repaired if requested.
      rejected: a PCollection of `Rejection`: the key, the violations, and the original bytes.
      report: a PCollection of one `Report` on all records read; of windowed episodes, one for each window.
    """

    accepted: beam.PCollection[Episode]
    rejected: beam.PCollection[Rejection]
    report: beam.PCollection[Report]


@beam.typehints.with_input_types(Episode)
class ValidateEpisodes(beam.PTransform[Episode, Any]):
    """Checks every episode against the rules, in one pass. Without Beam: `validate_episode`.

    Args:
      options: the policy of each rule; None rejects every episode that breaks a rule.
      duplicates: the result of `FindDuplicateEpisodes`, to reject the second of two equal episodes.
      connecting: the connectors that run over accepted episodes; the result has what they return.

    Raises:
      FailedRuleError: while running, at the first violation of a rule whose policy is `fail`.
    """

    def __init__(
        self,
        options: CheckOptions | None = None,
        duplicates: beam.PCollection[Duplicates] | None = None,
        connecting: ConnectorRunner | None = None,
    ):
        super().__init__()
        self._options, self._connecting = options or CheckOptions(), connecting or ConnectorRunner.none()
        self._duplicates = duplicates

    def display_data(self) -> dict[str, Any]:
        given = {policy: ", ".join(getattr(self._options, policy)) for policy in ("accept", "repair", "fail")}
        return {**{policy: rules for policy, rules in given.items() if rules}, "duplicates": bool(self._duplicates)}

    def expand(self, episodes: beam.PCollection[Episode]) -> CheckResult:
        check = beam.ParDo(_CheckFn(self._options, self._connecting), as_side_input(self._duplicates))
        checked = episodes | "Check" >> (
            check.with_output_types(Episode, rejected=Rejection, checked=Processed).with_outputs(
                "rejected", "checked", main="accepted"
            )
        )
        report = checked.checked | "Report" >> combine_windows(_ReportCombineFn(), episodes).with_output_types(Report)
        return CheckResult(checked.accepted, checked.rejected, report)


class _ReportCombineFn(beam.CombineFn):
    """Counts records into one report per window; workers count their own first, so few values are merged."""

    def create_accumulator(self) -> Report:
        return Report()

    def add_input(self, report: Report, record: Processed) -> Report:
        return report.add(record)

    def merge_accumulators(self, reports: Iterable[Report]) -> Report:
        return Report().merge(*reports)

    def extract_output(self, report: Report) -> Report:
        return report


class _CheckFn(beam.DoFn):
    def __init__(self, options: CheckOptions, connecting: ConnectorRunner):
        self._options, self._connecting = options, connecting

    def process(self, episode: Episode, duplicates: Mapping[EpisodeKey, EpisodeKey]) -> Iterator[Any]:
        batches: list[Batch] = []
        ignored = self._connecting.ignored_values()
        record = check_and_connect(
            mark_duplicate(episode, duplicates),
            self._options,
            self._connecting,
            ignored,
            batches.append,
            sound=episode.sound,
        )
        count_verdict(record.verdict)
        for batch in batches:
            yield from batch.episodes
        if record.verdict.rejected is not None:
            yield TaggedOutput("rejected", record.verdict.rejected)
        yield TaggedOutput("checked", record)
