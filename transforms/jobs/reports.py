"""Writes a report for people: one pass over each dataset, then one file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import AsList

from rlds_beam.connectors.runner import ConnectorRunner
from rlds_beam.processing.range_summary import RangeSummarizer, RangeSummary
from rlds_beam.reading.base import Source
from rlds_beam.transforms.jobs.checks import CheckDataset
from rlds_beam.transforms.jobs.shared_values import Shared
from rlds_beam.viewing.report.dataset import Gathered
from rlds_beam.viewing.report.report_file import ReportWriter, WrittenReport


class WriteDatasetReport(beam.PTransform):
    """Reads and checks one or two datasets, and writes a report about them as one HTML file.

    The result is a PCollection of one `WrittenReport`. The file has the same bytes for any number of workers. Without
    Beam: `ReportWriter.write`.

    Args:
      writer: the datasets, and where the report goes.
      connecting: the connectors of each dataset.
      directory: a directory that all workers share, for temporary files; None if there is none.
    """

    def __init__(self, writer: ReportWriter, connecting: Sequence[ConnectorRunner], directory: str | None = None):
        super().__init__()
        self._writer, self._connecting, self._directory = writer, connecting, directory

    def expand(self, root: Any) -> Any:
        start = root.pipeline | "Start" >> beam.Create([None])
        inputs = zip(self._writer.inputs, self._connecting, strict=True)
        checked = [(dataset.source, dataset.summarizer(runner, self._directory)) for dataset, runner in inputs]
        return start | "Write" >> beam.Map(_write, self._writer, summaries(root, checked, self._directory))


def summaries(root: Any, inputs: Sequence[tuple[Source, RangeSummarizer]], directory: str | None) -> AsList:
    """Reads and checks datasets under `root`: a side input with a `Found` for each, in any order."""
    found = []
    for place, (source, summarizer) in enumerate(inputs):
        summary = root | f"Check{place}" >> CheckDataset(source, summarizer, directory)
        found.append(summary | f"Found{place}" >> beam.Map(_find, place, directory))
    return AsList(found | beam.Flatten(pipeline=getattr(root, "pipeline", root)))


class Found(NamedTuple):
    """The results of a pass over one dataset, and their place in the report."""

    place: int
    summary: Shared[RangeSummary]


def _find(summary: RangeSummary, place: int, directory: str | None) -> Found:
    return Found(place, Shared(summary, directory))


def _write(start: None, writer: ReportWriter, found: Sequence[Found]) -> WrittenReport:
    del start
    return writer.write(
        [Gathered.of(gathered.summary.value) for gathered in sorted(found, key=lambda gathered: gathered.place)]
    )
