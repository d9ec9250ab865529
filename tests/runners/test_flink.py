"""The checks before a job is submitted to a Flink cluster, and the message of one that failed. No cluster is needed."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam
import pytest
from servers import free_port

from rlds_beam.errors import FailedRuleError, UsageError
from rlds_beam.runners.base import RunOptions
from rlds_beam.runners.flink import Master, check, plain

OPTIONS = RunOptions(runner="flink", flink_master="flink:8081")
FAILED = "Pipeline rlds-beam-1_2 failed in state FAILED: "
LOST = """org.apache.flink.runtime.rest.util.RestClientException: [org.apache.flink.runtime.rest.handler.\
RestHandlerException: org.apache.flink.runtime.messages.FlinkJobNotFoundException: Could not find Flink job (6b92)
\tat org.apache.flink.runtime.rest.handler.job.JobExecutionResultHandler.propagateException(X.java:94)
Caused by: org.apache.flink.runtime.messages.FlinkJobNotFoundException: Could not find Flink job (6b92)
\tat org.apache.flink.runtime.dispatcher.Dispatcher.lambda$requestJobStatus$20(Dispatcher.java:896)
\t... 5 more
]"""
NO_SLOTS = """java.util.concurrent.CompletionException: something was not there
\tat java.base/java.util.concurrent.CompletableFuture.encodeThrowable(CompletableFuture.java:332)
Caused by: org.apache.flink.runtime.NoResourceAvailableException: Could not acquire the minimum required resources.
\tat org.apache.flink.runtime.scheduler.X.lambda$0(X.java:1)
\t... 44 more
"""
WORKER = """java.lang.RuntimeException: Error received from SDK harness: Traceback (most recent call last):
  File "checking.py", line 1, in process
rlds_beam.errors.FailedRuleError: missing_is_last: toy/1.0.0:train:00000@12
\tat org.apache.beam.X.y(X.java:1)
Caused by: java.util.concurrent.ExecutionException: it went wrong
"""


class _Up(Master):
    def get(self, path: str) -> Any:
        return {}


class _Down(Master):
    def get(self, path: str) -> Any:
        raise ConnectionRefusedError(111, "Connection refused")


def message(text: str, master: Master | None = None) -> str:
    return str(plain(RuntimeError(FAILED + text), OPTIONS, master or _Up("")))


def test_a_job_manager_that_is_gone() -> None:
    found = message("Connection refused", _Down(""))
    assert found.startswith("the JobManager at flink:8081 no longer answers ([Errno 111] Connection refused);")


def test_a_job_manager_that_lost_the_job() -> None:
    assert "lost the job" in message(LOST)


def test_no_workers() -> None:
    assert "found no SDK workers at localhost:50000" in message("StatusRuntimeException: UNAVAILABLE: io exception")


def test_the_innermost_cause() -> None:
    assert message(NO_SLOTS).endswith("NoResourceAvailableException: Could not acquire the minimum required resources.")


def test_a_workers_error_is_raised_as_our_type() -> None:
    error = plain(RuntimeError(FAILED + WORKER), OPTIONS, _Up(""))
    assert isinstance(error, FailedRuleError)
    assert str(error) == "missing_is_last: toy/1.0.0:train:00000@12"


class Rest(http.server.BaseHTTPRequestHandler):
    """A server that answers `/overview` like a JobManager's REST interface, or with other content."""

    answer = b""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/overview" else 404)
        self.end_headers()
        self.wfile.write(type(self).answer)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def master() -> Iterator[str]:
    overview("2.2.0", 4)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Rest) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def overview(version: str, slots: int) -> None:
    Rest.answer = json.dumps({"flink-version": version, "slots-total": slots, "taskmanagers": 1}).encode()


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with only a Java on it."""
    path = tmp_path / "bin" / "java"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(path.parent))
    return path


def options(master: str | None, **others: Any) -> RunOptions:
    return RunOptions(runner="flink", flink_master=master, **others)


def refusal(given: RunOptions) -> str:
    with pytest.raises(UsageError) as raised:
        check(given)
    return str(raised.value)


def test_all_is_well(master: str, java: Path) -> None:
    assert check(options(master))[1:] == (
        "2.2",
        [
            f"--flink_master=http://{master}",
            "--flink_version=2.2",
            "--parallelism=4",
            "--environment_type=EXTERNAL",
            "--environment_config=localhost:50000",
        ],
    )
    overview("1.19.3", 2)
    given = options(f"http://{master}/", parallelism=1, environment_type="DOCKER", environment_config="me/image:1")
    flags = check(given)[2]
    assert {"--flink_version=1.19", "--parallelism=1", "--environment_type=DOCKER"} <= set(flags)


def test_java(master: str, java: Path) -> None:
    java.unlink()
    said = refusal(options(master))
    assert "no java on the PATH" in said and "apt install" in said


def test_the_cluster(master: str, java: Path) -> None:
    assert "--flink_master=HOST:PORT" in refusal(options(None))
    closed = f"127.0.0.1:{free_port()}"
    said = refusal(options(closed))
    assert f"no Flink JobManager answers at http://{closed}" in said and "refused" in said and "8081" in said
    Rest.answer = b"<html>"
    assert "is not Flink's REST interface" in refusal(options(master))
    overview("1.17.2", 1)
    assert f"is Flink 1.17.2; Beam {apache_beam.__version__} runs on Flink 1.19" in refusal(options(master))
    overview("2.2.0", 0)
    assert "no TaskManager has registered" in refusal(options(master))


def test_the_options(master: str, java: Path) -> None:
    docker = options(master, environment_type="DOCKER")
    assert "--environment_type=DOCKER needs --environment_config" in refusal(docker)
    with pytest.raises(UsageError, match="use --parallelism"):
        options(master, workers=2)
