"""Reverb servers of our own: tables that fit a dataset, in a separate process."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any

from rlds_beam import worker_status
from rlds_beam.encoding.structured_values import SignatureLeaf
from rlds_beam.errors import NotVerifiedError, RldsBeamError, UsageError
from rlds_beam.reverb.connection import Connection
from rlds_beam.reverb.protocol.info import ServerInfo, TableInfo
from rlds_beam.reverb.serving import checkpoints
from rlds_beam.reverb.serving import process as server_process
from rlds_beam.reverb.serving.loopback import EVERYWHERE, LOOPBACK
from rlds_beam.reverb.serving.process import ServerConfig
from rlds_beam.reverb.serving.served_tables import ServedTable, kind_of
from rlds_beam.trajectories.spec import TrajectorySpec

START_SECONDS = 120.0
"""How long a server may take to start: most of it is importing TensorFlow, some 3 to 7 seconds."""

CHECKPOINT_SECONDS = 3600.0
"""How long a checkpoint may take to be written, or to be loaded."""


class EmbeddedServer:
    """A Reverb server in a process of its own, which is gone when the context is left, or when this process is.

    Entering the context starts the process and does not wait for it: do other work, then call
    `wait_ready`. The tables' signatures are a TF-Agents `Trajectory` of shapes [None, ...]: they take items of any
    number of frames.

    Args:
      tables: to serve. Tables that the checkpoint has besides are served as they are there.
      spec: of the frames; None where all tables come from the checkpoint.
      host: one of `loopback.LOOPBACK` (this machine alone) or `loopback.EVERYWHERE` (every client that can reach it:
        Reverb has no passwords).
      port: to listen on; a free one, if None.
      checkpoint: directory for checkpoints; if it holds one already, the server starts from that.
      load: the checkpoint to start from, or a directory of checkpoints, of which the latest is taken.

    Attributes:
      loaded_from: the checkpoint that it starts from; None: it starts empty.
      loaded: the tables of that checkpoint.

    Raises:
      UsageError: the tables or directories cannot be used as they are, or a table of the checkpoint is not what
        is asked for; nothing was started.
    """

    def __init__(
        self,
        tables: Sequence[ServedTable],
        spec: TrajectorySpec | None,
        *,
        host: str = LOOPBACK[0],
        port: int | None = None,
        checkpoint: str | None = None,
        load: str | None = None,
    ):
        if host not in (*LOOPBACK, *EVERYWHERE):
            raise UsageError(
                f"--host={host}: Reverb listens on loopback ({LOOPBACK[0]}) or everywhere ({EVERYWHERE[0]})"
            )
        if port is not None and not 0 < port < 1 << 16:
            raise UsageError(f"--port={port}: a port is between 1 and 65535")
        self._root = None if checkpoint is None else checkpoints.open_root(checkpoint)
        self.loaded_from = _start_from(self._root, load)
        self.loaded = {} if self.loaded_from is None else checkpoints.read_tables(self.loaded_from)
        self._asked, self._spec = tuple(tables), spec
        new = [table.name for table in tables if table.name not in self.loaded]
        if new and spec is None:
            where = "" if self.loaded_from is None else f"{self.loaded_from} has no such table, and "
            raise UsageError(f"table {new[0]!r}: {where}nothing says what it is to hold; --like=INPUT does")
        if not tables and not self.loaded:
            raise UsageError("no tables to serve: --like=INPUT and --tables=replay:uniform, or --load=DIR")
        for table in tables:
            if table.name in self.loaded:
                self._check_table(table, self.loaded[table.name])
        self._host, self._port = host, port
        self._process: _ServerProcess | None = None
        self._connection: Connection | None = None

    def __enter__(self) -> EmbeddedServer:
        names = {table.name for table in self._asked}
        self._process = _ServerProcess(
            ServerConfig(
                parent=os.getpid(),
                tables=(*self._asked, *(ServedTable(name) for name in self.loaded if name not in names)),
                leaves=None if self._spec is None else self._spec.leaves,
                port=self._port,
                loopback=self._host in LOOPBACK,
                root=self._root,
                load=self.loaded_from,
            )
        )
        return self

    def __exit__(self, *_: Any) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.close()
        self._process = self._connection = None

    def wait_ready(self, timeout: float | None = None) -> ServerInfo:
        """Waits until the server is up, and sees that it holds what the checkpoint does.

        Args:
          timeout: seconds; `START_SECONDS` by default, or `CHECKPOINT_SECONDS` where it loads a checkpoint.

        Raises:
          UsageError: the port is taken.
          NotVerifiedError: the server did not load what the checkpoint holds.
          RldsBeamError: the server ended, or is not up in time.
        """
        timeout = timeout or (CHECKPOINT_SECONDS if self.loaded_from else START_SECONDS)
        if self._connection is not None:
            return self._connection.info(timeout)
        deadline = time.monotonic() + timeout
        connection = Connection(f"127.0.0.1:{self._started.answer(timeout)}")
        info = connection.info(max(1.0, deadline - time.monotonic()))
        checkpoints.check_sizes(
            f"the server that loaded {self.loaded_from}", info.tables, checkpoints.sizes_of(self.loaded)
        )
        self._connection = connection
        return info

    @property
    def address(self) -> str:
        """`127.0.0.1:port`; waits until the server is up."""
        return self._connected.address

    def info(self, timeout: float) -> ServerInfo:
        """The tables at this moment; raises as `Connection.info`."""
        return self._connected.info(timeout)

    def check(self) -> None:
        """Raises RldsBeamError if the server has ended."""
        self._started.check()

    def checkpoint(self, timeout: float = CHECKPOINT_SECONDS) -> str:
        """Has the server write a checkpoint; its path, when it is on the disk. Earlier ones there are deleted.

        Raises:
          NotVerifiedError: it is not all there.
          RldsBeamError: the server could not write it within `timeout` seconds.
        """
        if self._root is None:
            raise UsageError("a server without --checkpoint=DIR has nowhere to write one")
        path = self._connected.checkpoint(timeout)
        checkpoints.settle(path)
        return path

    @property
    def _started(self) -> _ServerProcess:
        if self._process is None:
            raise RldsBeamError("the Reverb server is not running: it does only inside of its context")
        return self._process

    @property
    def _connected(self) -> Connection:
        if self._connection is None:
            self.wait_ready()
        assert self._connection is not None
        return self._connection

    def _check_table(self, asked: ServedTable, actual: TableInfo) -> None:
        """Compares a table with what was requested: a checkpoint's own settings win over ours."""
        differences = []
        if kind_of(actual) != asked.kind:
            differences.append(f"is {kind_of(actual)}, not {asked.kind}")
        if asked.max_size not in (None, actual.max_size):
            differences.append(f"has room for {actual.max_size:,} items, not {asked.max_size:,}")
        if self._spec is not None and actual.signature != signature_leaves(self._spec):
            differences.append(f"holds other items: {_difference(signature_leaves(self._spec), actual.signature)}")
        if differences:
            raise UsageError(
                f"table {asked.name!r} of {self.loaded_from} {differences[0]}; request its settings, or give the "
                "new one another name"
            )


