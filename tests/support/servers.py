"""Real Reverb servers in their own processes, for tests that kill, stop and restart them.

Other tests should run the server in their own process, which is cheaper: `reverb.Server(tables)`.
"""

from __future__ import annotations

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
from typing import Any

DEADLINE = 120.0
"""Seconds that a server may take to start or stop on a busy machine."""


class _Host:
    """A process that imports Reverb (3 s) and then runs servers one at a time. It ends when this process does."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )

    def request(self, what: tuple[bytes, int, str | None] | None) -> None:
        """Starts a server, or stops the running one (None); returns when done."""
        assert self.process.stdin is not None and self.process.stdout is not None
        pickle.dump(what, self.process.stdin)
        self.process.stdin.flush()
        assert select.select([self.process.stdout], [], [], DEADLINE)[0], "the Reverb server did not answer in time"
        error = pickle.load(self.process.stdout)
        assert error is None, error


_spare_hosts: list[_Host] = []


def _take_host() -> _Host:
    """Takes a spare host and starts the next one, so that a killed server can restart quickly."""
    host = _spare_hosts.pop() if _spare_hosts else _Host()
    if not _spare_hosts:
        _spare_hosts.append(_Host())
    return host


class ServerProcess:
    """A Reverb server on loopback, in its own process.

    Attributes:
      address: `127.0.0.1:port`; the same after `start` is called again.
    """

    def __init__(self, make_tables: Callable[[], list[Any]], *, checkpoint: str | None = None):
        import cloudpickle
        import pytest

        pytest.importorskip("reverb")

        # A test module cannot be imported elsewhere, so pickle its functions by value.
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
    def _process(self) -> subprocess.Popen[bytes]:
        assert self._host is not None, "the server was killed"
        return self._host.process

    def start(self) -> None:
        """Starts the server (again) and waits until it is up. It loads the latest checkpoint, if any."""
        assert self._host is None, "the server is running"
        self._host = _take_host()
        self._host.request((self._make_tables, self._port, self._checkpoint))

    def kill(self) -> None:
        """Sends SIGKILL; the server's items are lost."""
        self._process.kill()
        self._process.communicate(timeout=DEADLINE)
        self._host = None

    def stop(self) -> None:
        """Sends SIGSTOP and waits for it: the server stays but does not answer."""
        self._process.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + DEADLINE
        while not all(" (stopped)" in (task / "status").read_text() for task in self._tasks()):
            assert time.monotonic() < deadline, "the server did not stop in time"
            time.sleep(0.001)

    def _tasks(self) -> list[Path]:
        """The /proc entries of its threads."""
        return list(Path(f"/proc/{self._process.pid}/task").iterdir())

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *error: Any) -> None:
        if self._host is None:
            return
        if any(error):  # in any state
            self.kill()
            return
        self.resume()
        self._host.request(None)
        _spare_hosts.append(self._host)
        self._host = None


def free_port() -> int:
    """Finds a free port on loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def drain(address: str, table: str, count: int | None = None, timeout: int = 60) -> list[Any]:
    """Removes and returns the items of a Fifo table whose items are sampled once, in insertion order.

    Each is a `reverb.ReplaySample`: `.info.key`, `.info.priority`, `.data` (the flat columns).
    """
    import reverb

    client = reverb.Client(address)
    if count is None:
        count = client.server_info(timeout)[table].current_size
    return list(client.sample(table, count, emit_timesteps=False)) if count else []


def _serve_requests() -> None:
    """Main loop of a `_Host` process."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # other output must not mix with the answers
    import reverb

    server = None
    while True:
        try:
            request = pickle.load(sys.stdin.buffer)
        except EOFError:  # the tests have ended
            os._exit(0)
        error = None
        try:
            if request is None:
                server.stop()
                server = None
            else:
                make_tables, port, checkpoint = request
                checkpointer = reverb.checkpointers.DefaultCheckpointer(checkpoint) if checkpoint else None
                server = reverb.Server(pickle.loads(make_tables)(), port=port, checkpointer=checkpointer)
        except Exception:
            error = traceback.format_exc()
        pickle.dump(error, answers)
        answers.flush()


if __name__ == "__main__":
    _serve_requests()
