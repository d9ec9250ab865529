"""Reverb servers in their own processes, with tables that match a dataset: for `serve`, `push`, and tests.

The process is this module: it reads the tables as JSON from standard input, answers with one line of JSON,
`{"port": 8000}` or `{"error": "...", "exit_code": 2}`, and serves until its parent ends. It ignores all signals but
SIGKILL, because its parent handles them.

Reverb listens on `[::]:port` and has no passwords: every client that reaches the port can read and delete all tables.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Any, Literal, cast, get_args

from rlds_beam import worker_status
from rlds_beam.encoding.metadata import decode_json
from rlds_beam.errors import RldsBeamError, UsageError, needs
from rlds_beam.trajectories.spec import SpecLeaf, TrajectorySpec

if TYPE_CHECKING:
    from rlds_beam.reverb.connection import Connection, ServerInfo

__all__ = ["EmbeddedServer", "ServedTable"]

TableKind = Literal["uniform", "prioritized", "queue", "stack"]

UNLIMITED = 1_000_000_000
"""Default maximum of items in a table: more than fit in memory, so memory is the limit."""

START_SECONDS = 120.0
"""Maximum seconds for a server to start, which is mostly importing TensorFlow (3 to 7 seconds)."""

_TABLE = re.compile(r"(?P<name>[^:]+)(:(?P<kind>[^:]+)(:(?P<max_size>[\d_]*\d))?)?")
_WATCH_SECONDS = 0.2


@dataclasses.dataclass(frozen=True)
class ServedTable:
    """A table to serve.

    Attributes:
      name: the name of the table.
      kind: `uniform` samples items any number of times, and drops the oldest when full; use it with TF-Agents'
        `ReverbReplayBuffer`. `prioritized` does the same by priority. `queue` and `stack` sample each item once, the
        oldest or the newest first; inserts wait when full.
      max_size: the maximum number of items.

    Raises:
      UsageError: the kind is unknown, or the size is out of range.
    """

    name: str
    kind: TableKind = "uniform"
    max_size: int = UNLIMITED

    def __post_init__(self) -> None:
        if self.kind not in get_args(TableKind):
            kinds = ", ".join(get_args(TableKind))
            raise UsageError(f"table {self.name}:{self.kind}: unknown kind; expected one of {kinds}")
        if not 0 < self.max_size < 1 << 63:
            raise UsageError(
                f"table {self.name}:{self.kind}:{self.max_size}: expected a maximum of 1 to 2^63 - 1 items"
            )


def parse_tables(texts: Sequence[str]) -> tuple[ServedTable, ...]:
    """Parses tables of the command line, each `NAME[:KIND[:MAX_SIZE]]`; the default kind is uniform.

    Raises:
      UsageError: a text has another form, or a name occurs twice.
    """
    tables = []
    for text in texts:
        match = _TABLE.fullmatch(text)
        if match is None:
            raise UsageError(f"table {text}: expected NAME[:KIND[:MAX_SIZE]], for example replay:uniform:1000000")
        max_size = int((match["max_size"] or str(UNLIMITED)).replace("_", ""))
        tables.append(ServedTable(match["name"], cast(TableKind, match["kind"] or "uniform"), max_size))
    for name, count in Counter(table.name for table in tables).items():
        if count > 1:
            raise UsageError(f"table {name} is given twice")
    return tuple(tables)


class EmbeddedServer:
    """A Reverb server in a separate process, which ends with the context or with this process.

    Entering the context starts the process without waiting; call `wait_ready` when you need it. The tables' signatures
    are a TF-Agents `Trajectory` of shapes [None, ...], so they accept items of any number of frames.

    Args:
      tables: the tables.
      spec: the spec of the frames.
      port: the port to listen on; None for a free one.
    """

    def __init__(self, tables: Sequence[ServedTable], spec: TrajectorySpec, *, port: int | None = None):
        if port is not None and not 0 < port < 1 << 16:
            raise UsageError(f"--port={port}: expected 1 to 65535")
        self._config = _Config(os.getpid(), tuple(tables), spec.leaves, port)
        self._process: _Process | None = None
        self._connection: Connection | None = None

    def __enter__(self) -> EmbeddedServer:
        self._process = _Process(self._config)
        return self

    def __exit__(self, *_: Any) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.close()
        self._process = self._connection = None

    def wait_ready(self, timeout: float = START_SECONDS) -> ServerInfo:
        """Waits until the server is up, at most `timeout` seconds.

        Raises:
          UsageError: the port is in use.
          RldsBeamError: the server ended, or was not up in time.
        """
        from rlds_beam.reverb.connection import Connection

        if self._connection is None:
            self._connection = Connection(f"127.0.0.1:{self._started.answer(timeout)}")
        return self._connection.info(timeout)

    @property
    def address(self) -> str:
        """`127.0.0.1:port`; waits until the server is up."""
        if self._connection is None:
            self.wait_ready()
        assert self._connection is not None
        return self._connection.address

    def check(self) -> None:
        """Raises RldsBeamError if the server has ended."""
        self._started.check()

    @property
    def _started(self) -> _Process:
        if self._process is None:
            raise RldsBeamError("the Reverb server is not running: enter its context first")
        return self._process


class _Process:
    """A server process and its output."""

    def __init__(self, config: _Config):
        self._home = tempfile.TemporaryDirectory(prefix="rlds-beam-")
        with open(self._log, "w") as log:
            self._process = subprocess.Popen(
                worker_status.command(__name__),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=None if worker_status.is_verbose() else log,
                text=True,
            )
        with contextlib.suppress(BrokenPipeError), _pipe(self._process.stdin) as stdin:
            stdin.write(json.dumps(dataclasses.asdict(dataclasses.replace(config, home=self._home.name))))

    def answer(self, timeout: float) -> int:
        """Waits for the server's port; raises as `EmbeddedServer.wait_ready` does."""
        stdout, poll = _pipe(self._process.stdout), select.poll()
        poll.register(stdout, select.POLLIN)
        if not poll.poll(timeout * 1000):
            raise RldsBeamError(f"the Reverb server was not up within {timeout:g} s ({self._last_words()})")
        answer = json.loads(stdout.readline() or "{}")
        if "port" in answer:
            return int(answer["port"])
        if "error" in answer:
            raise (UsageError if answer["exit_code"] == UsageError.exit_code else RldsBeamError)(answer["error"])
        self._process.wait()
        raise RldsBeamError(f"the Reverb server did not start: {self._last_words()}")

    def check(self) -> None:
        if self._process.poll() is not None:
            raise RldsBeamError(f"the Reverb server ended, and its items are lost: {self._last_words()}")

    def close(self) -> None:
        self._process.kill()  # it has nothing to clean up, and ignores other signals
        self._process.wait()
        _pipe(self._process.stdout).close()
        self._home.cleanup()

    @property
    def _log(self) -> str:
        return os.path.join(self._home.name, "server.log")

    def _last_words(self) -> str:
        with open(self._log, errors="replace") as log:
            lines = [line.strip() for line in log if line.strip()]
        code = self._process.poll()
        ended = "it is still running" if code is None else f"exit code {code}"
        return f"{ended}; its last output: {lines[-1]}" if lines else ended


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


