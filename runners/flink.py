"""A Flink cluster: Beam's Flink runner, with checks before it is started."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import apache_beam as beam
import grpc
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.flink_runner import FlinkJarJobServer, FlinkRunner

from rlds_beam.errors import RldsBeamError
from rlds_beam.runners.flink_errors import plain
from rlds_beam.runners.flink_preflight import Master, preflight
from rlds_beam.runners.metrics import read_metrics
from rlds_beam.runners.notebooks import build
from rlds_beam.runners.options import RunOptions


def run(define: Callable[[Any], Any], options: RunOptions) -> dict[str, Any]:
    """Runs the job on `options.flink_master` and waits for its end.

    Ending this process ends the job on the cluster too, except by SIGKILL.

    Raises:
      UsageError: Java, the job server, the cluster or the workers cannot be used as they are; nothing was done.
      RldsBeamError: the job failed, after as many restarts as the cluster allows; the message is the cause.
    """
    found = preflight(options)
    name = f"rlds-beam-{uuid.uuid4().hex[:12]}"
    flags = [f"--job_name={name}", *found.flags, *options.beam_options]
    runner = _Runner()
    try:
        pipeline = beam.Pipeline(runner=runner, options=PipelineOptions(flags))
        build(pipeline, define)
        result = pipeline.run()
        result.wait_until_finish()
        return read_metrics(result)
    except RldsBeamError:
        raise
    except Exception as error:
        raise plain(error, options, found.master) from error
    finally:
        _cancel(found.master, name)
        runner.stop()


class _Runner(FlinkRunner):  # type: ignore[misc, unused-ignore]
    """Beam's, but we end its job server: Beam's own way installs a signal handler and waits for the exit."""

    _job_server: Any = None

    def default_job_server(self, options: Any) -> Any:
        self._job_server = FlinkJarJobServer(options)
        return self._job_server

    def run_portable_pipeline(self, pipeline: Any, options: Any) -> Any:
        result = super().run_portable_pipeline(pipeline, options)
        result._message_stream = _until_lost(result._message_stream)
        return result

    def stop(self) -> None:
        if self._job_server is not None:
            self._job_server.stop()


def _until_lost(messages: Any) -> Iterator[Any]:
    """The messages of a job server until it ends: a thread of Beam's reads them, and would print a stack then."""
    with contextlib.suppress(grpc.RpcError):
        yield from messages


def _cancel(master: Master, name: str) -> None:
    """Ends a job that is still running, straight at the cluster: Ctrl-C at a terminal has ended the job server."""
    with contextlib.suppress(OSError):
        for job in master.get("/jobs/overview")["jobs"]:
            if job["name"] == name and job["state"] not in ("FINISHED", "FAILED", "CANCELED"):
                master.cancel(job["jid"])
