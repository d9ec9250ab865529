"""Runs jobs on a Flink cluster: Beam's Flink runner, with checks before the start."""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import grpc
from apache_beam.options.pipeline_options import JobServerOptions, PipelineOptions
from apache_beam.runners.portability import flink_runner

from rlds_beam.errors import RldsBeamError
from rlds_beam.runners import flink_preflight, local
from rlds_beam.runners.base import Define, Runner, RunOptions
from rlds_beam.runners.flink_preflight import POOL, Master

_STARTS = 3
"""Attempts to start the job server before the job fails."""


class FlinkRunner(Runner):
    """Runs a job on `options.flink_master`.

    Ending this process also ends the job on the cluster, except by SIGKILL.
    """

    tick_seconds = 5.0
    _job: str | None = None

    def check(self) -> None:
        flink_preflight.check(self.options)

    def place(self) -> str | None:
        job = self._find()
        return None if job is None else f"Flink job {job}, {self._submission.master.url}/#/job/{job}/overview"

    def run_job(self, define: Define, seconds: float) -> dict[str, Any]:
        """Runs the job.

        Raises:
          UsageError: Java, the job server, the cluster, or the workers cannot be used; nothing was done.
          RldsBeamError: the job failed after all restarts that the cluster allows; the message is the cause.
        """
        self._name = f"rlds-beam-{uuid.uuid4().hex[:12]}"
        self._submission = flink_preflight.preflight(self.options)
        flags = [f"--job_name={self._name}", *self._submission.flags, *self.options.beam_options]
        runner = _Runner()
        try:
            return self.complete(beam.Pipeline(runner=runner, options=PipelineOptions(flags)), define)
        except RldsBeamError:
            raise
        except Exception as error:
            raise plain(error, self.options, self._submission.master) from error
        finally:
            self._cancel()
            runner.stop()

    def _find(self) -> str | None:
        """Flink's ID of the job, once the cluster has it."""
        if self._job is None and self.result is not None:
            jobs = self._submission.master.get("/jobs/overview")["jobs"]
            self._job = next((job["jid"] for job in jobs if job["name"] == self._name), None)
        return self._job

    def _cancel(self) -> None:
        """Cancels a running job at the cluster itself, because Ctrl-C in a terminal also ends the job server."""
        with contextlib.suppress(OSError):
            for job in self._submission.master.get("/jobs/overview")["jobs"]:
                if job["name"] == self._name and job["state"] not in ("FINISHED", "FAILED", "CANCELED"):
                    self._submission.master.cancel(job["jid"])


class _Runner(flink_runner.FlinkRunner):  # type: ignore[misc, unused-ignore]
    """Beam's runner, except that we end its job server: Beam installs a signal handler and waits for the exit."""

    _job_server: Any = None

    def default_job_server(self, options: Any) -> Any:
        # Not needed, and any client that reaches its port could load any Java class.
        options.view_as(JobServerOptions).expansion_port = -1
        self._job_server = _JobServer(options)
        return self._job_server

    def run_portable_pipeline(self, pipeline: Any, options: Any) -> Any:
        result = super().run_portable_pipeline(pipeline, options)
        result._message_stream = _until_lost(result._message_stream)
        return result

    def stop(self) -> None:
        if self._job_server is not None:
            self._job_server.stop()


class _JobServer:
    """Beam's job server. Its port was free a moment ago; if it fails to start, another port is tried."""

    def __init__(self, options: Any):
        self._options = options
        self._server: Any = None

    def start(self) -> Any:
        attempt = 1
        while True:
            self._server = flink_runner.FlinkJarJobServer(self._options)
            try:
                return self._server.start()
            except RuntimeError as error:  # its process has ended
                self.stop()
                if attempt == _STARTS:
                    raise RldsBeamError(f"Beam's job server does not start ({error}); -v shows its output") from error
                attempt += 1

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None


def _until_lost(messages: Any) -> Iterator[Any]:
    """The job server's messages until it ends; without this, Beam's reading thread would print a stack trace then."""
    with contextlib.suppress(grpc.RpcError):
        yield from messages


_STATE = re.compile(r"^Pipeline \S+ failed in state \w+: (java\.\S+Exception: )?")
"""Beam's words before the cause."""
_FRAME = re.compile(r"\s+(at \S+\(|\.\.\. \d+ more)|]$")
"""A line of a Java stack trace, or around one."""


def plain(error: Exception, options: RunOptions, master: Master) -> RldsBeamError:
    """The cause and the remedy in one line, without the Java stack trace.

    Args:
      error: Beam's error.
      options: the job's options.
      master: the cluster's master, which is asked whether it is still running.
    """
    text = str(error)
    try:
        master.get("/overview")
    except OSError as unreachable:
        return RldsBeamError(
            f"the JobManager at {options.flink_master} no longer answers ({unreachable}); finished work is kept: once "
            "it is up, run the same command to resume"
        )
    if "FlinkJobNotFoundException" in text:
        return RldsBeamError(
            f"the JobManager at {options.flink_master} was restarted and lost the job (Flink's high availability would "
            "keep it); finished work is kept: run the same command to resume"
        )
    if "Traceback" in text:  # a worker's traceback, which ends with the cause
        return local.plain(RuntimeError(_STATE.sub("", text)))
    if "StatusRuntimeException: UNAVAILABLE" in text:
        return RldsBeamError(
            f"a TaskManager found no SDK workers at {options.environment_config or POOL}: start a worker pool next to "
            "each TaskManager (python -m rlds_beam.runners.worker_pool) and keep it running"
        )
    return local.plain(RuntimeError(_cause(_STATE.sub("", text))))


def _cause(text: str) -> str:
    """A Java error message without its stack trace: the innermost cause, if there are several."""
    lines = [line for line in text.splitlines() if not _FRAME.match(line)]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return causes[-1] if causes else "\n".join(lines)
