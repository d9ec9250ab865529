"""The base class of runners, the options for where a job runs, and the loop that runs a job."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, Protocol

from rlds_beam import interrupts
from rlds_beam.errors import UsageError
from rlds_beam.options import Options, option
from rlds_beam.worker_status import METRICS_NAMESPACE, Done, Note

_LOOK_SECONDS = 0.5
"""Seconds between two checks for something to report."""

Define = Callable[[Any], Any]
"""Builds a job's pipeline under a given root."""


class Watcher(Protocol):
    """Receives the progress of a running job."""

    def started(self, place: str) -> None:
        """Called when a cluster or service has accepted the job; `place` is its name there, with a URL."""

    def tick(self, done: Done | None, notes: Sequence[Note]) -> None:
        """Called every second or so from a separate thread.

        Args:
          done: the progress; None if the runner does not report it.
          notes: what each process of this machine is at.
        """


class Runner:
    """Runs a job in some place.

    Args:
      options: the job's options.
      watcher: receives the progress; None for none.
    """

    tick_seconds = 1.0
    """Seconds between two progress updates."""

    def __init__(self, options: RunOptions, watcher: Watcher | None = None):
        self.options = options
        self.watcher = watcher
        self.result: Any = None

    def check(self) -> None:
        """Checks that the runner can run the job, before anything is read or written.

        Raises:
          UsageError: it cannot; the message says what to do.
        """

    def scratch(self) -> contextlib.AbstractContextManager[str | None]:
        """A temporary directory that workers write to and this process reads; None if not needed."""
        return contextlib.nullcontext()

    def run(self, define: Define, input_bytes: int) -> dict[str, Any]:
        """Runs a job and reports its progress to the watcher; see `runners.run_pipeline`."""
        ended, before = threading.Event(), interrupts.count()
        if self.watcher is not None:
            threading.Thread(target=self._tick, args=(self.watcher, ended), name="progress", daemon=True).start()
        try:
            metrics = self.run_job(define, input_bytes)
        finally:
            ended.set()
        if interrupts.count() > before:
            raise KeyboardInterrupt
        return metrics

    def run_job(self, define: Define, input_bytes: int) -> dict[str, Any]:
        """Creates a pipeline, runs it with `complete`, and translates its errors."""
        raise NotImplementedError

    def complete(self, pipeline: Any, define: Define) -> dict[str, Any]:
        """Builds and runs the pipeline, waits for its end, and returns its metrics."""
        self.result = self.submit(pipeline, define)
        self.wait()
        return read_metrics(self.result)

    def submit(self, pipeline: Any, define: Define) -> Any:
        """Builds and starts the pipeline; returns Beam's `PipelineResult`."""
        from rlds_beam.runners.beam_adapters import build

        build(pipeline, define)
        return pipeline.run()

    def place(self) -> str | None:
        """The job's name and URL on a cluster or service; None until known, and for local jobs."""
        return None

    def wait(self) -> None:
        """Waits until the job has succeeded. Raises an error of Beam or rlds-beam if it failed."""
        self.result.wait_until_finish()

    def done(self) -> Done | None:
        """The progress of the job; None if the runner does not report it.

        Beam's portable runners return metrics of finished work only, and cache the first result.
        """
        return None

    def notes(self) -> Sequence[Note]:
        """What each process of this machine is at; none on other machines."""
        return ()

    def _tick(self, watcher: Watcher, ended: threading.Event) -> None:
        told, looked = False, time.monotonic()
        while not ended.wait(_LOOK_SECONDS):
            with contextlib.suppress(Exception):  # the cluster may not answer at the moment
                place = None if told else self.place()
                if place is not None:
                    told = True
                    watcher.started(place)
                if time.monotonic() - looked >= self.tick_seconds:
                    looked = time.monotonic()
                    done, notes = self.done(), self.notes()
                    if not ended.is_set():
                        watcher.tick(done, notes)


def read_metrics(result: Any) -> dict[str, Any]:
    """This package's counters (int), distributions (`.min`, `.max`, `.sum`), and string sets, over all steps."""
    values: dict[str, Any] = {}
    metrics = result.metrics().query()
    for kind in ("counters", "distributions", "string_sets"):
        for metric in metrics.get(kind, ()):
            if metric.key.metric.namespace == METRICS_NAMESPACE:
                name, value = metric.key.metric.name, metric.committed
                if name not in values:
                    values[name] = value
                elif kind == "counters":
                    values[name] += value
                elif kind == "string_sets":
                    values[name] = values[name] | value
                else:
                    values[name] = values[name].data.combine(value.data)
    return values


DATAFLOW = ("dataflow", "DataflowRunner")
"""The Dataflow runner: our name and Beam's."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataflowOptions(Options):
    """Dataflow (--runner=dataflow); all paths must be gs:// paths."""

    shown_with: ClassVar[tuple[str, str]] = ("runner", "dataflow")
    project: str | None = option(None, "Google Cloud project of the job")
    region: str | None = option(None, "region of the workers, e.g. us-central1")
    temp_location: str | None = option(None, "gs:// directory for temporary files", metavar="DIR")
    staging_location: str | None = option(
        None, "gs:// directory for files staged to the workers (default: --temp_location)", metavar="DIR"
    )
    worker_container: str | None = option(
        None, "worker image that contains rlds-beam (see examples/dataflow)", metavar="NAME"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FlinkOptions(Options):
    """Flink (--runner=flink); the names are those of Beam's flags."""

    shown_with: ClassVar[tuple[str, str]] = ("runner", "flink")
    flink_master: str | None = option(None, "host:port of the JobManager's REST interface", metavar="HOST:PORT")
    flink_job_server_jar: str | None = option(
        None, "Beam's job server for that Flink version (default: downloaded if missing)", metavar="FILE"
    )
    parallelism: int | None = option(None, "task slots to use (default: all of the cluster)", least=1)
    environment_type: Literal["EXTERNAL", "DOCKER", "PROCESS"] | None = option(
        None, "how TaskManagers run Python: EXTERNAL is a worker pool next to each; the others as in Beam's manual"
    )
    environment_config: str | None = option(
        None, "host:port of the worker pool as seen by a TaskManager (localhost:50000), or the container image"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions(FlinkOptions, DataflowOptions):
    """Where to run the job; Beam's own flags go after --."""

    runner: str = option("local", "local, flink, dataflow, or a Beam runner (--runner=flink --help lists its options)")
    workers: int | None = option(None, "local worker processes (default: one per core if faster)", least=1)
    beam_options: tuple[str, ...] = option((), "Beam's own flags, as a list", hidden=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        for flag in self.beam_options:
            if flag.startswith("--s3_"):
                raise UsageError(
                    f"{flag.partition('=')[0]} has no effect: s3:// paths use boto3's settings. Set AWS_PROFILE, or "
                    "AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, ... for the command and its workers"
                )
        for group, runners in ((FlinkOptions, ("flink",)), (DataflowOptions, DATAFLOW)):
            for field in dataclasses.fields(group):
                if self.runner not in runners and getattr(self, field.name) is not None:
                    raise UsageError(f"--{field.name} needs --runner={runners[0]}, not --runner={self.runner}")
