"""Real Reverb servers in processes of their own, to be killed, stopped and started again.

A server that no test harms is cheaper inside the test's own process: `reverb.Server(tables)`.
"""

from __future__ import annotations

import functools
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

DEADLINE = 120.0
"""Seconds that a server may take to start or to stop on a busy machine."""


class _Host:
    """A process for one server. It ends when this process does."""

    def __init__(self) -> None:
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        try:
            self.id = _parent_of_hosts().fork(theirs_in, theirs_out)
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        self._requests, self._answers = os.fdopen(ours_out, "wb"), os.fdopen(ours_in, "rb")

    def start(self, tables: bytes, port: int, checkpoint: str | None) -> None:
        """Has it start its server; returns when that is up."""
        pickle.dump((tables, port, checkpoint), self._requests)
        self._requests.flush()
        assert select.select([self._answers], [], [], DEADLINE)[0], "the Reverb server did not answer in time"
        error = pickle.load(self._answers)
        assert error is None, error

    def kill(self) -> None:
        """SIGKILL; it is gone when this returns."""
        os.kill(self.id, signal.SIGKILL)
        deadline = time.monotonic() + DEADLINE
        while Path(f"/proc/{self.id}").exists():
            assert time.monotonic() < deadline, "the server did not end in time"
            time.sleep(0.001)
        self._requests.close()
        self._answers.close()


class _ParentOfHosts:
    """Imports Reverb once, which takes 3 seconds, and forks the hosts.

    It has one thread, so a fork of it has all that it needs; a fork of this process would not.
    """

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__], stdin=theirs, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            )  # fmt: skip
        self._socket.settimeout(DEADLINE)

    def fork(self, requests: int, answers: int) -> int:
        """Starts a host, which reads from one descriptor and writes to the other; its process id."""
        socket.send_fds(self._socket, [b"fork"], [requests, answers])
        return int(self._socket.recv(20))


_parent_of_hosts = functools.cache(_ParentOfHosts)


class ServerProcess:
    """A Reverb server on loopback, in its own process.

    Attributes:
      address: `127.0.0.1:port`; the same after `start` is called again.
    """

    def __init__(self, make_tables: Callable[[], list[Any]], *, checkpoint: str | None = None):
        import cloudpickle
        import pytest

        pytest.importorskip("reverb")

        # A test module cannot be imported elsewhere: what it defines travels by value.
        cloudpickle.register_pickle_by_value(sys.modules[make_tables.__module__])
        self._make_tables = cloudpickle.dumps(make_tables)
        self._checkpoint = checkpoint
        self._port = free_port()
        self._host: _Host | None = None
        self.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def _process(self) -> int:
        assert self._host is not None, "the server was killed"
        return self._host.id

    def start(self) -> None:
        """Starts the server (again); it is up when this returns. With a checkpoint directory it loads the latest."""
        assert self._host is None, "the server is running"
        self._host = _Host()
        self._host.start(self._make_tables, self._port, self._checkpoint)

    def kill(self) -> None:
        """SIGKILL; what the server held is gone."""
        assert self._host is not None, "the server was killed"
        self._host.kill()
        self._host = None

    def stop(self) -> None:
        """SIGSTOP: the server is there, and does not answer; it has stopped when this returns."""
        os.kill(self._process, signal.SIGSTOP)
        deadline = time.monotonic() + DEADLINE
        while not all(" (stopped)" in (task / "status").read_text() for task in self._tasks()):
            assert time.monotonic() < deadline, "the server did not stop in time"
            time.sleep(0.001)

    def _tasks(self) -> list[Path]:
        """Its threads, as the kernel shows them."""
        return list(Path(f"/proc/{self._process}/task").iterdir())

    def resume(self) -> None:
        os.kill(self._process, signal.SIGCONT)

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *error: Any) -> None:
        if self._host is not None:
            self.kill()


def free_port() -> int:
    """A free port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def drain(address: str, table: str, count: int | None = None, timeout: float = 10) -> list[Any]:
    """The items of a table whose sampler is Fifo and whose items are sampled once, in the order of insertion.

    Each is a `reverb.ReplaySample`: `.info.key`, `.info.priority`, `.data` (its columns, flat). They are gone
    from the table then.
    """
    import reverb

    client = reverb.Client(address)
    if count is None:
        count = client.server_info(timeout)[table].current_size
    return list(client.sample(table, count, emit_timesteps=False)) if count else []


def tight(max_size: int, **options: Any) -> Any:
    """A table `t` that drops its oldest item when it is full."""
    import reverb

    fifo = reverb.selectors.Fifo
    return reverb.Table("t", fifo(), fifo(), max_size, reverb.rate_limiters.MinSize(1), **options)


def _fork_hosts() -> None:
    """What the parent of hosts runs."""
    import reverb  # noqa: F401

    assert len(os.listdir("/proc/self/task")) == 1, "there are other threads, which a fork would not have"
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # hosts that have ended are waited for by the system
    with socket.socket(fileno=os.dup(0)) as tests:
        while True:
            what, descriptors, _, _ = socket.recv_fds(tests, 4, 2)
            if not what:  # the tests have ended
                return
            child = os.fork()
            if not child:
                break
            for descriptor in descriptors:
                os.close(descriptor)
            tests.send(str(child).encode())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _serve(os.fdopen(descriptors[0], "rb"), os.fdopen(descriptors[1], "wb"))


def _serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """What a host runs, until the tests close its requests, or end."""
    import reverb

    servers = []
    while True:
        try:
            make_tables, port, checkpoint = pickle.load(requests)
        except EOFError:
            os._exit(0)
        error = None
        try:
            checkpointer = reverb.checkpointers.DefaultCheckpointer(checkpoint) if checkpoint else None
            servers.append(reverb.Server(pickle.loads(make_tables)(), port=port, checkpointer=checkpointer))
        except Exception:
            error = traceback.format_exc()
        pickle.dump(error, answers)
        answers.flush()


if __name__ == "__main__":
    _fork_hosts()
