"""Runs jobs that return a result to this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rlds_beam import storage
from rlds_beam.runners.options import RunOptions

if TYPE_CHECKING:
    from rlds_beam.runners.base import Watcher


def run_for_result(
    define: Callable[[Any], Any], options: RunOptions, seconds: float, watcher: Watcher | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Runs a pipeline that has one result.

    The result is returned as a metric, because a worker on another machine may share no directory with this process. On
    Dataflow, which does not keep such metrics, it is a file in the temp location.

    Args:
      define: builds the pipeline under a given root; returns a PCollection of one result that has a `to_json`.
      options, seconds, watcher: as in `runners.run_pipeline`.

    Returns:
      The result's JSON, and the run's metrics.
    """
    import apache_beam as beam

    from rlds_beam.runners import find_runner
    from rlds_beam.transforms.reporting import HandOver, handed_over

    runner = find_runner(options, watcher)
    with runner.scratch() as directory:
        if directory is None:
            metrics = runner.run(lambda root: define(root) | HandOver(), seconds)
            return handed_over(metrics), metrics
        path = storage.join(directory, "result.json")
        metrics = runner.run(lambda root: define(root) | "Result" >> beam.Map(_write_json, path), seconds)
        content: dict[str, Any] = json.loads(storage.read_text(path))
        return content, metrics


def _write_json(result: Any, path: str) -> None:
    storage.write_text(path, json.dumps(result.to_json()))
