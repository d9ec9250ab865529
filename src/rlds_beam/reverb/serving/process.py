"""The process of a Reverb server: `python -m rlds_beam.reverb.serving.process`, started by `serving.EmbeddedServer`.

Reads a `ServerConfig` as JSON from standard input and answers with one line of JSON: `{"port": 8000}` once it is up, or
`{"error": "...", "exit_code": 2}`. Serves until its parent ends. It ignores all signals except SIGKILL: its parent
handles them, and requests a checkpoint before the end.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import threading
import time
from typing import Any

from rlds_beam.encoding.checked_json import from_json
from rlds_beam.errors import RldsBeamError, needs
from rlds_beam.reverb.serving.loopback import keep_to_loopback, reserve_port
from rlds_beam.reverb.serving.served_tables import ServedTable
from rlds_beam.trajectories.spec import SpecLeaf, TrajectorySpec

_WATCH_SECONDS = 0.2


@dataclasses.dataclass(frozen=True)
class ServerConfig:
    """The configuration of a server process.

    Attributes:
      parent: the process ID of the parent.
      tables: the tables.
      leaves: the leaves of the tables' frames; None takes the signatures from the checkpoint.
      port: the port; None for a free one.
      loopback: whether only this machine can connect.
      root: the directory for checkpoints; the latest one in it is loaded. Set before the process starts.
      load: the checkpoint to load if the root has none.
    """

    parent: int
    tables: tuple[ServedTable, ...]
    leaves: tuple[SpecLeaf, ...] | None
    port: int | None
    loopback: bool
    root: str | None
    load: str | None

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ServerConfig:
        return from_json(cls, json.loads(text), "the configuration")


def main() -> None:
    # Other output must not mix with the answer.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    config = ServerConfig.from_json(sys.stdin.read())
    threading.Thread(target=_end_with, args=(config.parent,), daemon=True).start()
    try:
        server = start(config)
    except RldsBeamError as error:
        print(json.dumps({"error": str(error), "exit_code": error.exit_code}), file=answer, flush=True)
        sys.exit(1)
    print(json.dumps({"port": server.port}), file=answer, flush=True)
    while True:
        signal.pause()


def start(config: ServerConfig) -> Any:
    """Starts the `reverb.Server` in this process.

    Raises:
      UsageError: the port is in use.
      MissingExtraError: Reverb or TF-Agents is not installed.
      RldsBeamError: the server cannot be restricted to loopback.
    """
    with needs("agents", "a Reverb server needs Reverb, TensorFlow and TF-Agents"):
        import reverb
        import tf_agents.specs  # noqa: F401  (for make_signature)

    with reserve_port(config.port) as reserved:
        port = reserved.getsockname()[1]
        checkpointer = reverb.checkpointers.DefaultCheckpointer(config.root, fallback_checkpoint_path=config.load)
        server = reverb.Server(make_tables(config), port, checkpointer)
    if config.loopback:
        keep_to_loopback(port)
    return server


def make_tables(config: ServerConfig) -> list[Any]:
    """Creates the `reverb.Table` objects."""
    signature = None if config.leaves is None else make_signature(config.leaves)
    return [_make_table(table, signature) for table in config.tables]


def make_signature(leaves: tuple[SpecLeaf, ...]) -> Any:
    """The signature that TF-Agents' observers and `push_rlds_to_reverb` need: a `Trajectory` of shapes [None, ...]."""
    from tf_agents.specs import tensor_spec

    return tensor_spec.add_outer_dim(TrajectorySpec(leaves, ()).to_tf(per_frame=True))


def _make_table(table: ServedTable, signature: Any) -> Any:
    import reverb

    if table.kind == "queue":
        return reverb.Table.queue(table.name, table.capacity, signature=signature)
    if table.kind == "stack":
        return reverb.Table.stack(table.name, table.capacity, signature=signature)
    prioritized = table.kind == "prioritized"
    selectors = reverb.selectors
    return reverb.Table(
        table.name,
        sampler=selectors.Prioritized(table.priority_exponent) if prioritized else selectors.Uniform(),
        remover=selectors.Fifo(),
        max_size=table.capacity,
        rate_limiter=reverb.rate_limiters.MinSize(1),
        signature=signature,
    )


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_WATCH_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    main()
