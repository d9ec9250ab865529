"""The message of a job that failed on a Flink cluster."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, ClassVar

import grpc
import pytest

from rlds_beam.errors import FailedRuleError, RldsBeamError, UsageError
from rlds_beam.runners import flink
from rlds_beam.runners.base import RunOptions
from rlds_beam.runners.flink import plain
from rlds_beam.runners.flink_preflight import Master, Submission

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


@pytest.mark.parametrize("text", ["Could not upload job files", "Could not upload job files\n\tat a.b.C(D.java:1)\n"])
def test_a_message_without_a_cause(text) -> None:
    assert message(text).endswith("Could not upload job files")


def test_a_workers_error_is_raised_as_our_type() -> None:
    error = plain(RuntimeError(FAILED + WORKER), OPTIONS, _Up(""))
    assert isinstance(error, FailedRuleError)
    assert str(error) == "missing_is_last: toy/1.0.0:train:00000@12"


def test_a_job_leaves_the_process_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    class _Empty(Master):
        def get(self, path: str) -> Any:
            return {"jobs": []}

    def define(root: Any) -> None:
        raise UsageError("this far and no further")

    before = threading.excepthook
    monkeypatch.setattr(flink.flink_preflight, "preflight", lambda options: Submission(_Empty(""), "1.19", ()))
    with pytest.raises(UsageError, match="no further"):
        flink.FlinkRunner(OPTIONS).run(define, 0.0)
    assert threading.excepthook is before


def test_the_end_of_a_job_server_is_the_end_of_its_messages() -> None:
    def messages() -> Iterator[str]:
        yield "running"
        raise grpc.RpcError

    assert list(flink._until_lost(messages())) == ["running"]


class JobServer:
    """A job server that fails to get its port this many times."""

    refusals = 0
    running: ClassVar[list[JobServer]] = []

    def __init__(self, options: Any):
        self.running.append(self)

    def start(self) -> str:
        if type(self).refusals:
            type(self).refusals -= 1
            raise RuntimeError("Service failed to start up with error 0")
        return "stub"

    def stop(self) -> None:
        self.running.remove(self)


@pytest.mark.parametrize("refusals", [0, 2])
def test_a_job_server_whose_port_was_taken_is_started_at_another(monkeypatch, refusals) -> None:
    monkeypatch.setattr(flink.flink_runner, "FlinkJarJobServer", JobServer)
    monkeypatch.setattr(JobServer, "refusals", refusals)
    server = flink._JobServer(None)
    assert server.start() == "stub"
    assert len(JobServer.running) == 1
    server.stop()
    server.stop()
    assert not JobServer.running


def test_a_job_server_that_never_starts_is_reported(monkeypatch) -> None:
    monkeypatch.setattr(flink.flink_runner, "FlinkJarJobServer", JobServer)
    monkeypatch.setattr(JobServer, "refusals", 100)
    with pytest.raises(RldsBeamError, match=r"job server does not start \(Service failed to start up with error 0"):
        flink._JobServer(None).start()
    assert not JobServer.running
