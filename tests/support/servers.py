"""Real Reverb servers in processes of their own, to be killed, stopped and started again.

`ServerProcess(make_tables)` forks off a process that has imported Reverb already, so a server is up in
a moment. A server that nobody is going to harm is cheaper still inside the test: `reverb.Server(tables)`.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["reverb", "tensorflow"])


class ServerProcess:
    """A Reverb server on loopback, in its own process.

    Attributes:
      address: `127.0.0.1:port`; the same after `start` is called again.
    """

    def __init__(self, make_tables: Callable[[], list[Any]], *, checkpoint: str | None = None):
        pytest.importorskip("reverb")
        # A test module cannot be imported elsewhere: what it defines travels by value.
        cloudpickle.register_pickle_by_value(sys.modules[make_tables.__module__])
        self._make_tables = cloudpickle.dumps(make_tables)
        self._checkpoint = checkpoint
        self._port = free_port()
        self._process: Any = None
        self.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        """Starts the server (again); it is up when this returns. With a checkpoint directory it loads the latest."""
        up, theirs = _CONTEXT.Pipe(duplex=False)
        self._process = _CONTEXT.Process(
            target=_serve, args=(self._make_tables, self._port, self._checkpoint, theirs), daemon=True
        )
        self._process.start()
        theirs.close()
        assert up.recv() == "up"

    def kill(self) -> None:
        """SIGKILL; what the server held is gone."""
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.join()

    def stop(self) -> None:
        """SIGSTOP: the server is there, and does not answer; it has stopped when this returns."""
        os.kill(self._process.pid, signal.SIGSTOP)
        while not all(" (stopped)" in (task / "status").read_text() for task in self._tasks()):
            time.sleep(0.001)

    def _tasks(self) -> list[Path]:
        """Its threads, as the kernel shows them."""
        return list(Path(f"/proc/{self._process.pid}/task").iterdir())

    def resume(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: Any) -> None:
        if self._process.is_alive():
            self.kill()


def free_port() -> int:
    """A port of loopback that nobody has at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _serve(make_tables: bytes, port: int, checkpoint: str | None, up: Any) -> None:
    import reverb

    checkpointer = reverb.checkpointers.DefaultCheckpointer(checkpoint) if checkpoint else None
    server = reverb.Server(cloudpickle.loads(make_tables)(), port=port, checkpointer=checkpointer)
    up.send("up")
    server.wait()


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
