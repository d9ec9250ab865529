"""`WriteReport`: a report as a file."""

from __future__ import annotations

import apache_beam as beam

from rlds_beam import storage
from rlds_beam.encoding.metadata import encode
from rlds_beam.processing.report import Report
from rlds_beam.transforms.elements import refuse_windows


@beam.typehints.with_input_types(Report)
class WriteReport(beam.PTransform[Report, Report]):
    """Writes a PCollection of one `Report` to a file as JSON, and returns the PCollection."""

    def __init__(self, path: str):
        super().__init__()
        self._path = path

    def expand(self, report: beam.PCollection[Report]) -> beam.PCollection[Report]:
        refuse_windows(type(self).__name__, report)
        return report | "Write" >> beam.Map(_write, self._path).with_output_types(Report)


def _write(report: Report, path: str) -> Report:
    storage.write_text(path, encode(report))
    return report
