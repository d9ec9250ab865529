"""Errors of the worker pool next to a TaskManager. `tests/flink` tests it with jobs."""

from __future__ import annotations

import os
import signal
import sys

import grpc
import pytest
from apache_beam.portability.api import beam_fn_api_pb2, beam_fn_api_pb2_grpc
from processes import DEADLINE, end_of, start
from servers import free_port

from rlds_beam.runners import worker_pool
from rlds_beam.runners.worker_pool import serving


def test_a_port_that_is_taken() -> None:
    with serving("127.0.0.1", 0) as port:
        taken = serving("127.0.0.1", port)
        with pytest.raises(OSError, match=f"cannot listen at 127.0.0.1:{port}"):
            taken.__enter__()


def test_a_runner_that_does_not_answer(monkeypatch) -> None:
    """The pool reports the error to the caller and continues."""
    monkeypatch.setattr(worker_pool, "_DEADLINE", 0.2)
    request = beam_fn_api_pb2.StartWorkerRequest(worker_id="1")
    request.provision_endpoint.url = f"127.0.0.1:{free_port()}"
    with serving("127.0.0.1", 0) as port, grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolStub(channel)
        for _ in range(2):
            assert "UNAVAILABLE" in stub.StartWorker(request, timeout=DEADLINE).error
        stub.StopWorker(beam_fn_api_pb2.StopWorkerRequest(worker_id="1"), timeout=DEADLINE)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it(number) -> None:
    command = [sys.executable, "-m", "rlds_beam.runners.worker_pool", "--port=0"]
    with start(command, env={**os.environ, "PYTHONFAULTHANDLER": "1"}) as pool:
        assert pool.stdout is not None
        assert "workers for Flink at 127.0.0.1:" in pool.stdout.readline()
        pool.send_signal(number)
        code, out, err = end_of(pool)
    assert (code, out) == (0, ""), err
