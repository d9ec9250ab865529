"""A job's result, returned to the process that started it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from rlds_beam import storage
from rlds_beam.runners.options import RunOptions


def run_for_result(
    define: Callable[[Any], Any], options: RunOptions, seconds: float
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Runs a pipeline that has one result.

    It is returned as a metric: a worker on another machine may share no directory with this process that both could
    write to. Where there is one (Dataflow's temp location, whose service keeps no such metrics), it is a file there.

    Args:
      define: builds the pipeline under the root it is given; returns a PCollection of one result that has a `to_json`.
      options, seconds: as of `runners.run_pipeline`.

    Returns:
      The result's JSON, and what the run measured of itself.
    """
    import apache_beam as beam

    from rlds_beam.runners import run_pipeline, scratch
    from rlds_beam.transforms.reporting import HandOver, handed_over

    with scratch(options) as directory:
        if directory is None:
            metrics = run_pipeline(lambda root: define(root) | HandOver(), options, seconds)
            return handed_over(metrics), metrics
        path = storage.join(directory, "result.json")
        metrics = run_pipeline(lambda root: define(root) | "Result" >> beam.Map(_write_json, path), options, seconds)
        content: dict[str, Any] = json.loads(storage.read_text(path))
        return content, metrics


def _write_json(result: Any, path: str) -> None:
    storage.write_text(path, json.dumps(result.to_json()))
