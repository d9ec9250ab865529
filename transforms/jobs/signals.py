"""Writes the quality signals of a dataset."""

from __future__ import annotations

from typing import Any, NamedTuple

import apache_beam as beam

from rlds_beam.checking.signals.results import SignalsWriter
from rlds_beam.processing.range_summary import RangeSummary
from rlds_beam.processing.report import Report


class CheckedSignals(NamedTuple):
    """The summary of the signals, and the report on the records read."""

    signals: dict[str, Any]
    report: Report

    def to_json(self) -> dict[str, Any]:
        return {**self.signals, "report": self.report.to_json()}


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
    return CheckedSignals(writer.write(summary.signals), summary.report)
