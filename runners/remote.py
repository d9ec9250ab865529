"""Runs jobs on any other Beam runner, with Beam's own flags."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners import create_runner

from rlds_beam.errors import RldsBeamError, UsageError
from rlds_beam.runners.base import Define, Runner
from rlds_beam.runners.local import plain
from rlds_beam.text import did_you_mean

if TYPE_CHECKING:
    pass

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

    def run_job(self, define: Define, input_bytes: int) -> dict[str, Any]:
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
