"""Runs jobs on a Flink cluster: Beam's Flink runner, with checks before the start."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import os
import re
import shutil
import urllib.request
import uuid
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import grpc
from apache_beam.options.pipeline_options import FlinkRunnerOptions, JobServerOptions, PipelineOptions
from apache_beam.runners.portability import flink_runner
from apache_beam.utils.subprocess_server import JavaJarServer

from rlds_beam.errors import RldsBeamError, UsageError
from rlds_beam.runners import errors
from rlds_beam.runners.base import RunOptions
from rlds_beam.runners.beam import BeamRunner

POOL = "localhost:50000"
"""Where a TaskManager looks for its worker pool by default."""

_SECONDS = 15.0
"""Seconds that the JobManager may take to answer."""


@dataclasses.dataclass(frozen=True)
class Master:
    """The REST interface of a JobManager.

    Attributes:
      url: the URL, for example `http://flink:8081`.
    """

    url: str

    def get(self, path: str) -> Any:
        """The parsed JSON of an answer; raises OSError if there is no valid answer."""
        return self._ask(urllib.request.Request(self.url + path))

    def cancel(self, job: str) -> None:
        """Cancels a job by Flink's ID."""
        self._ask(urllib.request.Request(f"{self.url}/jobs/{job}?mode=cancel", method="PATCH"))

    def _ask(self, request: urllib.request.Request) -> Any:
        try:
            with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
                return json.load(answer)
        except (ValueError, http.client.HTTPException) as error:
            raise OSError(f"the server there is not Flink's REST interface ({type(error).__name__})") from error


def check(options: RunOptions) -> tuple[Master, str, list[str]]:
    """Checks Java, the job server's jar, and the cluster; returns its master, its version, and Beam's flags for it.

    Raises:
      UsageError: one of them cannot be used.
    """
    launcher = PipelineOptions(list(options.beam_options)).view_as(JobServerOptions).job_server_java_launcher
    if shutil.which(launcher) is None:
        raise UsageError(
            f"no {launcher} on the PATH, which Beam's job server for Flink needs: install Java 11 or later (Debian: "
            "apt install openjdk-17-jre-headless), or name one with -- --job_server_java_launcher=PATH"
        )
    jar = options.flink_job_server_jar
    if jar and "://" not in jar and not os.path.exists(jar):
        raise UsageError(f"--flink_job_server_jar={jar}: there is no such file")
    master, version, slots = _master(options.flink_master)
    kind, config = options.environment_type or "EXTERNAL", options.environment_config
    if kind != "EXTERNAL" and config is None:
        raise UsageError(f"--environment_type={kind} needs --environment_config (docs/how_to/cluster.md#flink)")
    return (
        master,
        version,
        [
            f"--flink_master={master.url}",
            f"--flink_version={version}",
            f"--parallelism={options.parallelism or slots}",
            f"--environment_type={kind}",
            f"--environment_config={config or POOL}",
        ],
    )


