"""Workers next to a Flink TaskManager, without containers: `python -m rlds_beam.runners.worker_pool --port=50000`.

Beam's Flink runner asks a pool for worker processes (`--environment_type=EXTERNAL`). Beam also has such a pool; this
one starts workers with its own interpreter, gives them the job's options, sends their logs to the TaskManager, and
ends them when it ends.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent import futures
from typing import Any

import grpc
from apache_beam.portability.api import (
    beam_fn_api_pb2,
    beam_fn_api_pb2_grpc,
    beam_provision_api_pb2,
    beam_provision_api_pb2_grpc,
)
from google.protobuf import json_format, text_format

from rlds_beam import worker_status
from rlds_beam.platforms import keep_freed_memory
from rlds_beam.user_functions import search_as_the_parent
from rlds_beam.worker_status import command

_WATCH_SECONDS = 0.2
_DEADLINE = 30.0
"""Seconds that a worker may take to end, and a runner to answer."""


class WorkerPool(beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolServicer):  # type: ignore[misc, unused-ignore]
    """Starts and ends worker processes on request of a runner.

    Args:
      home: the pool's private directory; the workers end when `home`/alive is removed.
    """

    def __init__(self, home: str):
        self._alive = os.path.join(home, "alive")
        open(self._alive, "x").close()
        self._workers: dict[str, subprocess.Popen[bytes]] = {}

    def StartWorker(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Starts a worker for `request.worker_id`; returns errors to the caller."""
        try:
            self._workers[request.worker_id] = subprocess.Popen(
                command("rlds_beam.runners.worker_pool", "--worker", self._alive),
                env={**os.environ, **_environment(request)},
                stdin=subprocess.DEVNULL,
            )
        except (OSError, grpc.RpcError) as error:
            return beam_fn_api_pb2.StartWorkerResponse(error=f"{type(error).__name__}: {error}")
        return beam_fn_api_pb2.StartWorkerResponse()

    def StopWorker(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Ends the worker within `_DEADLINE` seconds, without waiting for it."""
        worker = self._workers.pop(request.worker_id, None)
        if worker is not None:
            threading.Thread(target=_end, args=(worker,), daemon=True).start()
        return beam_fn_api_pb2.StopWorkerResponse()


def _environment(request: Any) -> dict[str, str]:
    """The environment variables that Beam's worker reads, as a container's boot program sets them."""
    with grpc.insecure_channel(request.provision_endpoint.url) as channel:
        stub = beam_provision_api_pb2_grpc.ProvisionServiceStub(channel)
        info = stub.GetProvisionInfo(
            beam_provision_api_pb2.GetProvisionInfoRequest(),
            metadata=(("worker_id", request.worker_id),),
            timeout=_DEADLINE,
        ).info
    return {
        "WORKER_ID": request.worker_id,
        "CONTROL_API_SERVICE_DESCRIPTOR": text_format.MessageToString(request.control_endpoint),
        "LOGGING_API_SERVICE_DESCRIPTOR": text_format.MessageToString(request.logging_endpoint),
        "PIPELINE_OPTIONS": json_format.MessageToJson(info.pipeline_options),
        "RUNNER_CAPABILITIES": " ".join(info.runner_capabilities),
    }


def _end(worker: subprocess.Popen[bytes]) -> None:
    worker.terminate()
    try:
        worker.wait(_DEADLINE)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.wait()


@contextlib.contextmanager
def serving(host: str, port: int) -> Any:
    """Serves a pool at host:port (port 0 is any free one) during the block; yields the port.

    Raises:
      OSError: the port is in use.
    """
    with tempfile.TemporaryDirectory(prefix="rlds-beam-", ignore_cleanup_errors=True) as home:
        # Without SO_REUSEPORT a pool fails on a port in use; by default grpc would share the port.
        server = grpc.server(futures.ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
        beam_fn_api_pb2_grpc.add_BeamFnExternalWorkerPoolServicer_to_server(WorkerPool(home), server)
        try:
            bound = server.add_insecure_port(f"{host}:{port}")
        except RuntimeError as error:
            raise OSError(f"cannot listen at {host}:{port}: {error}") from error
        server.start()
        try:
            yield bound
        finally:
            server.stop(None).wait(_DEADLINE)


def _be_worker() -> None:
    """Runs Beam's worker in this process, while the file `sys.argv[2]` and the pool exist."""
    alive = sys.argv.pop(2)
    parent = os.getppid()

    def end_with_the_pool() -> None:
        while os.path.exists(alive) and os.getppid() == parent:
            time.sleep(_WATCH_SECONDS)
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal reaches all processes, but the pool handles it
    threading.Thread(target=end_with_the_pool, daemon=True).start()
    search_as_the_parent()
    keep_freed_memory()
    from apache_beam.runners.worker import sdk_worker_main

    sdk_worker_main.main(sys.argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Serves until SIGTERM or Ctrl-C."""
    if argv is None and sys.argv[1:2] == ["--worker"]:
        _be_worker()
        return
    parser = argparse.ArgumentParser(prog="python -m rlds_beam.runners.worker_pool", description=__doc__)
    parser.add_argument(
        "--port", type=int, required=True, help="port to listen on; the job names it in --environment_config"
    )
    # Any client that reaches the port can start workers and run code in them.
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    flags = parser.parse_args(argv)
    with contextlib.suppress(KeyboardInterrupt), worker_status.as_ctrl_c(), serving(flags.host, flags.port) as port:
        print(f"workers for Flink at {flags.host}:{port}", flush=True)
        while not worker_status.interrupts():  # a finalizer may drop the exception
            time.sleep(1)


if __name__ == "__main__":
    main()
