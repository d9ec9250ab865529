"""Writes a report for people: one pass over each dataset, then one file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import AsList

from rlds_beam.connectors.runner import ConnectorRunner
from rlds_beam.processing.range_summary import RangeSummary
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
        gathered = []
        for place, (dataset, connecting) in enumerate(zip(self._writer.inputs, self._connecting, strict=True)):
            checking = CheckDataset(dataset.source, dataset.summarizer(connecting, self._directory), self._directory)
            summary = root | f"Check{place}" >> checking
            gathered.append(summary | f"Found{place}" >> beam.Map(_find, place, self._directory))
        all_gathered = gathered | beam.Flatten(pipeline=root.pipeline)
        return start | "Write" >> beam.Map(_write, self._writer, AsList(all_gathered))


class _Found(NamedTuple):
    """The results of a pass over one dataset, and their place in the report."""

    place: int
    summary: Shared[RangeSummary]


def _find(summary: RangeSummary, place: int, directory: str | None) -> _Found:
    return _Found(place, Shared(summary, directory))


def _write(start: None, writer: ReportWriter, found: Sequence[_Found]) -> WrittenReport:
    del start
    return writer.write(
        [Gathered.of(gathered.summary.value) for gathered in sorted(found, key=lambda gathered: gathered.place)]
    )
