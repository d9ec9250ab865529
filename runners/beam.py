"""Runs jobs as a Beam pipeline, on any runner."""

from __future__ import annotations

import base64
import contextlib
import logging
import operator
import os
import pickle
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics, MetricsFilter
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners import create_runner
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from rlds_beam import storage, worker_status
from rlds_beam.errors import RldsBeamError, UsageError
from rlds_beam.output.files import JOB
from rlds_beam.processing.job import Figures, Stage, Totals
from rlds_beam.reading.shard_list import spilling
from rlds_beam.runners import errors
from rlds_beam.runners.base import RunOptions
from rlds_beam.transforms.stages import RunStages
from rlds_beam.worker_status import METRICS_NAMESPACE, Done, is_verbose

_RESULT = "result"
"""The metric that carries a job's result, if no file can."""

_PACKAGES = r"(apache_beam|google|grpc|httplib2|tensorflow|tf_agents|tree)(\.|$)"
"""Modules whose warnings concern only their own dependencies."""


class BeamRunner:
    """Runs a job on `options.runner`, with Beam's own flags. Flink's and Dataflow's runners inherit from it.

    Args:
      options: the job's options.
    """

    tick_seconds = 1.0
    """Seconds between two looks at the progress."""

    def __init__(self, options: RunOptions):
        self.options = options
        self.result: Any = None

    def check(self) -> None:
        """Checks that the runner can run the job, before anything is read or written.

        Raises:
          UsageError: it cannot; the message says what to do.
        """
        try:
            self._runner()
        except (ImportError, ValueError, AttributeError) as error:
            text = " ".join(str(error).split())
            known = "use local, direct, prism, flink, dataflow, or module:Class"
            raise UsageError(f"--runner={self.options.runner}: {text}; {known}") from error

    def _runner(self) -> Any:
        if self.options.runner == "direct":
            return FnApiRunner()  # DirectRunner would first try to download another runner
        is_prism = self.options.runner == "prism"
        return create_runner("PrismRunner" if is_prism else self.options.runner.replace(":", "."))

    def create_pipeline(self) -> Any:
        """An empty pipeline."""
        try:
            options = PipelineOptions([*self.options.beam_options])
            return beam.Pipeline(runner=self._runner(), options=options)
        except ValueError as error:  # a flag that the runner does not take
            raise UsageError(f"--runner={self.options.runner}: {' '.join(str(error).split())}") from error

    def shared_directory(self, output: str | None) -> str | None:
        """A directory for temporary files that this process and the workers share; None if there is none.

        Args:
          output: the directory into which the job's workers write, if it has one.
        """
        if self.options.runner == "direct":
            return tempfile.mkdtemp(prefix="rlds-beam-")
        if output is not None:
            return storage.join(output, JOB)
        place = PipelineOptions([*self.options.beam_options]).get_all_options()["temp_location"]
        return None if place is None else storage.join(place, f"rlds-beam-{time.time_ns()}")

    def submit(self, pipeline: Any) -> Any:
        """Starts the pipeline; returns Beam's `PipelineResult`."""
        return pipeline.run()

    def wait(self) -> None:
        """Waits until the job has succeeded."""
        state = self.result.wait_until_finish()
        if state not in (None, "DONE"):
            raise RldsBeamError(f"{self.options.runner} ended the job in state {state}; see its log")

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
        before, directory = worker_status.interrupts(), self.shared_directory(output)
        with _quiet(), _temporary(directory), spilling(directory):
            pipeline = self.create_pipeline()
            path = None if directory is None else storage.join(directory, "result")
            try:
                pipeline | "Run" >> RunStages(stages) | "Result" >> beam.Map(_hand_over, stages[-1].name, path)
                self.result = self.submit(pipeline)
                self.wait()
                metrics = read_metrics(self.result)
                if path is None:
                    (text,) = metrics[_RESULT]
                    content = zlib.decompress(base64.b85decode(text))
                else:
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
        if worker_status.interrupts() > before:
            raise KeyboardInterrupt
        figures, memory = Figures(), metrics.get("peak_memory_kb")
        if memory is not None:  # the clocks of several machines may differ
            seconds = (metrics["range_ended_msec"].max - metrics["range_began_msec"].min) / 1000
            figures = Figures(metrics.get("steps", 0), max(0.0, seconds), memory.max)
        return pickle.loads(content), figures


@contextlib.contextmanager
def _temporary(directory: str | None) -> Iterator[None]:
    """Makes a directory, and removes it at the end."""
    if directory is not None:
        storage.makedirs(directory)
    try:
        yield
    finally:
        if directory is not None:
            with contextlib.suppress(OSError, RldsBeamError):  # small leftovers must not fail a job
                storage.rmtree(directory)


def _hand_over(totals: Totals, name: str, path: str | None) -> None:
    """Hands the job's result to the process that started it: as a file, or as a metric."""
    content = pickle.dumps(totals[name])
    if path is not None:
        storage.write_bytes(path, content)
    else:  # Beam drops strings longer than 1 MB; the packed counts of 10,000 shards take a tenth of that
        text = base64.b85encode(zlib.compress(content)).decode()
        Metrics.string_set(METRICS_NAMESPACE, _RESULT).add(text)


def read_metrics(result: Any) -> dict[str, Any]:
    """This package's counters (int), distributions (`.min`, `.max`, `.sum`), and string sets, over all steps."""
    values: dict[str, Any] = {}
    add: dict[str, Callable[[Any, Any], Any]] = {
        "counters": operator.add,
        "distributions": lambda one, other: one.combine(other),
        "string_sets": operator.or_,
    }
    metrics = result.metrics().query(MetricsFilter().with_namespace(METRICS_NAMESPACE))
    for kind, combine in add.items():
        for metric in metrics.get(kind, ()):
            name, value = metric.key.metric.name, metric.committed
            value = value.data if kind == "distributions" else value
            values[name] = combine(values[name], value) if name in values else value
    return values


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hides Beam's logs, unless the user has set their level, and warnings about its dependencies."""
    if is_verbose():
        yield
        return
    logger = logging.getLogger("apache_beam")
    shown = logger.level
    logger.setLevel(shown or logging.CRITICAL)
    if not shown:
        logging.getLogger().addFilter(_is_not_of_beam)  # Beam also calls `logging.warning`
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=_PACKAGES)
            yield
    finally:
        logging.getLogger().removeFilter(_is_not_of_beam)
        logger.setLevel(shown)


def _is_not_of_beam(record: logging.LogRecord) -> bool:
    return f"{os.sep}apache_beam{os.sep}" not in record.pathname or record.levelno >= logging.CRITICAL
