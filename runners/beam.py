"""Runs jobs as a Beam pipeline, on any runner."""

from __future__ import annotations

import contextlib
import pickle
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.metrics import MetricsFilter
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners import create_runner
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from rlds_beam import storage
from rlds_beam.errors import RldsBeamError, UsageError
from rlds_beam.output.files import JOB
from rlds_beam.processing.job import Figures, Stage, Totals
from rlds_beam.reading.shard_list import spill_lists
from rlds_beam.runners import errors
from rlds_beam.runners.base import RunOptions
from rlds_beam.transforms.stages import RunStages
from rlds_beam.worker_status import METRICS_NAMESPACE, Done


class BeamRunner:
    """Runs a job on `options.runner`, with Beam's own flags. Flink's and Dataflow's runners inherit from it.

    Args:
      options: the job's options.
    """

    tick_seconds = 1.0
    """Seconds between two looks at the progress."""

    def __init__(self, options: RunOptions):
        self.options = options
        self.result: Any = None  # Beam's `PipelineResult`, once the job is submitted

    def check(self) -> None:
        """Checks that the runner can run the job, before anything is read or written.

        Raises:
          UsageError: it cannot; the message says what to do.
        """
        self.create_pipeline()

    def flags(self) -> list[str]:
        """Beam's flags."""
        return [*self.options.beam_options]

    def create_pipeline(self) -> Any:
        """An empty pipeline. Raises UsageError if there is no such runner, or if it does not take a flag."""
        name = self.options.runner
        try:
            # DirectRunner would first try to download another runner.
            runner = FnApiRunner() if name == "direct" else create_runner(name.replace(":", "."))
            return beam.Pipeline(runner=runner, options=PipelineOptions(self.flags()))
        except (ImportError, ValueError, AttributeError) as error:
            raise UsageError(f"--runner={name}: {' '.join(str(error).split())}") from error

    def shared_directory(self, output: str | None) -> str:
        """A directory for temporary files that this process and the workers share.

        Args:
          output: the directory into which the job's workers write, if it has one.

        Raises:
          UsageError: the workers may be on other machines, and no place that they share is known.
        """
        if self.options.runner in ("direct", "prism"):
            return tempfile.mkdtemp(prefix="rlds-beam-")
        if output is not None:
            return storage.join(output, JOB)
        place = self.options.temp_location or PipelineOptions(self.flags()).get_all_options()["temp_location"]
        if place is None:
            raise UsageError(
                f"--runner={self.options.runner}: this job has no output, through which its workers could return the "
                "result: name a directory that all of them and this command can use, with --temp_location=DIR"
            )
        return storage.join(place, f"rlds-beam-{time.time_ns()}")

    def clean_up(self) -> None:
        """Called when the job has ended, in any way."""

    def place(self) -> str | None:
        """The job's name and URL on a cluster or service, once known."""
        return None

    def done(self) -> Done | None:
        """The progress of the job; None if the runner does not report it, as most report only finished work."""
        return None

    def plain(self, error: Exception) -> RldsBeamError:
        """The error for the user."""
        return errors.plain(error)

    def run(self, stages: Sequence[Stage], output: str | None = None) -> tuple[Any, Figures]:
        """Runs a job; see `runners.run`."""
        directory = self.shared_directory(output)
        path = storage.join(directory, "result")
        with _temporary(directory), spill_lists(directory):
            try:
                pipeline = self.create_pipeline()
                pipeline | "Run" >> RunStages(stages) | "Result" >> beam.Map(_write_result, stages[-1].name, path)
                self.result = pipeline.run()
                state = self.result.wait_until_finish()
                if state not in (None, "DONE"):
                    raise RldsBeamError(f"{self.options.runner} ended the job in state {state}; see its log")
                metrics = read_metrics(self.result)
                with storage.open_read(path) as file:
                    content = file.read()
            except RldsBeamError as error:
                raise errors.plain(error) from error
            except Exception as error:
                if "KeyboardInterrupt [while running" in str(error):  # Beam's wording for Ctrl-C during a step
                    raise KeyboardInterrupt from error
                raise self.plain(error) from error
            finally:
                self.clean_up()
        figures, memory = Figures(), metrics.get("peak_memory_kb")
        if memory is not None:  # the clocks of several machines may differ
            seconds = (metrics["range_ended_msec"].max - metrics["range_began_msec"].min) / 1000
            figures = Figures(metrics.get("steps", 0), max(0.0, seconds), memory.max)
        return pickle.loads(content), figures


@contextlib.contextmanager
def _temporary(directory: str) -> Iterator[None]:
    """Makes a directory, and removes it at the end."""
    storage.makedirs(directory)
    try:
        yield
    finally:
        with contextlib.suppress(OSError, RldsBeamError):  # small leftovers must not fail a job
            storage.rmtree(directory)


def _write_result(totals: Totals, name: str, path: str) -> None:
    storage.write_bytes(path, pickle.dumps(totals[name]))


def read_metrics(result: Any) -> dict[str, Any]:
    """This package's counters (int) and distributions (`.min`, `.max`, `.sum`), over all steps."""
    values: dict[str, Any] = {}
    metrics = result.metrics().query(MetricsFilter().with_namespace(METRICS_NAMESPACE))
    for metric in metrics["counters"]:
        name = metric.key.metric.name
        values[name] = values.get(name, 0) + metric.committed
    for metric in metrics["distributions"]:
        name, value = metric.key.metric.name, metric.committed.data
        values[name] = value.combine(values[name]) if name in values else value
    return values
