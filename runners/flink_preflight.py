"""The checks before a job is submitted to Flink: Java, a job server, a cluster that answers, workers."""

from __future__ import annotations

import dataclasses
import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import urllib.parse
import urllib.request
import zipfile
from typing import Any

import apache_beam
from apache_beam.options.pipeline_options import FlinkRunnerOptions, JobServerOptions, PipelineOptions
from apache_beam.utils.subprocess_server import JavaJarServer

from rlds_beam.errors import UsageError
from rlds_beam.runners.options import RunOptions

_SECONDS = 15.0
"""Seconds that a server may take to answer."""

_MAVEN_SECONDS = 1800.0
"""Seconds that Maven may take for a jar of 200 MB, over a slow line."""

_LEAST_JAVA = 11

_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"


@dataclasses.dataclass(frozen=True)
class Master:
    """The REST interface of a JobManager.

    Attributes:
      url: such as `http://flink:8081`.
    """

    url: str

    def get(self, path: str) -> Any:
        """What it answers, from JSON; OSError where it does not."""
        return self._ask(urllib.request.Request(self.url + path))

    def cancel(self, job: str) -> None:
        """Cancels a job by Flink's id of it."""
        self._ask(urllib.request.Request(f"{self.url}/jobs/{job}?mode=cancel", method="PATCH"))

    def _ask(self, request: urllib.request.Request) -> Any:
        try:
            with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
                return json.load(answer)
        except (ValueError, http.client.HTTPException) as error:
            raise OSError(f"what answers there is not Flink's REST interface ({type(error).__name__})") from error


@dataclasses.dataclass(frozen=True)
class Submission:
    """How to submit a job to a cluster.

    Attributes:
      master: of the cluster.
      version: of Flink (`1.19`).
      flags: for Beam.
    """

    master: Master
    version: str
    flags: tuple[str, ...]


def preflight(options: RunOptions) -> Submission:
    """Looks at everything that can be known before the job is built, and fetches the job server where it is not there.

    Raises:
      UsageError: something is missing, or does not fit; the message says what to do.
    """
    submission = check(options)
    job_server = PipelineOptions(list(options.beam_options)).view_as(JobServerOptions)
    jar = options.flink_job_server_jar
    if not jar:
        jar = _job_server(submission.version, job_server.jar_cache_dir or JavaJarServer.JAR_CACHE)
        _check_jar(jar)
    return dataclasses.replace(submission, flags=(*submission.flags, f"--flink_job_server_jar={jar}"))


def check(options: RunOptions) -> Submission:
    """Looks at the same, and fetches nothing: the flags name no job server.

    Raises:
      UsageError: as above.
    """
    if options.workers is not None:
        raise UsageError("--workers is for --runner=local; on Flink it is --parallelism, over all of its TaskManagers")
    beam_options = PipelineOptions(list(options.beam_options))
    java = find_java(beam_options.view_as(JobServerOptions).job_server_java_launcher)
    master, version, slots = _master(options.flink_master)
    parallelism = options.parallelism or slots
    if parallelism > slots:
        raise UsageError(
            f"--parallelism={parallelism}: {master.url} has {slots} task slots; start TaskManagers, or ask for less"
        )
    workers = _workers(options, master)
    if options.flink_job_server_jar:
        _check_jar(options.flink_job_server_jar)
    return Submission(
        master, version,
        (
            f"--flink_master={master.url}", f"--flink_version={version}", f"--job_server_java_launcher={java}",
            f"--parallelism={parallelism}", *workers,
        ),
    )  # fmt: skip


def find_java(launcher: str) -> str:
    """The `java` to start the job server with.

    Raises:
      UsageError: there is none on the PATH, or it is too old.
    """
    path = shutil.which(launcher)
    if path is None:
        raise UsageError(
            f"there is no {launcher} on the PATH, which Beam's job server for Flink needs: install a Java runtime of "
            f"version {_LEAST_JAVA} or later (Debian: apt install openjdk-17-jre-headless), or name one after --: "
            "--job_server_java_launcher=PATH"
        )
    said = subprocess.run([path, "-version"], capture_output=True, text=True, check=False).stderr
    match = re.search(r'version "(?:1\.)?(\d+)', said)
    if match is None:
        raise UsageError(f"{path} is not a working Java; `{path} -version` says: {' '.join(said.split()) or 'nothing'}")
    if int(match[1]) < _LEAST_JAVA:
        raise UsageError(f"{path} is Java {match[1]}; Beam's job server for Flink needs {_LEAST_JAVA} or later")
    return path