def _master(address: str | None) -> tuple[Master, str, int]:
    """The cluster, its version (`1.19`) as Beam names it, and its task slots."""
    if not address:
        raise UsageError(
            "--runner=flink needs --flink_master=HOST:PORT, the JobManager's REST address (rest.port, 8081 by default)"
        )
    url = address if re.match("https?://", address) else f"http://{address}"
    master = Master(url.rstrip("/"))
    try:
        overview = master.get("/overview")
        version, slots = str(overview["flink-version"]), int(overview["slots-total"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = getattr(error, "reason", error)
        raise UsageError(
            f"--flink_master={address}: no Flink JobManager answers at {master.url}/overview ({reason}); check that "
            "the cluster is up and that this is its REST port (8081 by default)"
        ) from error
    known = FlinkRunnerOptions.PUBLISHED_FLINK_VERSIONS
    minor = ".".join(version.split(".")[:2])
    if minor not in known:
        raise UsageError(f"{master.url} is Flink {version}; Beam {beam.__version__} runs on Flink {', '.join(known)}")
    if slots < 1:
        raise UsageError(f"{master.url} has no task slots: no TaskManager has registered; start one, or wait for it")
    return master, minor, slots


def _job_server_jar(version: str, options: RunOptions) -> str:
    """The jar of Beam's job server: the user's, or that of this Beam, which Beam downloads once."""
    if options.flink_job_server_jar:
        return options.flink_job_server_jar
    name = f"beam-runners-flink-{version}-job-server"
    repository = JavaJarServer.MAVEN_CENTRAL_REPOSITORY
    url = JavaJarServer.path_to_maven_jar(name, "org.apache.beam", beam.__version__, repository)
    try:
        given = PipelineOptions(list(options.beam_options)).view_as(JobServerOptions)
        return str(JavaJarServer.local_jar(url, given.jar_cache_dir or JavaJarServer.JAR_CACHE))
    except (RuntimeError, OSError) as error:
        raise UsageError(
            f"Beam's job server cannot be downloaded ({' '.join(str(error).split())}): download {url} elsewhere, and "
            "name the file with --flink_job_server_jar=PATH"
        ) from error


class FlinkRunner(BeamRunner):
    """Runs a job on `options.flink_master`.

    Ending this process also ends the job on the cluster, except by SIGKILL.
    """

    tick_seconds = 5.0
    _job: str | None = None
    _flink: _Runner | None = None

    def check(self) -> None:
        check(self.options)

    def place(self) -> str | None:
        job = self._find()
        return None if job is None else f"Flink job {job}, {self._master.url}/#/job/{job}/overview"

    def create_pipeline(self) -> Any:
        """Raises UsageError if Java, the job server, the cluster, or the workers cannot be used; nothing was done."""
        self._name = f"rlds-beam-{uuid.uuid4().hex[:12]}"
        self._master, version, flags = check(self.options)
        flags += [f"--flink_job_server_jar={_job_server_jar(version, self.options)}", f"--job_name={self._name}"]
        flags += self.options.beam_options
        self._flink = _Runner()
        return beam.Pipeline(runner=self._flink, options=PipelineOptions(flags))

    def plain(self, error: Exception) -> RldsBeamError:
        return plain(error, self.options, self._master)

    def clean_up(self) -> None:
        if self._flink is None:
            return
        # A running job is canceled at the cluster itself, because Ctrl-C in a terminal also ends the job server.
        with contextlib.suppress(OSError):
            for job in self._master.get("/jobs/overview")["jobs"]:
                if job["name"] == self._name and job["state"] not in ("FINISHED", "FAILED", "CANCELED"):
                    self._master.cancel(job["jid"])
        self._flink.stop()

    def _find(self) -> str | None:
        """Flink's ID of the job, once the cluster has it."""
        if self._job is None and self.result is not None:
            jobs = self._master.get("/jobs/overview")["jobs"]
            self._job = next((job["jid"] for job in jobs if job["name"] == self._name), None)
        return self._job


class _Runner(flink_runner.FlinkRunner):  # type: ignore[misc, unused-ignore]
    """Beam's runner, except that we end its job server: Beam installs a signal handler and waits for the exit."""

    _job_server: Any = None

    def default_job_server(self, options: Any) -> Any:
        # Not needed, and any client that reaches its port could load any Java class.
        options.view_as(JobServerOptions).expansion_port = -1
        self._job_server = flink_runner.FlinkJarJobServer(options)
        return self._job_server

    def run_portable_pipeline(self, pipeline: Any, options: Any) -> Any:
        result = super().run_portable_pipeline(pipeline, options)
        result._message_stream = _until_lost(result._message_stream)
        return result

    def stop(self) -> None:
        if self._job_server is not None and self._job_server._server is not None:  # it was started
            self._job_server.stop()


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
        return errors.plain(RuntimeError(_STATE.sub("", text)))
    if "StatusRuntimeException: UNAVAILABLE" in text:
        return RldsBeamError(
            f"a TaskManager found no SDK workers at {options.environment_config or POOL}: start a worker pool next to "
            "each TaskManager (python -m rlds_beam.runners.worker_pool) and keep it running"
        )
    lines = [line for line in _STATE.sub("", text).splitlines() if not _FRAME.match(line)]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return errors.plain(RuntimeError(causes[-1] if causes else "\n".join(lines)))
