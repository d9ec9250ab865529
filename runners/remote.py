"""Runs jobs on any other Beam runner, with Beam's own flags."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners import create_runner

from rlds_beam import storage
from rlds_beam.errors import RldsBeamError, UsageError
from rlds_beam.runners.base import Define, Runner
from rlds_beam.runners.local import plain
from rlds_beam.runners.options import RunOptions
from rlds_beam.text import did_you_mean
from rlds_beam.worker_status import METRICS_NAMESPACE

if TYPE_CHECKING:
    from rlds_beam.runners.base import Watcher

_TESTED = "Tested runners: local, flink, dataflow. -v shows the traceback."
_NOT_FETCHED = re.compile(r"Unable to fetch remote job server jar at \S*/beam-runners-(?P<kind>[a-z]+)")
_HTTP = re.compile(r"HTTP Error (\d+)")


class RemoteRunner(Runner):
    """Runs a job on `options.runner`."""

    tick_seconds = 10.0

    def check(self) -> None:
        if self.options.workers is not None:
            raise UsageError(f"--workers needs --runner=local; give the flags of {self.options.runner} after --")
        try:
            create_runner(self.options.runner)
        except (ImportError, ValueError) as error:
            hint = did_you_mean(self.options.runner, ("local", "flink", "dataflow"))
            problem = f"there is no such runner{hint}" if hint else " ".join(str(error).split())
            raise UsageError(f"--runner={self.options.runner}: {problem}") from error

    def run_job(self, define: Define, seconds: float) -> dict[str, Any]:
        """Runs the job.

        Raises:
          UsageError: Beam has no such runner, or rejects its flags.
          RldsBeamError: the job failed.
        """
        self.check()
        flags = [f"--runner={self.options.runner}", *self.options.beam_options]
        try:
            pipeline = beam.Pipeline(options=PipelineOptions(flags))
        except ValueError as error:  # a flag that the runner does not take
            raise UsageError(f"--runner={self.options.runner}: " + " ".join(str(error).split())) from error
        try:
            return self.complete(pipeline, define)
        except RldsBeamError:
            raise
        except Exception as error:
            raise self._plain(error) from error

    def _plain(self, error: Exception) -> RldsBeamError:
        """The cause in one line. Beam's runners pass on any error of their libraries."""
        name, text = self.options.runner, " ".join(str(error).split())
        if (fetched := _NOT_FETCHED.search(text)) is not None:
            kind, code = fetched["kind"].capitalize(), _HTTP.search(text)
            why = code[1] if code is not None else "no connection"
            return UsageError(
                f"--runner={name}: Beam's job server for {kind} could not be downloaded ({why}). {_TESTED}"
            )
        cause = plain(error)
        if type(cause) is not RldsBeamError or cause is error:
            return cause  # our own error, raised in a worker
        return RldsBeamError(f"--runner={name}: {str(cause).rstrip('.')}. {_TESTED}")

    def wait(self) -> None:
        state = self.result.wait_until_finish()
        if state not in (None, "DONE"):
            raise RldsBeamError(f"{self.options.runner} ended the job in state {state}; see its log")


HANDED_OVER = "handed_over"
"""The metric that carries a job's result."""


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

    runner = find_runner(options, watcher)
    with runner.scratch() as directory:
        if directory is None:
            metrics = runner.run(lambda root: define(root) | "HandOver" >> beam.Map(hand_over), seconds)
            return handed_over(metrics), metrics
        path = storage.join(directory, "result.json")
        metrics = runner.run(lambda root: define(root) | "Result" >> beam.Map(_write_json, path), seconds)
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
