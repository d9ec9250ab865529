"""A standalone Flink cluster on loopback: one JobManager, and TaskManagers each with its own pool of SDK workers.

Every process is real and in its own group, so tests can kill and restart it. All ports are dynamic; a client needs only
the JobManager's REST port.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from flink_artifacts import JOB_SERVER, LIB, class_path
from servers import free_port

DEADLINE = 300.0
"""Seconds to wait for the cluster to start, or for any condition, on a busy machine."""

SHORT_LIVED = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
"""Java options for processes too short-lived for an optimizing compiler."""

_OPENED = "lang lang.reflect io net nio text time util util.concurrent util.concurrent.atomic util.concurrent.locks"
_OPENS = [
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in ("sun.net.util", *(f"java.{name}" for name in _OPENED.split()))
]

# Flink's shell scripts derive these from one total; without the scripts each must be set.
_SIZES = {"framework.heap": 128, "framework.off-heap": 128, "task.heap": 256, "task.off-heap": 0}
_SIZES |= {"managed": 128, "jvm-metaspace": 256}
_LIMITS = {"network.min": 64, "network.max": 64, "jvm-overhead.min": 192, "jvm-overhead.max": 192}
"""The memory of a TaskManager, in MB."""

_LOGGING = """
rootLogger.level = INFO
rootLogger.appenderRef.console.ref = Console
appender.console.type = Console
appender.console.name = Console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss,SSS} %-5p %c{1} %m%n
"""


class Cluster:
    """A running cluster, for a `with` block.

    Args:
      home: a new directory for the configuration and the logs.
      task_managers: the number of TaskManagers, each with one slot and one pool of SDK workers.
      restarts: how often Flink restarts a failing job.
      environment: extra environment variables for the processes.

    Attributes:
      address: the REST interface as `127.0.0.1:port`, for `--flink_master`.
      pool: the pool next to each TaskManager as `sdk-workers:port`, for `--environment_config`. Every TaskManager has
        its own loopback address, and a hosts file that maps `sdk-workers` to it.
    """

    def __init__(
        self, home: Path, task_managers: int = 2, restarts: int = 4, environment: Mapping[str, str] | None = None
    ):
        self.home, self.task_managers = home, task_managers
        self._environment = {**os.environ, **(environment or {})}
        rest, pool = free_port(), free_port()
        self.address, self.pool = f"127.0.0.1:{rest}", f"sdk-workers:{pool}"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        (home / "conf").mkdir(parents=True)
        (home / "conf" / "config.yaml").write_text(json.dumps(_configuration(home, rest, free_port(), restarts)))
        (home / "conf" / "log4j.properties").write_text(_LOGGING)

    def __enter__(self) -> Cluster:
        try:
            self.start_job_manager()
            for number in range(self.task_managers):
                self.start_pool(number)
                self.start_task_manager(number)
            self.wait_for_task_managers(self.task_managers)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._processes):
            self.kill(name)

    def start_job_manager(self) -> None:
        """Starts the JobManager (again); it remembers no earlier jobs."""
        self._java("jobmanager", "runtime.entrypoint.StandaloneSessionClusterEntrypoint", "-Xmx512m")

    def start_pool(self, number: int) -> None:
        """Starts the SDK worker pool of a TaskManager (again)."""
        module = [sys.executable, "-m", "rlds_beam.runners.worker_pool"]
        self._start(f"pool-{number}", [*module, f"--host={_host(number)}", f"--port={self.pool.split(':')[1]}"])

    def start_task_manager(self, number: int) -> None:
        """Starts a TaskManager (again)."""
        hosts = self.home / f"hosts-{number}"
        hosts.write_text(f"127.0.0.1 localhost {socket.gethostname()}\n{_host(number)} sdk-workers\n")
        sizes = [f"-Dtaskmanager.memory.{name}.size={size}m" for name, size in _SIZES.items()]
        limits = [f"-Dtaskmanager.memory.{name}={size}m" for name, size in _LIMITS.items()]
        self._java(
            f"taskmanager-{number}",
            "runtime.taskexecutor.TaskManagerRunner",
            "-Xmx384m",
            "-XX:MaxDirectMemorySize=192m",
            f"-Djdk.net.hosts.file={hosts}",
            flags=["-Dtaskmanager.cpu.cores=1.0", f"-Dtaskmanager.resource-id=taskmanager-{number}", *sizes, *limits],
        )

    def kill(self, name: str) -> None:
        """Sends SIGKILL to a process (`jobmanager`, `taskmanager-0`, `pool-1`) and its children."""
        process = self._processes.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(DEADLINE)

    def workers(self, number: int) -> list[int]:
        """The process ids of a pool's SDK workers."""
        children = psutil.Process(self._processes[f"pool-{number}"].pid).children()
        return [child.pid for child in children if child.status() != psutil.STATUS_ZOMBIE]

    def pools_and_workers(self) -> list[int]:
        """The process ids of the pools and their SDK workers."""
        pools = [process.pid for name, process in self._processes.items() if name.startswith("pool-")]
        return [*pools, *(worker for number in range(self.task_managers) for worker in self.workers(number))]

    def connected_to(self, address: str) -> int:
        """The number of a TaskManager with a worker that is connected to `127.0.0.1:port`."""
        port = int(address.rpartition(":")[2])
        for number in range(self.task_managers):
            connections = [
                one for worker in self.workers(number) for one in psutil.Process(worker).net_connections("tcp")
            ]
            if any(one.raddr and one.raddr.port == port for one in connections):
                return number
        raise AssertionError(f"no worker is connected to {address}")

    def jobs(self) -> list[dict[str, Any]]:
        """All jobs as reported by the REST interface, latest first."""
        return sorted(self.get("/jobs/overview")["jobs"], key=lambda job: -job["start-time"])

    def was_restarted(self) -> bool:
        """Whether Flink restarted the latest job."""
        return bool(self.get(f"/jobs/{self.jobs()[0]['jid']}")["timestamps"]["RESTARTING"])

    def options(self) -> dict[str, Any]:
        """The options of a job on this cluster, as fields of `RunOptions`."""
        return {
            "runner": "flink",
            "flink_master": self.address,
            "environment_config": self.pool,
            "flink_job_server_jar": str(JOB_SERVER),
            "temp_location": str(self.home / "shared"),
            "beam_options": (
                f"--files_to_stage={next(LIB.glob('log4j-api*'))}",
                *(f"--job_server_jvm_properties={option}" for option in SHORT_LIVED),
            ),
        }

    def flags(self) -> list[str]:
        """The same options as command-line flags, without progress."""
        options = {**self.options(), "progress": "none"}
        beam_options = options.pop("beam_options")
        return [*(f"--{name}={value}" for name, value in options.items()), "--", *beam_options]

    def get(self, path: str) -> Any:
        """Gets a path of the REST interface."""
        with urllib.request.urlopen(f"http://{self.address}{path}", timeout=10) as answer:
            return json.load(answer)

    def wait_for_task_managers(self, count: int) -> None:
        def there() -> bool:
            with contextlib.suppress(OSError):
                return bool(self.get("/overview")["slots-total"] == count)
            return False

        self.wait_until(there)

    def wait_until(self, condition: Callable[[], object]) -> None:
        """Waits for a condition; fails after a timeout, or if a process of the cluster ends."""
        deadline = time.monotonic() + DEADLINE
        while not condition():
            for name, process in list(self._processes.items()):
                assert process.poll() is None, f"{name} ended: {self.log(name)[-2000:]}"
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def log(self, name: str) -> str:
        """The log of a process, across its restarts."""
        return (self.home / f"{name}.log").read_text(errors="replace")

    def _java(self, name: str, main: str, *options: str, flags: Sequence[str] = ()) -> None:
        conf = self.home / "conf"
        logging = f"-Dlog4j.configurationFile={conf / 'log4j.properties'}"
        command = ["java", *options, *SHORT_LIVED, logging, *_OPENS, "-cp", class_path()]
        self._start(name, [*command, f"org.apache.flink.{main}", "--configDir", str(conf), *flags])

    def _start(self, name: str, command: list[str]) -> None:
        with open(self.home / f"{name}.log", "ab") as log:
            # The kernel ends it when the test process is killed or the thread that started it ends.
            self._processes[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig=KILL", *command],
                env=self._environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


def _host(number: int) -> str:
    """The loopback address of a TaskManager's pool."""
    return f"127.0.0.{number + 2}"


def _configuration(home: Path, rest: int, rpc: int, restarts: int) -> dict[str, Any]:
    return {
        **dict.fromkeys(("jobmanager.rpc.address", "rest.address", "taskmanager.host"), "127.0.0.1"),
        **dict.fromkeys(("jobmanager.bind-host", "rest.bind-address", "taskmanager.bind-host"), "127.0.0.1"),
        "jobmanager.rpc.port": rpc,
        "rest.port": rest,
        "io.tmp.dirs": str(home / "tmp"),
        # A dead process is noticed within seconds (two failed heartbeats); a slow one is tolerated.
        "heartbeat.interval": 1000,
        "heartbeat.timeout": 300_000,
        "pekko.ask.timeout": "300 s",
        "pekko.startup-timeout": "300 s",
        "web.timeout": 300_000,
        # Beam's jar is on the cluster's class path, so it is not sent with each job (`files_to_stage`).
        "classloader.resolve-order": "parent-first",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": restarts,
        "restart-strategy.fixed-delay.delay": "3 s",  # time for a new worker pool on a busy machine
    }