class _ServerProcess:
    """A server process, and its output."""

    def __init__(self, config: ServerConfig):
        self._home = tempfile.TemporaryDirectory(prefix="rlds-beam-reverb-", ignore_cleanup_errors=True)
        if config.root is None:
            config = dataclasses.replace(config, root=os.path.join(self._home.name, "checkpoints"))
        verbose = worker_status.is_verbose()
        with open(self._log, "w") as log:
            self._process = subprocess.Popen(
                worker_status.command(server_process.__name__),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=None if verbose else log, text=True,
            )  # fmt: skip
        with contextlib.suppress(BrokenPipeError), _pipe(self._process.stdin) as stdin:
            stdin.write(config.to_json())

    def answer(self, timeout: float) -> int:
        """The port that the server listens on; raises as `EmbeddedServer.wait_ready`."""
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
            raise RldsBeamError(f"the Reverb server ended, and what it held is gone: {self._last_words()}")

    def close(self) -> None:
        self._process.kill()  # it has nothing to finish, and ignores other signals
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
        return f"{ended}; it last said: {lines[-1]}" if lines else ended


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def verify_checkpoint(path: str, expected: Mapping[str, int], timeout: float = CHECKPOINT_SECONDS) -> None:
    """Verifies a checkpoint: a new server loads it, and has the tables and sizes expected.

    That server holds all of it in memory: end the one that wrote it first.

    Args:
      path: of the checkpoint itself.
      expected: items by table.
      timeout: seconds to load it.

    Raises:
      NotVerifiedError: it is not finished, does not load, or holds something else.
    """
    try:
        with EmbeddedServer((), None, load=path) as server:
            checkpoints.check_sizes(path, server.loaded, expected)
            server.wait_ready(timeout)
    except NotVerifiedError:
        raise
    except RldsBeamError as error:
        raise NotVerifiedError(f"the checkpoint {path} cannot be relied on: {error}") from error


def signature_leaves(spec: TrajectorySpec) -> tuple[SignatureLeaf, ...]:
    """The signature of the tables that are served for `spec`."""
    return tuple(SignatureLeaf(leaf.path, leaf.dtype, (None, *leaf.shape)) for leaf in spec.leaves)


def _difference(asked: Sequence[SignatureLeaf], actual: Sequence[SignatureLeaf] | None) -> str:
    if actual is None:
        return "it has no signature"
    there = {leaf.path: leaf for leaf in actual}
    for leaf in asked:
        if there.get(leaf.path) != leaf:
            other = there.get(leaf.path)
            is_ = "missing" if other is None else f"{other.dtype}{_shape(other)}"
            return f"{leaf.path} is {is_}, where --like has {leaf.dtype}{_shape(leaf)}"
    return f"it has {(there.keys() - {leaf.path for leaf in asked}).pop()} besides"


def _shape(leaf: SignatureLeaf) -> str:
    return str(list(leaf.shape or ())).replace("None", "?")


def _start_from(root: str | None, load: str | None) -> str | None:
    """The checkpoint that a server will load, which the root's own is where it has one."""
    resumed = None if root is None else checkpoints.latest_checkpoint(root)
    requested = None if load is None else checkpoints.find_checkpoint(load)
    if resumed is None or requested is None or os.path.realpath(resumed) == os.path.realpath(requested):
        return resumed or requested
    raise UsageError(
        f"--checkpoint={root} holds a checkpoint already, and Reverb continues from that, not from --load={load}; "
        "leave --load out, or name an empty directory"
    )
