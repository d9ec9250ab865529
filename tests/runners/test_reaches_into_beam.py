"""What docs/explanation/workarounds.md uses of Beam beyond its public interface. A new Beam fails here, by name."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner, worker_handlers

NAMES = {
    "apache_beam.runners.portability.fn_api_runner.worker_handlers": [
        "BasicLoggingService",
        "BeamFnControlServicer",
        "DATA_BUFFER_TIME_LIMIT_MS",
        "GrpcStateServicer",
        "GrpcWorkerHandler",
        "WorkerHandler",
        "WorkerHandlerManager",
    ],
    "apache_beam.runners.worker.data_plane": ["BeamFnDataServicer"],
    "apache_beam.runners.worker.sdk_worker_main": ["main"],
    "apache_beam.utils.thread_pool_executor": ["shared_unbounded_instance"],
    "apache_beam.utils.subprocess_server": ["JavaJarServer"],
    "apache_beam.portability.api": ["beam_fn_api_pb2_grpc"],
    "apache_beam.portability.api.org.apache.beam.model.fn_execution.v1.beam_fn_api_pb2_grpc": [
        "BeamFnExternalWorkerPoolServicer",
        "add_BeamFnControlServicer_to_server",
        "add_BeamFnDataServicer_to_server",
        "add_BeamFnLoggingServicer_to_server",
        "add_BeamFnStateServicer_to_server",
    ],
}


@pytest.mark.parametrize("module", NAMES)
def test_the_names_exist(module: str) -> None:
    imported = importlib.import_module(module)
    assert [name for name in NAMES[module] if not hasattr(imported, name)] == []


USES: list[tuple[Callable[..., Any], str]] = [
    (FnApiRunner.run_stages, "WorkerHandlerManager"),
    (worker_handlers.WorkerHandlerManager.__init__, "_grpc_server"),
    (worker_handlers.WorkerHandlerManager.get_worker_handlers, "_grpc_server"),
    (worker_handlers.GrpcWorkerHandler.__init__, "control_handler"),
    (worker_handlers.GrpcWorkerHandler.__init__, "port_from_worker"),
    (PipelineOptions.view_as, "cls"),
]


@pytest.mark.parametrize(("function", "name"), USES, ids=[f"{f.__qualname__}-{name}" for f, name in USES])
def test_the_functions_use_these_names(function: Callable[..., Any], name: str) -> None:
    code = inspect.unwrap(function).__code__
    assert name in (*code.co_names, *code.co_varnames)


def test_views_share_their_values() -> None:
    options = PipelineOptions([])
    options.view_as(DirectOptions).direct_num_workers = 3
    assert options.view_as(DirectOptions).direct_num_workers == 3


def test_a_pipeline_has_a_temporary_directory() -> None:
    assert isinstance(beam.Pipeline(runner=FnApiRunner()).local_tempdir, str)
