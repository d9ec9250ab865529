"""Checks before a job is submitted to Flink: Java, the job server, the cluster, and the workers."""

from __future__ import annotations

import dataclasses
import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
import zipfile
from typing import Any

import apache_beam
from apache_beam.options.pipeline_options import FlinkRunnerOptions, JobServerOptions, PipelineOptions
from apache_beam.utils.subprocess_server import JavaJarServer

from rlds_beam.errors import UsageError
from rlds_beam.output.scratch import ScratchDirectory
from rlds_beam.runners.base import RunOptions

_SECONDS = 15.0
"""Seconds that a server may take to answer."""

_MAVEN_SECONDS = 1800.0
"""Seconds that Maven may take for a jar of 200 MB on a slow connection."""

_MIN_JAVA = 11

_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"


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


@dataclasses.dataclass(frozen=True)
class Submission:
    """The settings for submitting a job to a cluster.

    Attributes:
      master: the cluster's master.
      version: the Flink version (`1.19`).
      flags: the flags for Beam.
    """

    master: Master
    version: str
    flags: tuple[str, ...]


def preflight(options: RunOptions) -> Submission:
    """Checks everything that can be known before the job is built, and downloads the job server if missing.

    Raises:
      UsageError: something is missing or incompatible; the message says what to do.
    """
    submission = check(options)
    job_server = PipelineOptions(list(options.beam_options)).view_as(JobServerOptions)
    jar = options.flink_job_server_jar
    if not jar:
        jar = _job_server(submission.version, job_server.jar_cache_dir or JavaJarServer.JAR_CACHE)
        _check_jar(jar)
    return dataclasses.replace(submission, flags=(*submission.flags, f"--flink_job_server_jar={jar}"))


def check(options: RunOptions) -> Submission:
    """Checks the same without downloading anything; the flags do not name a job server.

    Raises:
      UsageError: as in `preflight`.
    """
    if options.workers is not None:
        raise UsageError(
            "--workers needs --runner=local; use --parallelism on Flink, which counts slots of all TaskManagers"
        )
    beam_options = PipelineOptions(list(options.beam_options))
    java = find_java(beam_options.view_as(JobServerOptions).job_server_java_launcher)
    master, version, slots = _master(options.flink_master)
    parallelism = options.parallelism or slots
    if parallelism > slots:
        raise UsageError(
            f"--parallelism={parallelism}: {master.url} has only {slots} task slots; start TaskManagers, or lower it"
        )
    workers = _workers(options, master)
    if options.flink_job_server_jar:
        _check_jar(options.flink_job_server_jar)
    return Submission(
        master,
        version,
        (
            f"--flink_master={master.url}",
            f"--flink_version={version}",
            f"--job_server_java_launcher={java}",
            f"--parallelism={parallelism}",
            *workers,
        ),
    )


def find_java(launcher: str) -> str:
    """Finds the `java` for the job server. Raises UsageError if no Java is on the PATH, or it is too old."""
    path = shutil.which(launcher)
    if path is None:
        raise UsageError(
            f"no {launcher} on the PATH, which Beam's job server for Flink needs: install Java {_MIN_JAVA} or later "
            "(Debian: apt install openjdk-17-jre-headless), or name one with -- --job_server_java_launcher=PATH"
        )
    said = subprocess.run([path, "-version"], capture_output=True, text=True, check=False).stderr
    match = re.search(r'version "(?:1\.)?(\d+)', said)
    if match is None:
        raise UsageError(f"{path} is not a working Java; `{path} -version` says: {' '.join(said.split()) or 'nothing'}")
    if int(match[1]) < _MIN_JAVA:
        raise UsageError(f"{path} is Java {match[1]}; Beam's job server for Flink needs {_MIN_JAVA} or later")
    return path


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
        raise UsageError(
            f"{master.url} is Flink {version}; Beam {apache_beam.__version__} runs on Flink {', '.join(known)}"
        )
    if slots < 1:
        raise UsageError(f"{master.url} has no task slots: no TaskManager has registered; start one, or wait for it")
    return master, minor, slots


def _workers(options: RunOptions, master: Master) -> list[str]:
    """The flags for where Python runs; a pool on this machine's loopback must accept a connection."""
    kind, config = options.environment_type or "EXTERNAL", options.environment_config
    if kind != "EXTERNAL" and config is None:
        raise UsageError(
            f"--environment_type={kind} needs --environment_config: "
            + {"DOCKER": "an image that contains rlds-beam (examples/dataflow)"}.get(kind, "see Beam's manual")
        )
    config = config or POOL
    host, _, port = config.rpartition(":")
    if kind == "EXTERNAL" and not (host and port.isdecimal()):
        raise UsageError(f"--environment_config={config}: expected HOST:PORT of the worker pool next to a TaskManager")
    if kind == "EXTERNAL" and _is_loopback(host) and _is_loopback(urllib.parse.urlsplit(master.url).hostname or ""):
        try:
            socket.create_connection((host, int(port)), _SECONDS).close()
        except OSError as error:
            raise UsageError(
                f"no worker pool answers at {config} ({error}), where the TaskManagers will look for one; start one "
                f"next to each TaskManager: python -m rlds_beam.runners.worker_pool --port={port} (or name another "
                "address with --environment_config=HOST:PORT)"
            ) from error
    return [f"--environment_type={kind}", f"--environment_config={config}"]


POOL = "localhost:50000"
"""Where a TaskManager looks for its worker pool by default."""


def _is_loopback(host: str) -> bool:
    return host == "localhost" or host.startswith("127.")


def _check_jar(path: str) -> None:
    if re.match(r"\w+://", path):
        return  # Beam downloads it.
    if not os.path.exists(path):
        raise UsageError(f"--flink_job_server_jar={path}: there is no such file")
    try:
        with zipfile.ZipFile(path) as jar:
            runs = b"Main-Class" in jar.read("META-INF/MANIFEST.MF")
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise UsageError(f"{path} is not a readable jar ({error}); remove it and run again") from error
    if not runs:
        raise UsageError(f"{path} has no main class: a job server's jar is named beam-runners-flink-…-job-server-….jar")


def _job_server(version: str, cache: str) -> str:
    """The job server's jar for this Beam: from the cache, by Beam's own download, or by the local Maven client."""
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
            f"the job server of Beam {beam} for Flink {version} could not be downloaded, neither by Beam nor by Maven "
            f"({said}); download org.apache.beam:{artifact}:{beam} elsewhere, and name it with "
            "--flink_job_server_jar=PATH"
        )
    return path


def _by_maven(artifact: str, path: str) -> str | None:
    """Downloads a jar to `path` with the user's Maven client; returns the error, or None."""
    maven = shutil.which("mvn")
    if maven is None:
        return "no mvn on the PATH"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with ScratchDirectory(os.path.dirname(path)) as scratch:
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
