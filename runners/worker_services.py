"""Beam's services for the worker processes of a local job, reachable only by this user.

Beam's own runner listens on every network interface without a password: a client that reaches its ports can read the
user's files (artifacts), and send bytes that a worker unpickles (state). Here all services use one Unix socket in a
private directory, and the artifact service, which local workers do not need, is left out.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import types
from typing import Any

import apache_beam
import grpc
from apache_beam.portability.api import beam_fn_api_pb2_grpc
from apache_beam.runners.portability.fn_api_runner import FnApiRunner, worker_handlers
from apache_beam.runners.worker import data_plane
from apache_beam.transforms.environments import Environment
from apache_beam.utils import thread_pool_executor

from rlds_beam.runners.worker_processes import WorkerProcesses

_URN = "rlds_beam:env:worker_process:v1"
_STOP_SECONDS = 5.0
_OPTIONS = [
    # The same as Beam's: its clients send messages of any size, and pings at any time.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 20_000),
]


class WorkerRunner(FnApiRunner):  # type: ignore[misc, unused-ignore]
    """Beam's in-process runner, with its services on a Unix socket and its stages in worker processes.

    Args:
      workers: the worker processes; their directory is private to this job and this user.
    """

    def __init__(self, workers: WorkerProcesses):
        super().__init__(_WorkerEnvironment())
        self._workers = workers

    def run_stages(self, stage_context: Any, stages: Any) -> Any:
        """Beam's method, with our `WorkerHandlerManager`; other runners are not affected."""
        run = _with_global(
            FnApiRunner.run_stages, WorkerHandlerManager=functools.partial(_WorkerHandlerManager, self._workers)
        )
        return run(self, stage_context, stages)


def _with_global(function: Any, **names: Any) -> Any:
    """A copy of a function in which these global names refer to these objects.

    Raises:
      RuntimeError: the function does not use such a name, because this version of Beam differs from the expected one.
    """
    for name in names:
        if name not in function.__code__.co_names or name not in function.__globals__:
            raise RuntimeError(
                f"apache-beam {apache_beam.__version__} does not start its services by {name}: --workers=1 works"
            )
    copy = types.FunctionType(
        function.__code__,
        {**function.__globals__, **names},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


class _WorkerHandlerManager(worker_handlers.WorkerHandlerManager):  # type: ignore[misc, unused-ignore]
    """Beam's manager with services set in advance; without them it would open ports."""

    def __init__(self, workers: WorkerProcesses, *args: Any):
        super().__init__(*args)
        self._grpc_server = _Services(workers, self)


class _Services:
    """The interface of Beam's `GrpcServer`, with the address of a Unix socket instead of ports."""

    def __init__(self, workers: WorkerProcesses, manager: _WorkerHandlerManager):
        self.workers = workers
        address = f"unix:{os.path.join(workers.home, 'services')}"
        self.control_port = self.data_port = self.state_port = self.logging_port = address
        self.control_handler = worker_handlers.BeamFnControlServicer(manager)
        self.data_plane_handler = data_plane.BeamFnDataServicer(worker_handlers.DATA_BUFFER_TIME_LIMIT_MS)
        state = worker_handlers.GrpcStateServicer(manager.state_servicer)
        server = grpc.server(thread_pool_executor.shared_unbounded_instance(), options=_OPTIONS)
        beam_fn_api_pb2_grpc.add_BeamFnControlServicer_to_server(self.control_handler, server)
        beam_fn_api_pb2_grpc.add_BeamFnDataServicer_to_server(self.data_plane_handler, server)
        beam_fn_api_pb2_grpc.add_BeamFnStateServicer_to_server(state, server)
        beam_fn_api_pb2_grpc.add_BeamFnLoggingServicer_to_server(worker_handlers.BasicLoggingService(), server)
        server.add_insecure_port(address)
        server.start()
        self._server = server
        workers.on_end(self._cancel)  # Beam closes the services only after a job that succeeds

    def close(self) -> None:
        """Closes the services after all work is done, as Beam does."""
        self.control_handler.done()
        self._server.stop(_STOP_SECONDS).wait()

    def _cancel(self) -> None:
        """Ends all calls. Waits only a few seconds: a server that could not start a thread never stops."""
        stop = threading.Thread(target=self._server.stop, args=(None,), daemon=True)
        with contextlib.suppress(RuntimeError):  # If no thread can be started, the server ends with this process.
            stop.start()
            stop.join(_STOP_SECONDS)


@Environment.register_urn(_URN, bytes)
class _WorkerEnvironment(Environment):  # type: ignore[misc, unused-ignore]
    """Tells Beam to run the stages in the runner's own worker processes."""

    def to_runner_api_parameter(self, context: Any) -> tuple[str, bytes]:
        return _URN, b""

    @staticmethod
    def from_runner_api_parameter(payload: bytes, *args: Any) -> _WorkerEnvironment:
        return _WorkerEnvironment()


@worker_handlers.WorkerHandler.register_environment(_URN, bytes)
class _WorkerHandler(worker_handlers.GrpcWorkerHandler):  # type: ignore[misc, unused-ignore]
    """Beam's handle of one worker process."""

    def __init__(self, payload: bytes, state: Any, provision_info: Any, services: _Services):
        if not isinstance(services, _Services):
            raise RuntimeError(f"apache-beam {apache_beam.__version__} opens its services by itself: --workers=1 works")
        super().__init__(state, provision_info, services)
        self._processes = services.workers

    def port_from_worker(self, port: str) -> str:
        return port

    def start_worker(self) -> None:
        self._processes.start(self.worker_id, self.control_address)

    def stop_worker(self) -> None:
        self._processes.stop(self.worker_id)
