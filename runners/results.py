"""Runs jobs that return a result to this process."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rlds_beam import storage
from rlds_beam.errors import RldsBeamError
from rlds_beam.runners.base import RunOptions
from rlds_beam.worker_status import METRICS_NAMESPACE

if TYPE_CHECKING:
    from rlds_beam.runners.base import Watcher


HANDED_OVER = "handed_over"
"""The metric that carries a job's result."""


def run_for_result(
    define: Callable[[Any], Any], options: RunOptions, input_bytes: int, watcher: Watcher | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Runs a pipeline that has one result.

    The result is returned as a metric, because a worker on another machine may share no directory with this process. On
    Dataflow, which does not keep such metrics, it is a file in the temp location.

    Args:
      define: builds the pipeline under a given root; returns a PCollection of one result that has a `to_json`.
      options, input_bytes, watcher: as in `runners.run_pipeline`.

    Returns:
      The result's JSON, and the run's metrics.
    """
    import apache_beam as beam

    from rlds_beam.runners import find_runner

    runner = find_runner(options, watcher)
    with runner.scratch() as directory:
        if directory is None:
            metrics = runner.run(lambda root: define(root) | "HandOver" >> beam.Map(hand_over), input_bytes)
            return handed_over(metrics), metrics
        path = storage.join(directory, "result.json")
        metrics = runner.run(lambda root: define(root) | "Result" >> beam.Map(_write_json, path), input_bytes)
        content: dict[str, Any] = json.loads(storage.read_text(path))
        return content, metrics


def _write_json(result: Any, path: str) -> None:
    storage.write_text(path, json.dumps(result.to_json()))


def hand_over(result: Any) -> Any:
    """Sets the metric that carries a job's result, on a worker; `handed_over` reads it."""
    from apache_beam.metrics import Metrics

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
