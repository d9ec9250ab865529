"""A runner: where a job runs, and the one loop that runs it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from rlds_beam.runners.options import RunOptions
from rlds_beam.worker_status import Done

_LOOK_SECONDS = 0.5
"""Between two looks at whether there is something to tell."""

Define = Callable[[Any], Any]
"""Builds a job's pipeline under the root that it is given."""


class Watcher(Protocol):
    """Is told how far a job is, while it runs."""

    def started(self, place: str) -> None:
        """The job was handed to a cluster or a service; `place` is its name there, with a URL."""

    def tick(self, done: Done | None) -> None:
        """So much is done by now, if the runner knows; called every second or so, from a thread of its own."""


class Runner:
    """Where a job runs.

    Args:
      options: of the job.
      watcher: is told how far it is; None where nothing is to be told.
    """

    tick_seconds = 1.0
    """Between two looks at how far the job is."""

    def __init__(self, options: RunOptions, watcher: Watcher | None = None):
        self.options = options
        self.watcher = watcher
        self.result: Any = None

    def check(self) -> None:
        """Refuses what the runner could not do, before anything is read or written.

        Raises:
          UsageError: the message says what to do.
        """

    def scratch(self) -> contextlib.AbstractContextManager[str | None]:
        """A directory that workers write to and this process reads from, gone at the end; None where none is needed."""
        return contextlib.nullcontext()

    def run(self, define: Define, seconds: float) -> dict[str, Any]:
        """Runs a job to its end, and tells the watcher how far it is; see `runners.run_pipeline`."""
        ended = threading.Event()
        if self.watcher is not None:
            threading.Thread(target=self._tick, args=(self.watcher, ended), name="progress", daemon=True).start()
        try:
            return self.run_job(define, seconds)
        finally:
            ended.set()

    def run_job(self, define: Define, seconds: float) -> dict[str, Any]:
        """Makes a pipeline, has `complete` run it, and words its errors."""
        raise NotImplementedError

    def complete(self, pipeline: Any, define: Define) -> dict[str, Any]:
        """Builds the pipeline, runs it and waits for its end; what it measured of itself."""
        from rlds_beam.runners.metrics import read_metrics

        self.result = self.submit(pipeline, define)
        self.wait()
        return read_metrics(self.result)

    def submit(self, pipeline: Any, define: Define) -> Any:
        """Builds the pipeline and starts it; Beam's `PipelineResult`."""
        from rlds_beam.runners.notebooks import build

        build(pipeline, define)
        return pipeline.run()

    def place(self) -> str | None:
        """Where to look at a job that was handed over; None as long as that is not known, and on this machine."""
        return None

    def wait(self) -> None:
        """Returns when the job has ended well.

        Raises:
          Exception: it failed, in Beam's words or in ours.
        """
        self.result.wait_until_finish()

    def done(self) -> Done | None:
        """How far the job is; None where the runner does not know.

        Beam's portable runners give metrics of finished work only, and keep the first that they are asked for.
        """
        return None

    def _tick(self, watcher: Watcher, ended: threading.Event) -> None:
        told, looked = False, time.monotonic()
        while not ended.wait(_LOOK_SECONDS):
            with contextlib.suppress(Exception):  # a cluster that does not answer at the moment
                place = None if told else self.place()
                if place is not None:
                    told = True
                    watcher.started(place)
                if time.monotonic() - looked >= self.tick_seconds:
                    looked = time.monotonic()
                    done = self.done()
                    if not ended.is_set():
                        watcher.tick(done)
