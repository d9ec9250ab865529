"""Keeping a job's result, and passing it to the process that started the job."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics

from rlds_beam import storage
from rlds_beam.checking.report import Report
from rlds_beam.errors import RldsBeamError
from rlds_beam.transforms.metrics import METRICS_NAMESPACE

HANDED_OVER = "handed_over"
"""The metric that carries a job's result."""


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


class HandOver(beam.PTransform):
    """Passes the one result of a job, which has a `to_json`, to the process that started the job, and on. It travels

    as a metric, which every runner returns: a worker on another machine may share no directory with
    that process that both could write to. `handed_over` reads it.
    """

    def expand(self, result: Any) -> Any:
        return result | "Tell" >> beam.Map(_tell)


def _tell(result: Any) -> Any:
    # Beam drops what is longer than 1 MB; the counts of 10,000 shards are a tenth of that when they are packed.
    packed = base64.b85encode(zlib.compress(json.dumps(result.to_json()).encode())).decode()
    Metrics.string_set(METRICS_NAMESPACE, HANDED_OVER).add(packed)
    return result


def handed_over(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON of the result, out of what `runners.run_pipeline` gives.

    Raises:
      RldsBeamError: there is none, or more than one: the runner keeps no such metrics.
    """
    texts = sorted(metrics.get(HANDED_OVER, ()))
    if len(texts) != 1:
        raise RldsBeamError(f"the job ended, but its runner returned {len(texts)} reports of it, not one")
    content: dict[str, Any] = json.loads(zlib.decompress(base64.b85decode(texts[0])))
    return content
