"""Writes a job's report, and returns its result to the process that started the job."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics

from rlds_beam import storage
from rlds_beam.errors import RldsBeamError
from rlds_beam.processing.report import Report
from rlds_beam.transforms.elements import check_element
from rlds_beam.transforms.metrics import METRICS_NAMESPACE

HANDED_OVER = "handed_over"
"""The metric that carries a job's result."""


class WriteReport(beam.PTransform[Report, Report]):
    """Writes a PCollection of one `Report` to a file as JSON, and returns the PCollection."""

    def __init__(self, path: str):
        super().__init__()
        self._path = path

    def expand(self, report: beam.PCollection[Report]) -> beam.PCollection[Report]:
        return report | "Write" >> beam.Map(_write, self._path)


def _write(report: Report, path: str) -> Report:
    check_element("WriteReport", report, Report)
    storage.write_text(path, json.dumps(report.to_json(), indent=2) + "\n")
    return report


class HandOver(beam.PTransform):
    """Returns a job's result, which has a `to_json`, to the process that started the job.

    The result travels as a metric, which every runner returns: a worker on another machine may share no directory with
    that process. `handed_over` reads it.
    """

    def expand(self, result: Any) -> Any:
        return result | "Tell" >> beam.Map(_tell)


def _tell(result: Any) -> Any:
    # Beam drops strings longer than 1 MB; the packed counts of 10,000 shards take a tenth of that.
    packed = base64.b85encode(zlib.compress(json.dumps(result.to_json()).encode())).decode()
    Metrics.string_set(METRICS_NAMESPACE, HANDED_OVER).add(packed)
    return result


def handed_over(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The result's JSON, from the metrics that `runners.run_pipeline` returns.

    Raises:
      RldsBeamError: there is not exactly one result: the runner does not support such metrics.
    """
    texts = sorted(metrics.get(HANDED_OVER, ()))
    if len(texts) != 1:
        raise RldsBeamError(f"the job ended, but its runner returned {len(texts)} reports instead of one")
    content: dict[str, Any] = json.loads(zlib.decompress(base64.b85decode(texts[0])))
    return content
