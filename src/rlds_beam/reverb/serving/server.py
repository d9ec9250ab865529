"""Reverb servers in a separate process, with tables that match a dataset."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any

from rlds_beam import worker_status
from rlds_beam.encoding.structured_values import SignatureLeaf
from rlds_beam.errors import NotVerifiedError, RldsBeamError, UsageError
from rlds_beam.output.scratch import ScratchDirectory
from rlds_beam.reverb.connection import Connection
from rlds_beam.reverb.protocol.info import ServerInfo, TableInfo
from rlds_beam.reverb.serving import checkpoints
from rlds_beam.reverb.serving import process as server_process
from rlds_beam.reverb.serving.loopback import EVERYWHERE, LOOPBACK
from rlds_beam.reverb.serving.process import ServerConfig
from rlds_beam.reverb.serving.served_tables import ServedTable, table_kind
from rlds_beam.trajectories.spec import TrajectorySpec

START_SECONDS = 120.0
"""Maximum seconds for a server to start, which is mostly importing TensorFlow (3 to 7 seconds)."""

CHECKPOINT_SECONDS = 3600.0
"""Maximum seconds to write or load a checkpoint."""


class EmbeddedServer:
    """A Reverb server in a separate process, which ends with the context or with this process.

    Entering the context starts the process without waiting; call `wait_ready` when you need it. The tables' signatures
    are a TF-Agents `Trajectory` of shapes [None, ...], so they accept items of any number of frames.

    Args:
      tables: the tables to serve, in addition to those of the checkpoint.
      spec: the spec of the frames; None if all tables come from the checkpoint.
      host: one of `loopback.LOOPBACK` (this machine only) or `loopback.EVERYWHERE` (every client that can reach it:
        Reverb has no passwords).
      port: the port to listen on; None for a free one.
      checkpoint: the directory for checkpoints; the server starts from the latest one in it, if any.
      load: the checkpoint to start from, or a directory of checkpoints, whose latest is used.

    Attributes:
      loaded_from: the checkpoint that the server starts from; None if it starts empty.
      loaded: the tables of that checkpoint.

    Raises:
      UsageError: the tables or directories cannot be used, or a table of the checkpoint differs from the requested one;
        nothing was started.
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
                f"--host={host}: expected {LOOPBACK[0]} (this machine only) or {EVERYWHERE[0]} (every client)"
            )
        if port is not None and not 0 < port < 1 << 16:
            raise UsageError(f"--port={port}: expected 1 to 65535")
        self._root = None if checkpoint is None else checkpoints.open_root(checkpoint)
        self.loaded_from = _start_from(self._root, load)
        self.loaded = {} if self.loaded_from is None else checkpoints.read_tables(self.loaded_from)
        self._asked, self._spec = tuple(tables), spec
        new = [table.name for table in tables if table.name not in self.loaded]
        if new and spec is None:
            where = "" if self.loaded_from is None else f"{self.loaded_from} has no such table; "
            raise UsageError(f"table {new[0]!r}: {where}name a dataset for its signature with --like=INPUT")
        if not tables and not self.loaded:
            raise UsageError("no tables to serve: add --like=INPUT and --tables=replay:uniform, or --load=DIR")
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
        """Waits until the server is up, and verifies that it loaded the checkpoint.

        Args:
          timeout: the seconds to wait; by default `START_SECONDS`, or `CHECKPOINT_SECONDS` with a checkpoint.

        Raises:
          UsageError: the port is in use.
          NotVerifiedError: the server's tables differ from the checkpoint.
          RldsBeamError: the server ended, or was not up in time.
        """
        timeout = timeout or (CHECKPOINT_SECONDS if self.loaded_from else START_SECONDS)
        if self._connection is not None:
            return self._connection.info(timeout)
        deadline = time.monotonic() + timeout
        connection = Connection(f"127.0.0.1:{self._started.answer(timeout)}")
        info = connection.info(max(1.0, deadline - time.monotonic()))
        checkpoints.check_sizes(
            f"the server that loaded {self.loaded_from}", info.tables, checkpoints.read_sizes(self.loaded)
        )
        self._connection = connection
        return info

    @property
    def address(self) -> str:
        """`127.0.0.1:port`; waits until the server is up."""
        return self._connected.address

    def info(self, timeout: float) -> ServerInfo:
        """The current state of the server; raises as `Connection.info` does."""
        return self._connected.info(timeout)

    def check(self) -> None:
        """Raises RldsBeamError if the server has ended."""
        self._started.check()

    def checkpoint(self, timeout: float = CHECKPOINT_SECONDS) -> str:
        """Makes the server write a checkpoint and returns its path once it is on the disk. Deletes earlier ones.

        Raises:
          NotVerifiedError: the checkpoint is incomplete.
          RldsBeamError: the server could not write it within `timeout` seconds.
        """
        if self._root is None:
            raise UsageError("the server was started without --checkpoint=DIR, so it cannot write a checkpoint")
        path = self._connected.checkpoint(timeout)
        checkpoints.settle(path)
        return path

    @property
    def _started(self) -> _ServerProcess:
        if self._process is None:
            raise RldsBeamError("the Reverb server is not running: enter its context first")
        return self._process

    @property
    def _connected(self) -> Connection:
        if self._connection is None:
            self.wait_ready()
        assert self._connection is not None
        return self._connection

    def _check_table(self, asked: ServedTable, actual: TableInfo) -> None:
        """Compares a table of the checkpoint, whose settings would win, with the requested one."""
        differences = []
        if table_kind(actual) != asked.kind:
            differences.append(f"is {table_kind(actual)}, not {asked.kind}")
        if asked.max_size not in (None, actual.max_size):
            differences.append(f"has room for {actual.max_size:,} items, not {asked.max_size:,}")
        if self._spec is not None and actual.signature != signature_leaves(self._spec):
            differences.append(f"holds other items: {_difference(signature_leaves(self._spec), actual.signature)}")
        if differences:
            raise UsageError(
                f"table {asked.name!r} of {self.loaded_from} {differences[0]}; request the same settings, or use "
                "another name"
            )


