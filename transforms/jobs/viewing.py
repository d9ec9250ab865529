"""Writes a report for people: one pass over each dataset, then one file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import AsList, AsSingleton

from rlds_beam.checking.signals.table import EpisodeTable
from rlds_beam.connectors.runner import ConnectorRunner
from rlds_beam.connectors.statistics.dataset_statistics import DatasetStatistics
from rlds_beam.processing.report import Report
from rlds_beam.transforms.checking import CheckDataset
from rlds_beam.transforms.jobs.sharing import Shared
from rlds_beam.transforms.statistics import ComputeStatistics
from rlds_beam.viewing.report.making import Gathered
from rlds_beam.viewing.report.writing import Input, ReportWriter, WrittenReport


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
        gathered = [
            root | f"Gather{place}" >> _Gather(place, one, connecting, self._directory)
            for place, (one, connecting) in enumerate(zip(self._writer.inputs, self._connecting, strict=True))
        ]
        all_gathered = gathered | beam.Flatten(pipeline=root.pipeline)
        return start | "Write" >> beam.Map(_write, self._writer, AsList(all_gathered))


class _Gather(beam.PTransform):
    """What a pass over one dataset finds: a PCollection of one `_Found`."""

    def __init__(self, place: int, input: Input, connecting: ConnectorRunner, directory: str | None):
        super().__init__()
        self._place, self._input, self._connecting, self._directory = place, input, connecting, directory

    def expand(self, root: Any) -> Any:
        one = self._input
        measured = EpisodeTable(one.context, self._directory)
        checked = root | CheckDataset(one.source, one.settings.check, self._connecting, measured)
        statistics = checked.accepted | ComputeStatistics(directory=self._directory)
        sides = AsSingleton(checked.report), AsSingleton(checked.signals)
        return statistics | "Gather" >> beam.Map(_found, self._place, self._directory, *sides)


class _Found(NamedTuple):
    """What a pass over one dataset finds, and its place in the report."""

    place: int
    report: Report
    statistics: Shared[DatasetStatistics]
    signals: EpisodeTable


def _found(
    statistics: DatasetStatistics, place: int, directory: str | None, report: Report, signals: EpisodeTable
) -> _Found:
    return _Found(place, report, Shared(statistics, directory), signals)


def _write(start: None, writer: ReportWriter, found: Sequence[_Found]) -> WrittenReport:
    del start
    ordered = sorted(found, key=lambda one: one.place)
    return writer.write([Gathered.of(one.report, one.statistics.value, one.signals) for one in ordered])
