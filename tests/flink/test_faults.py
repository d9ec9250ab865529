"""A Flink cluster whose processes are killed during a job: the job ends with the result of an undisturbed run.

The moments are not random: a conversion's workers wait at a gate once the first shard is committed, and a push stops at
a given byte of its stream until the fault has happened.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import reverb
from directories import bytes_of
from flink_cluster import Cluster
from flink_gate import Gate
from jobs import complaints
from processes import DEADLINE, running
from proxy import Proxy
from pushes import PAIRS, STREAM_BYTES, arguments, dataset, due, held, one_table

from rlds_beam.testing import make_episode, write_dataset

FLAGS = ("--shards=8", "--accept=duplicate_episode", "--policy_info_fn=flink_gate:hold")
JOB_SECONDS = 900.0
"""Seconds that a job with a fault may take on a busy machine."""
pytestmark = pytest.mark.timeout(2 * JOB_SECONDS)


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("data"), [make_episode(60, seed=i) for i in range(40)], shards=2)


@pytest.fixture(scope="module")
def undisturbed(source, tmp_path_factory) -> dict[str, bytes]:
    output = tmp_path_factory.mktemp("whole") / "out"
    with running(["convert", str(source), str(output), *FLAGS]) as process:
        _, err = process.communicate(timeout=JOB_SECONDS)
    assert process.returncode == 0, err
    return bytes_of(output)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return dataset(tmp_path_factory.mktemp("data"))


@pytest.fixture
def server() -> Iterator[str]:
    running_server = reverb.Server(one_table())
    yield f"127.0.0.1:{running_server.port}"
    running_server.stop()


def ended(process: subprocess.Popen[str]) -> dict[str, object]:
    """Asserts exit code 0 and returns the report of a command."""
    out, err = process.communicate(timeout=JOB_SECONDS)
    assert (process.returncode, err) == (0, "")
    return json.loads(out)


@contextlib.contextmanager
def held_up(command: list[str], cluster: Cluster, gate: Gate, output: Path) -> Iterator[subprocess.Popen[str]]:
    """A conversion whose workers wait at the gate after the first shard is committed."""
    gate.close(output)
    with running(command) as process:
        cluster.wait_until(lambda: gate.waiting() or process.poll() is not None)
        assert process.poll() is None, process.communicate(timeout=DEADLINE)
        yield process


def kill_task_manager(cluster: Cluster, number: int) -> None:
    """Kills a TaskManager and starts a new one, as a cluster operator would."""
    cluster.kill(f"taskmanager-{number}")
    cluster.start_task_manager(number)


def kill_worker(cluster: Cluster, number: int) -> None:
    for worker in cluster.workers(number):
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)


def kill_pool(cluster: Cluster, number: int) -> None:
    """Kills a pool and its workers, and starts a new one."""
    cluster.kill(f"pool-{number}")
    cluster.start_pool(number)


Fault = Callable[[Cluster, int], None]
FAULTS: list[Fault] = [kill_task_manager, kill_worker, kill_pool]


@pytest.mark.parametrize("fault", FAULTS)
def test_in_the_middle_of_convert(cluster, gate, source, undisturbed, tmp_path, fault: Fault) -> None:
    output = tmp_path / "out"
    gate.close(output)
    with running(["convert", str(source), str(output), *FLAGS, "--json", *cluster.flags()]) as process:
        # A worker of the first TaskManager is in the middle of a range, and other ranges are done.
        cluster.wait_until(lambda: gate.waiting() & set(cluster.workers(0)) or process.poll() is not None)
        assert process.poll() is None, process.communicate(timeout=DEADLINE)
        committed = {path: path.stat().st_mtime_ns for path in (output / "_commits").glob("*.json")}
        assert committed and not (output / "manifest.json").exists()
        fault(cluster, 0)
        gate.open()
        report = ended(process)
    assert bytes_of(output) == undisturbed
    assert report["items_written"] == report["items_predicted"] == 40 * 59
    # Flink restarted the job, and finished work was not repeated.
    assert cluster.was_restarted()
    assert {path: path.stat().st_mtime_ns for path in committed} == committed


@pytest.mark.parametrize("fault", FAULTS)
def test_in_the_middle_of_push(cluster, data, server, fault: Fault) -> None:
    reached, done = threading.Event(), threading.Event()

    def stand_still() -> None:
        # The main thread causes the fault, since processes end with the thread that started them (PR_SET_PDEATHSIG).
        reached.set()
        done.wait(JOB_SECONDS)

    with Proxy(server) as proxy:
        proxy.at_byte(STREAM_BYTES // 2, stand_still)
        with running([*arguments(data, [proxy.address]), *cluster.flags()]) as process:
            cluster.wait_until(lambda: reached.is_set() or process.poll() is not None)
            assert process.poll() is None, process.communicate(timeout=DEADLINE)
            fault(cluster, cluster.connected_to(proxy.address))
            done.set()
            report = ended(process)
    (table,) = report["tables"]
    assert table["predicted"] == PAIRS
    assert cluster.was_restarted()
    assert held(server) == due()


def test_a_job_manager_that_is_killed(cluster, gate, source, undisturbed, tmp_path) -> None:
    """Without Flink's high availability the job is lost: the command says so, and the same command resumes it."""
    output = tmp_path / "out"
    command = ["convert", str(source), str(output), *FLAGS, *cluster.flags()]
    with held_up(command, cluster, gate, output) as process:
        committed = {path: path.stat().st_mtime_ns for path in (output / "_commits").glob("*.json")}
        assert committed
        cluster.kill("jobmanager")
        cluster.start_job_manager()
        out, err = process.communicate(timeout=JOB_SECONDS)
    gate.open()
    for number in range(2):  # they would notice by a heartbeat, but only after minutes
        kill_task_manager(cluster, number)
    cluster.wait_for_task_managers(2)
    assert (process.returncode, out) == (1, "")
    assert "lost the job" in err and "run the same command to resume" in err
    assert not (output / "manifest.json").exists()
    with running([*command[:3], "--json", *command[3:]]) as process:
        ended(process)
    assert bytes_of(output) == undisturbed
    assert {path: path.stat().st_mtime_ns for path in committed} == committed


def test_interrupted(cluster, gate, source, undisturbed, tmp_path) -> None:
    """Ctrl-C ends the job on the cluster too; the same command resumes it."""
    output = tmp_path / "out"
    command = ["convert", str(source), str(output), *FLAGS, *cluster.flags()]
    with held_up(command, cluster, gate, output) as process:
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=JOB_SECONDS)
        assert (process.returncode, out) == (130, "")
        interrupted = "rlds-beam: interrupted; finished work is kept, run the same command to resume"
        assert complaints(err) == [interrupted]
    gate.open()
    cluster.wait_until(lambda: cluster.jobs()[0]["state"] == "CANCELED")
    with running([*command[:3], "--json", *command[3:]]) as process:
        ended(process)
    assert bytes_of(output) == undisturbed
