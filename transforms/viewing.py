"""Writes a report for people: one pass over each dataset, then one file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import AsList, AsSingleton

from rlds_beam.checking.report import Report
from rlds_beam.checking.signals.table import EpisodeTable
from rlds_beam.connectors.runner import ConnectorRunner
from rlds_beam.connectors.statistics.dataset_statistics import DatasetStatistics
from rlds_beam.transforms.checking import CheckDataset
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
    """

    def __init__(self, writer: ReportWriter, connecting: Sequence[ConnectorRunner]):
        super().__init__()
        self._writer, self._connecting = writer, connecting

    def expand(self, root: Any) -> Any:
        start = root.pipeline | "Start" >> beam.Create([None])
        gathered = [
            root | f"Gather{place}" >> _Gather(place, one, connecting)
            for place, (one, connecting) in enumerate(zip(self._writer.inputs, self._connecting, strict=True))
        ]
        all_gathered = gathered | beam.Flatten(pipeline=root.pipeline)
        return start | "Write" >> beam.Map(_write, self._writer, AsList(all_gathered))


class _Gather(beam.PTransform):
    """What a pass over one dataset finds: a PCollection of its place in the report, and one `Gathered`."""

    def __init__(self, place: int, input: Input, connecting: ConnectorRunner):
        super().__init__()
        self._place, self._input, self._connecting = place, input, connecting

    def expand(self, root: Any) -> Any:
        one = self._input
        checked = root | CheckDataset(one.source, one.settings.check, self._connecting, one.context)
        statistics = checked.accepted | ComputeStatistics()
        sides = AsSingleton(statistics), AsSingleton(checked.signals)
        return checked.report | "Gather" >> beam.Map(_gathered, self._place, *sides)


def _gathered(report: Report, place: int, statistics: DatasetStatistics, signals: EpisodeTable) -> tuple[int, Gathered]:
    return place, Gathered(report, statistics, signals.finish(), tuple(signals.dataset_findings()))


def _write(start: None, writer: ReportWriter, gathered: Sequence[tuple[int, Gathered]]) -> WrittenReport:
    del start
    return writer.write([one for _, one in sorted(gathered, key=lambda pair: pair[0])])