class _ServerProcess:
    """A server process and its output."""

    def __init__(self, config: ServerConfig):
        self._home = ScratchDirectory()
        if config.root is None:
            config = dataclasses.replace(config, root=os.path.join(self._home.name, "checkpoints"))
        verbose = worker_status.is_verbose()
        with open(self._log, "w") as log:
            self._process = subprocess.Popen(
                worker_status.command(server_process.__name__),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=None if verbose else log,
                text=True,
            )
        with contextlib.suppress(BrokenPipeError), _pipe(self._process.stdin) as stdin:
            stdin.write(config.to_json())

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


def verify_checkpoint(path: str, expected: Mapping[str, int], timeout: float = CHECKPOINT_SECONDS) -> None:
    """Verifies a checkpoint by loading it in a new server and comparing the sizes of its tables.

    The new server holds the whole checkpoint in memory, so end the server that wrote it first.

    Args:
      path: the path of the checkpoint.
      expected: the number of items by table.
      timeout: the seconds to load it.

    Raises:
      NotVerifiedError: the checkpoint is not finished, does not load, or has other sizes.
    """
    try:
        with EmbeddedServer((), None, load=path) as server:
            checkpoints.check_sizes(path, server.loaded, expected)
            server.wait_ready(timeout)
    except NotVerifiedError:
        raise
    except RldsBeamError as error:
        raise NotVerifiedError(f"the checkpoint {path} could not be verified: {error}") from error


def signature_leaves(spec: TrajectorySpec) -> tuple[SignatureLeaf, ...]:
    """The signature of tables served for `spec`."""
    return tuple(SignatureLeaf(leaf.path, leaf.dtype, (None, *leaf.shape)) for leaf in spec.leaves)


def _difference(asked: Sequence[SignatureLeaf], actual: Sequence[SignatureLeaf] | None) -> str:
    if actual is None:
        return "it has no signature"
    there = {leaf.path: leaf for leaf in actual}
    for leaf in asked:
        if there.get(leaf.path) != leaf:
            other = there.get(leaf.path)
            is_ = "missing" if other is None else f"{other.dtype}{_shape(other)}"
            return f"{leaf.path} is {is_}, but --like has {leaf.dtype}{_shape(leaf)}"
    return f"it also has {(there.keys() - {leaf.path for leaf in asked}).pop()}"


def _shape(leaf: SignatureLeaf) -> str:
    return str(list(leaf.shape or ())).replace("None", "?")


def _start_from(root: str | None, load: str | None) -> str | None:
    """The checkpoint that a server will load: the root's latest one, if any, else `load`."""
    resumed = None if root is None else checkpoints.latest_checkpoint(root)
    requested = None if load is None else checkpoints.find_checkpoint(load)
    if resumed is None or requested is None or os.path.realpath(resumed) == os.path.realpath(requested):
        return resumed or requested
    raise UsageError(
        f"--checkpoint={root} already has a checkpoint, from which Reverb continues instead of --load={load}; omit "
        "--load, or name an empty directory"
    )