# In the process


@dataclasses.dataclass(frozen=True)
class _Config:
    """The configuration of a server process.

    Attributes:
      parent: the process ID of the parent.
      tables: the tables.
      leaves: the leaves of the tables' frames.
      port: the port; None for a free one.
      home: the directory for files of the server.
    """

    parent: int
    tables: tuple[ServedTable, ...]
    leaves: tuple[SpecLeaf, ...]
    port: int | None
    home: str = ""


def _main() -> None:
    # Other output must not mix with the answer.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    config = decode_json(sys.stdin.read(), _Config, "the configuration")
    threading.Thread(target=_end_with, args=(config.parent,), daemon=True).start()
    try:
        server = _start(config)
    except RldsBeamError as error:
        print(json.dumps({"error": str(error), "exit_code": error.exit_code}), file=answer, flush=True)
        sys.exit(1)
    print(json.dumps({"port": server.port}), file=answer, flush=True)
    while True:
        signal.pause()


def _start(config: _Config) -> Any:
    """Starts the `reverb.Server`."""
    with needs("agents", "a Reverb server needs Reverb, TensorFlow and TF-Agents"):
        import reverb
        from tf_agents.specs import tensor_spec

    # As TF-Agents' observers and `push_rlds_to_reverb` need it: a `Trajectory` of shapes [None, ...].
    signature = tensor_spec.add_outer_dim(TrajectorySpec(config.leaves, ()).to_tf(per_frame=True))
    tables = [_make_table(reverb, table, signature) for table in config.tables]
    checkpointer = reverb.checkpointers.DefaultCheckpointer(config.home)  # the default one makes its own directory
    with _reserve_port(config.port) as reserved:
        return reverb.Server(tables, reserved.getsockname()[1], checkpointer)


def _make_table(reverb: Any, table: ServedTable, signature: Any) -> Any:
    if table.kind in ("queue", "stack"):
        return getattr(reverb.Table, table.kind)(table.name, table.max_size, signature=signature)
    selectors = reverb.selectors
    return reverb.Table(
        table.name,
        sampler=selectors.Prioritized(1.0) if table.kind == "prioritized" else selectors.Uniform(),
        remover=selectors.Fifo(),
        max_size=table.max_size,
        rate_limiter=reverb.rate_limiters.MinSize(1),
        signature=signature,
    )


def _reserve_port(port: int | None) -> socket.socket:
    """Binds a port, None for a free one, on which Reverb can listen while the socket is open.

    gRPC binds with SO_REUSEPORT, so Reverb alone would share a port with another server, and each would get some of the
    clients.

    Raises:
      UsageError: another process listens on the port, or it cannot be bound.
    """
    dual = socket.has_dualstack_ipv6()
    reserved = socket.socket(socket.AF_INET6 if dual else socket.AF_INET)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of an earlier server may linger
    if dual:
        reserved.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    try:
        reserved.bind(("::" if dual else "0.0.0.0", port or 0))
    except OSError as error:
        reserved.close()
        if error.errno == errno.EADDRINUSE:
            raise UsageError(f"--port={port}: another process listens on it; omit --port to use a free one") from error
        raise UsageError(f"--port={port}: {error.strerror}") from error
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return reserved


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_WATCH_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    _main()
