"""A job's result, returned to the process that started it."""

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

    It is returned as a metric: a worker on another machine may share no directory with this process that both could
    write to. Where there is one (Dataflow's temp location, whose service keeps no such metrics), it is a file there.

    Args:
      define: builds the pipeline under the root it is given; returns a PCollection of one result that has a `to_json`.
      options, seconds, watcher: as of `runners.run_pipeline`.

    Returns:
      The result's JSON, and what the run measured of itself.
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
