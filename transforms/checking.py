"""Checking episodes: good episodes are passed on, others are set aside, and all are counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import MIN_TIMESTAMP
from apache_beam.utils.windowed_value import WindowedValue

from rlds_beam.checking.duplicates import marked
from rlds_beam.checking.options import CheckOptions
from rlds_beam.checking.report import Report
from rlds_beam.checking.verdicts import count_verdict, validate_episode
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.keys import EpisodeKey
from rlds_beam.transforms.duplicates import as_side_input


class CheckResult(NamedTuple):
    """The outputs of `ValidateEpisodes`.

    Attributes:
      accepted: PCollection of `Episode`, repaired where that was asked for.
      rejected: PCollection of `Rejection`: the key, the violations and the original bytes.
      report: PCollection of one `Report` on everything that was read.
    """

    accepted: Any
    rejected: Any
    report: Any


class ValidateEpisodes(beam.PTransform):
    """Checks every episode against the rules, in one pass. Without Beam: `validate_episode`.

    Args:
      options: the policy of each rule; None rejects whatever breaks one.
      duplicates: what `FindDuplicateEpisodes` gives, to reject the second of two equal episodes.

    Raises:
      FailedRuleError: while running, at the first breach of a rule whose policy is `fail`.
    """

    def __init__(self, options: CheckOptions | None = None, duplicates: Any = None):
        super().__init__()
        self._options = options or CheckOptions()
        self._duplicates = duplicates

    def expand(self, episodes: Any) -> CheckResult:
        checked = episodes | "Check" >> beam.ParDo(
            _CheckFn(self._options), as_side_input(self._duplicates)
        ).with_outputs("rejected", "report", main="accepted")
        report = checked.report | "MergeReports" >> beam.CombineGlobally(_merge)
        return CheckResult(checked.accepted, checked.rejected, report)


def _merge(reports: Iterable[Report]) -> Report:
    return Report().merge(*reports)


class _CheckFn(beam.DoFn):
    def __init__(self, options: CheckOptions):
        self._options = options

    def start_bundle(self) -> None:
        self._report = Report()

    def process(self, episode: Episode, duplicates: Mapping[EpisodeKey, EpisodeKey]) -> Iterator[Any]:
        verdict = validate_episode(marked(episode, duplicates), self._options)
        self._report.add(verdict)
        count_verdict(verdict)
        yield from verdict.episodes
        if verdict.rejected is not None:
            yield TaggedOutput("rejected", verdict.rejected)

    def finish_bundle(self) -> Iterator[Any]:
        # One report a bundle, not one an episode: what is merged stays small.
        yield TaggedOutput("report", WindowedValue(self._report, MIN_TIMESTAMP, [GlobalWindow()]))
