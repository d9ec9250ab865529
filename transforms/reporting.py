"""Keeping what a job found."""

from __future__ import annotations

import json
from typing import Any

import apache_beam as beam

from rlds_beam import storage
from rlds_beam.report import Report


class WriteReport(beam.PTransform):
    """Writes a PCollection of one `Report` to a file, as JSON; gives the report on."""

    def __init__(self, path: str):
        super().__init__()
        self._path = path

    def expand(self, report: Any) -> Any:
        return report | "Write" >> beam.Map(_write, self._path)


def _write(report: Report, path: str) -> Report:
    storage.write_text(path, json.dumps(report.to_json(), indent=2) + "\n")
    return report
