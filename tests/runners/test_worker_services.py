"""Attacks on a running job with worker processes: neither the network nor other users can reach it."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from apache_beam.portability import common_urns
from apache_beam.portability.api import (
    beam_artifact_api_pb2,
    beam_artifact_api_pb2_grpc,
    beam_fn_api_pb2,
    beam_fn_api_pb2_grpc,
    beam_runner_api_pb2,
)
from apache_beam.runners.portability.fn_api_runner import fn_runner, worker_handlers
from checkout import SUPPORT
from flink_gate import Gate
from processes import DEADLINE, members, running, wait_until
from sockets import listening, unix_sockets

from rlds_beam.runners import worker_services
from rlds_beam.testing import make_episode, write_dataset

FLAGS = ("--shards=8", "--accept=duplicate_episode", "--policy_info_fn=flink_gate:hold")
ANOTHER_USER = 54321
CONNECT = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"


@contextlib.contextmanager
def held(tmp_path: Path, *flags: str, waiting: int) -> Iterator[list[int]]:
    """Yields the processes of a conversion while some wait in the middle of their work; it then succeeds."""
    data = write_dataset(tmp_path / "data", [make_episode(20, seed=i) for i in range(40)], shards=2)
    gate = Gate(tmp_path / "gate")
    gate.close(tmp_path / "out")
    environment = {**os.environ, "FLINK_GATE": str(gate.directory), "PYTHONPATH": str(SUPPORT)}
    with running(["convert", data, tmp_path / "out", *FLAGS, *flags], env=environment) as process:
        wait_until(lambda: len(gate.waiting()) == waiting, process)
        yield members(process.pid)
        gate.open()
        _, err = process.communicate(timeout=DEADLINE)
        assert process.returncode == 0, err


def get_artifact(target: str, path: Path) -> bytes:
    """Reads a file through Beam's artifact service at `target`: any file that its user can read."""
    payload = beam_runner_api_pb2.ArtifactFilePayload(path=str(path)).SerializeToString()
    artifact = beam_runner_api_pb2.ArtifactInformation(
        type_urn=common_urns.artifact_types.FILE.urn, type_payload=payload
    )
    with grpc.insecure_channel(target) as channel:
        stub = beam_artifact_api_pb2_grpc.ArtifactRetrievalServiceStub(channel)
        request = beam_artifact_api_pb2.GetArtifactRequest(artifact=artifact)
        return b"".join(answer.data for answer in stub.GetArtifact(request, timeout=10))


def append_state(target: str) -> None:
    """Appends to a state of the pipeline, for example a side input, which a worker unpickles."""
    key = beam_fn_api_pb2.StateKey(runner=beam_fn_api_pb2.StateKey.Runner(key=b"attack"))
    request = beam_fn_api_pb2.StateRequest(
        id="1", state_key=key, append=beam_fn_api_pb2.StateAppendRequest(data=b"pickle")
    )
    with grpc.insecure_channel(target) as channel:
        stub = beam_fn_api_pb2_grpc.BeamFnStateStub(channel)
        next(stub.State(iter([request]), timeout=10))


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[int]]:
    """The processes of a job with two workers in the middle of its work."""
    with held(tmp_path_factory.mktemp("job"), "--workers=2", waiting=2) as processes:
        yield processes


def test_a_running_job_listens_at_no_port(processes) -> None:
    assert len(processes) >= 2
    assert listening(processes) == []


def test_nor_does_one_in_a_single_process(tmp_path) -> None:
    with held(tmp_path, "--workers=1", waiting=1) as processes:
        assert listening(processes) == []


def test_the_services_cannot_be_attacked_over_the_network(processes, tmp_path) -> None:
    """With Beam's own services: clients can read any file of the user, and run code in a worker."""
    (tmp_path / "secret").write_text("secret")
    hosts = {"127.0.0.1", socket.gethostbyname(socket.gethostname())}
    for target in [f"{host}:{open_.port}" for open_ in listening(processes) for host in hosts]:
        with pytest.raises(grpc.RpcError):
            get_artifact(target, tmp_path / "secret")
        with pytest.raises(grpc.RpcError):
            append_state(target)


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_the_services_cannot_be_reached_by_another_user(processes) -> None:
    become = ["setpriv", f"--reuid={ANOTHER_USER}", f"--regid={ANOTHER_USER}", "--clear-groups"]
    runs = subprocess.run([*become, sys.executable, "-c", ""], capture_output=True, check=False, timeout=DEADLINE)
    if runs.returncode:
        pytest.skip("this Python is in a directory that another user cannot read")
    sockets = unix_sockets(processes)
    assert len(sockets) == 1
    for path in sockets:
        assert path.parent.stat().st_mode & 0o777 == 0o700
        attack = [sys.executable, "-c", CONNECT, str(path)]
        done = subprocess.run([*become, *attack], capture_output=True, text=True, check=False, timeout=DEADLINE)
        assert "PermissionError" in done.stderr
        assert subprocess.run(attack, check=False, timeout=DEADLINE).returncode == 0


def test_no_service_gives_files_away(processes, tmp_path) -> None:
    """The job starts its workers, which download nothing, so Beam's artifact service is not served at all."""
    (tmp_path / "secret").write_text("secret")
    (path,) = unix_sockets(processes)
    with pytest.raises(grpc.RpcError) as raised:
        get_artifact(f"unix:{path}", tmp_path / "secret")
    assert raised.value.code() == grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("length", [79, 80])
def test_a_directory_for_temporary_files_with_a_long_name(tmp_path, convert, monkeypatch, length, request) -> None:
    """A socket's path has at most 107 bytes for any TMPDIR."""
    short = tempfile.mkdtemp(dir="/tmp")
    request.addfinalizer(lambda: shutil.rmtree(short))
    long = Path(short, "x" * (length - len(short) - 1))
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    data = write_dataset(tmp_path / "data", [make_episode(5, seed=i) for i in range(4)], shards=2)
    before = (fn_runner.WorkerHandlerManager, worker_handlers.GrpcServer, threading.excepthook)
    assert convert(data, "--workers=2").code == 0
    assert list(long.iterdir()) == []
    other_pipelines = (fn_runner.WorkerHandlerManager, worker_handlers.GrpcServer, threading.excepthook)
    assert other_pipelines == before, "other pipelines of the process must be left alone"


def test_threads_that_listen_are_refused(tmp_path, convert) -> None:
    """Beam's other ways to run a job in parallel open its ports to every network."""
    data = write_dataset(tmp_path / "data", [make_episode(5)])
    for mode in ("multi_threading", "multi_processing"):
        ran = convert(data, "--", f"--direct_running_mode={mode}")
        ran.assert_nothing_done("--direct_running_mode", "--workers=N")


def test_another_version_of_beam_is_not_trusted() -> None:
    """If another version of Beam starts its services in another way, the job fails before it opens a port."""
    with pytest.raises(RuntimeError, match=r"apache-beam \S+ does not start its services by WorkerHandlerManager"):
        worker_services._with_global(lambda: None, WorkerHandlerManager=None)
    with pytest.raises(RuntimeError, match="opens its services by itself"):
        worker_services._WorkerHandler(b"", None, None, object())  # type: ignore[arg-type]