def _master(address: str | None) -> tuple[Master, str, int]:
    """The cluster, its version (`1.19`) as Beam names it, and its task slots."""
    if not address:
        raise UsageError(
            "--runner=flink needs --flink_master=HOST:PORT, the REST address of the JobManager (rest.port, "
            "by default 8081)"
        )
    url = address if re.match("https?://", address) else f"http://{address}"
    master = Master(url.rstrip("/"))
    try:
        overview = master.get("/overview")
        version, slots = str(overview["flink-version"]), int(overview["slots-total"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = getattr(error, "reason", error)
        raise UsageError(
            f"--flink_master={address}: no JobManager of Flink answers at {master.url}/overview ({reason}); is the "
            "cluster up, and is this the port of its REST interface (by default 8081)?"
        ) from error
    known = FlinkRunnerOptions.PUBLISHED_FLINK_VERSIONS
    minor = ".".join(version.split(".")[:2])
    if minor not in known:
        raise UsageError(
            f"{master.url} is Flink {version}; Beam {apache_beam.__version__} runs on Flink {', '.join(known)}"
        )
    if slots < 1:
        raise UsageError(f"{master.url} has no task slots: no TaskManager has registered; start one, or wait for it")
    return master, minor, slots


def _workers(options: RunOptions, master: Master) -> list[str]:
    """Where Python runs; a pool on this machine's loopback must accept a connection."""
    kind, config = options.environment_type or "EXTERNAL", options.environment_config
    if kind != "EXTERNAL" and config is None:
        raise UsageError(
            f"--environment_type={kind} needs --environment_config: "
            + {"DOCKER": "an image with rlds-beam in it (examples/flink/Dockerfile)"}.get(kind, "see Beam's manual")
        )
    config = config or POOL
    host, _, port = config.rpartition(":")
    if kind == "EXTERNAL" and not (host and port.isdecimal()):
        raise UsageError(f"--environment_config={config}: expected HOST:PORT of the worker pool beside a TaskManager")
    if kind == "EXTERNAL" and _is_loopback(host) and _is_loopback(urllib.parse.urlsplit(master.url).hostname or ""):
        try:
            socket.create_connection((host, int(port)), _SECONDS).close()
        except OSError as error:
            raise UsageError(
                f"no worker pool answers at {config} ({error}), where the TaskManagers will look for one; start it "
                f"beside each of them: python -m rlds_beam.runners.worker_pool --port={port} (or name another place: "
                "--environment_config=HOST:PORT)"
            ) from error
    return [f"--environment_type={kind}", f"--environment_config={config}"]


POOL = "localhost:50000"
"""Where a TaskManager looks for its worker pool by default."""


def _is_loopback(host: str) -> bool:
    return host == "localhost" or host.startswith("127.")


def _check_jar(path: str) -> None:
    if re.match(r"\w+://", path):
        return  # Beam fetches it.
    if not os.path.exists(path):
        raise UsageError(f"--flink_job_server_jar={path}: there is no such file")
    try:
        with zipfile.ZipFile(path) as jar:
            runs = b"Main-Class" in jar.read("META-INF/MANIFEST.MF")
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise UsageError(f"{path} is not a readable jar ({error}); remove it, and run again") from error
    if not runs:
        raise UsageError(
            f"{path} has no main class: it is not a job server, whose name is beam-runners-flink-…-job-server-….jar"
        )


def _job_server(version: str, cache: str) -> str:
    """The jar of the job server of this Beam: cached, or by Beam's own download, or by this machine's Maven client."""
    beam, artifact = apache_beam.__version__, f"beam-runners-flink-{version}-job-server"
    path = os.path.join(cache, f"{artifact}-{beam}.jar")
    if os.path.exists(path):
        return path
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_SECONDS)  # Beam sets none, and would wait forever where a firewall drops packets.
    try:
        return str(
            JavaJarServer.local_jar(
                JavaJarServer.path_to_maven_jar(
                    artifact, "org.apache.beam", beam, JavaJarServer.MAVEN_CENTRAL_REPOSITORY
                ),
                cache,
            )
        )
    except (RuntimeError, OSError):
        said = _by_maven(f"org.apache.beam:{artifact}:{beam}", path)
    finally:
        socket.setdefaulttimeout(before)
    if said is not None:
        raise UsageError(
            f"the job server of Beam {beam} for Flink {version} could not be fetched, neither by Beam itself nor by "
            f"Maven ({said}); fetch org.apache.beam:{artifact}:{beam} where that can be reached, and name it: "
            "--flink_job_server_jar=PATH"
        )
    return path


def _by_maven(artifact: str, path: str) -> str | None:
    """Fetches a jar to `path` by the Maven client, as its user has set it up; returns what went wrong, if anything."""
    maven = shutil.which("mvn")
    if maven is None:
        return "there is no mvn on the PATH"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with tempfile.TemporaryDirectory(dir=os.path.dirname(path)) as scratch:
        command = [maven, "-q", "-B", _COPY, f"-Dartifact={artifact}", f"-DoutputDirectory={scratch}"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, cwd=scratch, timeout=_MAVEN_SECONDS
            )
        except subprocess.TimeoutExpired:
            return f"it took more than {_MAVEN_SECONDS:g} s"
        jar = os.path.join(scratch, os.path.basename(path))
        if done.returncode == 0 and os.path.exists(jar):
            os.replace(jar, path)
            return None
    errors = [line for line in done.stdout.splitlines() if line.startswith("[ERROR]")]
    return errors[0].removeprefix("[ERROR] ").split(" -> [Help")[0] if errors else f"it exited with {done.returncode}"
