"""Writes the quality signals of a dataset."""

from __future__ import annotations

from typing import Any, NamedTuple

import apache_beam as beam

from rlds_beam.checking.signals.results import SignalsWriter
from rlds_beam.checking.signals.table import EpisodeTable
from rlds_beam.processing.report import Report


class CheckedSignals(NamedTuple):
    """The summary of the signals, and the report on the records read."""

    signals: dict[str, Any]
    report: Report

    def to_json(self) -> dict[str, Any]:
        return {**self.signals, "report": self.report.to_json()}


class WriteSignals(beam.PTransform):
    """Writes a PCollection of one `EpisodeTable`; returns a PCollection of one `CheckedSignals`.

    Without Beam: `SignalsWriter.write`.

    Args:
      writer: what to write, and where.
      report: a PCollection of one `Report`.
    """

    def __init__(self, writer: SignalsWriter, report: Any):
        super().__init__()
        self._writer, self._report = writer, report

    def expand(self, signals: Any) -> Any:
        return signals | "Write" >> beam.Map(_write, self._writer, beam.pvalue.AsSingleton(self._report))


def _write(signals: EpisodeTable, writer: SignalsWriter, report: Report) -> CheckedSignals:
    return CheckedSignals(writer.write(signals), report)
