"""Any runner that Beam knows by name, with Beam's own flags."""

from __future__ import annotations

from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners import create_runner

from rlds_beam.errors import RldsBeamError, UsageError
from rlds_beam.runners.base import Define, Runner


class RemoteRunner(Runner):
    """Runs a job on `options.runner`."""

    tick_seconds = 10.0

    def check(self) -> None:
        if self.options.workers is not None:
            raise UsageError(f"--workers is for --runner=local; {self.options.runner} has flags of its own, after --")
        try:
            create_runner(self.options.runner)
        except (ImportError, ValueError) as error:
            raise UsageError(f"--runner={self.options.runner}: " + " ".join(str(error).split())) from error

    def run_job(self, define: Define, seconds: float) -> dict[str, Any]:
        """Runs the job.

        Raises:
          UsageError: Beam knows no such runner, or its flags are not right for it.
          RldsBeamError: the job failed.
        """
        self.check()
        flags = [f"--runner={self.options.runner}", *self.options.beam_options]
        try:
            pipeline = beam.Pipeline(options=PipelineOptions(flags))
        except ValueError as error:  # of a flag that the runner does not take
            raise UsageError(f"--runner={self.options.runner}: " + " ".join(str(error).split())) from error
        return self.complete(pipeline, define)

    def wait(self) -> None:
        state = self.result.wait_until_finish()
        if state not in (None, "DONE"):
            raise RldsBeamError(f"{self.options.runner} ended the job in state {state}; its log says why")
