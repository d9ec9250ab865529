"""Reads, checks, and summarizes a dataset: the work of `check`, `stats`, and `report`; writes signals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.utils.windowed_value import WindowedValue

from rlds_beam.checking.findings import Finding, FindingLog, Findings
from rlds_beam.checking.signals.context import Context
from rlds_beam.checking.signals.dataset import DatasetFinding
from rlds_beam.checking.signals.results import SignalsWriter
from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.processing.range_summary import RangeSummarizer, RangeSummary, plan_summaries
from rlds_beam.processing.ranges import RangeFitter
from rlds_beam.processing.report import Report
from rlds_beam.reading.base import Source
from rlds_beam.reading.framing import Framing
from rlds_beam.reading.plan import WorkRange, plan_ranges
from rlds_beam.transforms.duplicates import FindDuplicateEpisodes, as_side_input
from rlds_beam.transforms.elements import in_global_window
from rlds_beam.transforms.jobs.fitted_connectors import FitConnectors, as_results
from rlds_beam.transforms.jobs.shared_values import Shared
from rlds_beam.worker_status import METRICS_NAMESPACE, working_on

_SUMMARIES = 4
"""Summaries that a bundle merges at once."""


class CheckDataset(beam.PTransform):
    """Reads a dataset, checks every episode, and runs connectors over the accepted ones: one `RangeSummary`.

    One worker reads a whole range, so the result is equal for any number of workers. Without Beam:
    `RangeSummarizer.summarize`.

    Args:
      source: the dataset.
      summarizer: what to check, measure, and compute.
      directory: a directory that all workers share, for temporary files; None if there is none.
    """

    def __init__(self, source: Source, summarizer: RangeSummarizer, directory: str | None = None):
        super().__init__()
        self._source, self._summarizer, self._directory = source, summarizer, directory

    def expand(self, root: Any) -> Any:
        source, summarizer, framing, fitted = self._source, self._summarizer, Framing(self._source), None
        look = summarizer.check.policy("duplicate_episode") != "accept"
        duplicates = root | FindDuplicateEpisodes(source, framing) if look else None
        connecting = summarizer.connecting
        if connecting.unfitted:
            ranges = plan_ranges(source, starts=framing.record_starts)
            fitter = RangeFitter(summarizer.reader, summarizer.check, connecting, connecting.ignored_values())
            fitted = root | FitConnectors(fitter, ranges, duplicates)
        summaries = (
            root
            # Only the list of ranges is shuffled, never the episodes; that balances the workers.
            | "Ranges" >> beam.Create(plan_summaries(source, framing), reshuffle=True)
            | "Summarize"
            >> beam.ParDo(_SummarizeFn(summarizer, self._directory), as_side_input(duplicates), as_results(fitted))
        )
        merged = summaries | "Merge" >> beam.CombineGlobally(_merge, summarizer, self._directory)
        return merged | "Load" >> beam.Map(_value)


def _merge(
    summaries: Iterable[Shared[RangeSummary]], summarizer: RangeSummarizer, directory: str | None
) -> Shared[RangeSummary]:
    return Shared(summarizer.merge(shared.value for shared in summaries), directory)


def _value(shared: Shared[RangeSummary]) -> RangeSummary:
    return shared.value


class _SummarizeFn(beam.DoFn):
    def __init__(self, summarizer: RangeSummarizer, directory: str | None):
        self._summarizer, self._directory = summarizer, directory
        self._records = Metrics.counter(METRICS_NAMESPACE, "records_read")
        self._bytes = Metrics.counter(METRICS_NAMESPACE, "bytes_read")

    def start_bundle(self) -> None:
        self._summaries: list[RangeSummary] = []

    def process(self, work: WorkRange, duplicates: Mapping[EpisodeKey, EpisodeKey], results: Sequence[Any]) -> None:
        with working_on(work):
            summary = self._summarizer.summarize(work, duplicates, results)
        self._records.inc(summary.report.records)
        self._bytes.inc(summary.report.bytes)
        self._summaries.append(summary)
        if len(self._summaries) == _SUMMARIES:
            self._summaries = [self._summarizer.merge(self._summaries)]

    def finish_bundle(self) -> Iterator[WindowedValue]:
        # One summary per bundle, not per range, keeps the merge small.
        yield in_global_window(Shared(self._summarizer.merge(self._summaries), self._directory))


class CheckedSignals(NamedTuple):
    """The summary of the signals, the report on the records read, and the findings if they are listed."""

    signals: dict[str, Any]
    report: Report
    listed: Findings | None = None

    def to_json(self) -> dict[str, Any]:
        listed = {} if self.listed is None else {"listed": self.listed.to_json()}
        return {**self.signals, "report": self.report.to_json(), **listed}


def log_findings(source: Source) -> FindingLog:
    """An empty log for the records of a dataset."""
    return FindingLog(Context.of(source.schema).instructions)


def list_findings(summary: RangeSummary) -> CheckedSignals:
    """The report and the findings of a summary without signals, for `beam.Map`."""
    return CheckedSignals({}, summary.report, None if summary.log is None else summary.log.finish())


class WriteSignals(beam.PTransform):
    """Writes the signals of a PCollection of one `RangeSummary`; returns a PCollection of one `CheckedSignals`.

    Without Beam: `SignalsWriter.write`.

    Args:
      writer: what to write, and where.
    """

    def __init__(self, writer: SignalsWriter):
        super().__init__()
        self._writer = writer

    def expand(self, summary: Any) -> Any:
        return summary | "Write" >> beam.Map(_write, self._writer)


def _write(summary: RangeSummary, writer: SignalsWriter) -> CheckedSignals:
    assert summary.signals is not None
    signals = writer.write(summary.signals)
    if summary.log is None:
        return CheckedSignals(signals, summary.report)
    of_dataset = [DatasetFinding(**finding) for finding in signals["findings"]]
    counts = {f"signal/{name}": signal["beyond"] for name, signal in signals["signals"].items()}
    listed = summary.log.finish([*signals.pop("beyond"), *map(_of_dataset, of_dataset)], counts)
    return CheckedSignals(signals, summary.report, listed)


def _of_dataset(finding: DatasetFinding) -> Finding:
    return Finding(f"dataset/{finding.check}", "warning", "", finding.detail, finding.field)
