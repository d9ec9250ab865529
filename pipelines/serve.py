"""`rlds-beam serve`: a Reverb server whose tables match a dataset."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlds_beam import interrupts
from rlds_beam.errors import UsageError
from rlds_beam.options import option
from rlds_beam.text import join_lines
from rlds_beam.trajectories.options import FrameOptions, ItemOptions

if TYPE_CHECKING:
    from rlds_beam.reverb.protocol.info import ServerInfo
    from rlds_beam.reverb.serving.server import EmbeddedServer
    from rlds_beam.trajectories.spec import TrajectorySpec

__all__ = ["ServeConfig", "read_spec", "serve"]

USAGE = "--like=INPUT --tables=NAME:KIND"
EXAMPLES = """
    rlds-beam serve --like=data/point_mass/1.0.0 --tables=replay:uniform --port=8000
    rlds-beam serve --like=data/pairs --checkpoint=/data/bridge_reverb
    rlds-beam serve --load=data/reverb
"""

_LOOK_SECONDS = 0.2


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeConfig(FrameOptions):
    """Serve Reverb tables whose signatures match a dataset's trajectories, until interrupted."""

    like: str | None = option(
        None, "dataset that the tables are for: RLDS, or a directory that convert wrote", metavar="DIR"
    )
    features: str | None = option(None, "features.json, if it is not in the dataset directory", metavar="FILE")
    tables: tuple[str, ...] = option(
        (),
        "NAME[:KIND[:MAX_SIZE]], comma separated (default: uniform_table:uniform:1000000000). Kinds: "
        "uniform (for TF-Agents' ReverbReplayBuffer) and prioritized sample an item any number of times, and drop "
        "the oldest item when the table is full; queue and stack sample each item once, and block inserts when the "
        "table is full",
        metavar="NAMES",
    )
    priority_exponent: float = option(
        1.0, "priority exponent of prioritized tables: 1 samples in proportion to priority, 0 uniformly"
    )
    host: str = option(
        "127.0.0.1",
        "address to listen on: 127.0.0.1 for this machine only; 0.0.0.0 for every client that can reach it. Reverb has "
        "no passwords: every client can read and delete all tables",
    )
    port: int | None = option(None, "port to listen on (default: a free one)", least=0)
    checkpoint: str | None = option(
        None,
        "directory for checkpoints: load the latest one at the start, write and verify one at the end",
        metavar="DIR",
    )
    load: str | None = option(
        None, "checkpoint, or directory of checkpoints, to start from; it defines the tables", metavar="DIR"
    )


def serve(config: ServeConfig) -> EmbeddedServer:
    """Creates the server; enter its context to start it.

    Raises:
      UsageError: the dataset, the tables, or the directories cannot be used.
    """
    from rlds_beam.reverb.serving.served_tables import parse_tables
    from rlds_beam.reverb.serving.server import EmbeddedServer

    tables = config.tables or (() if config.like is None else ("uniform_table",))
    return EmbeddedServer(
        parse_tables(tables, config.priority_exponent),
        None if config.like is None else read_spec(config.like, config, config.features),
        host=config.host,
        port=config.port,
        checkpoint=config.checkpoint,
        load=config.load,
    )


def read_spec(like: str, options: FrameOptions, features: str | None = None) -> TrajectorySpec:
    """The frames' spec of an RLDS dataset, or of the output of `convert`.

    Raises:
      UsageError: the dataset cannot be opened, or is already converted and so cannot take the options.
    """
    from rlds_beam.formats.inputs import open_source
    from rlds_beam.formats.trajectories.written_items import is_converted, open_converted
    from rlds_beam.trajectories.spec import trajectory_spec

    if not is_converted(like):
        return trajectory_spec(open_source(like, None, features).schema, options, ItemOptions())
    for field in dataclasses.fields(FrameOptions):
        if getattr(options, field.name) != field.default:
            raise UsageError(
                f"--{field.name}: {like} is already converted, with the options of that conversion: remove this flag"
            )
    return open_converted(like).spec


def main(config: ServeConfig) -> int:
    """Runs the command: serves until SIGINT or SIGTERM, and returns the exit code."""
    from rlds_beam.reverb.serving.checkpoints import read_sizes, read_tables
    from rlds_beam.reverb.serving.server import verify_checkpoint

    with serve(config) as server:
        info = server.wait_ready()
        ended = _ends_with_signal()
        print(_text(config, server, info), flush=True)
        while not ended.wait(_LOOK_SECONDS):
            server.check()
        if config.checkpoint is None:
            return 0
        try:
            path = server.checkpoint()
        except KeyboardInterrupt:
            print("rlds-beam: interrupted; no checkpoint was written", file=sys.stderr)
            return 130
        sizes = read_sizes(read_tables(path))
    verify_checkpoint(path, sizes)
    print(f"wrote     {path}: {_sizes(sizes)}; verified by loading it into another server")
    return 0


def _ends_with_signal() -> interrupts.SignalEvent:
    """An event set by the first SIGINT or SIGTERM; a second one raises KeyboardInterrupt."""
    ended = interrupts.SignalEvent()

    def end(*_: Any) -> None:
        if ended.is_set():
            raise KeyboardInterrupt
        ended.set()

    interrupts.on_interrupt(end)
    return ended


def _text(config: ServeConfig, server: EmbeddedServer, info: ServerInfo) -> str:
    """The address and the tables, for a terminal."""
    from rlds_beam.reverb.serving.loopback import EVERYWHERE
    from rlds_beam.reverb.serving.served_tables import table_kind

    port = server.address.rpartition(":")[2]
    if config.host in EVERYWHERE:
        lines = [f"serving   0.0.0.0:{port}, for every client that can reach this machine (no password)"]
    else:
        lines = [f"serving   {server.address}, for this machine only"]
    if server.loaded_from is not None:
        lines.append(f"loaded    {server.loaded_from}")
    lines.append("tables")
    for name, table in info.tables.items():
        lines.append(f"  {name}: {table_kind(table)}, {table.current_size:,} items of at most {table.max_size:,}")
    return join_lines(lines)


def _sizes(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{size:,} items in {name}" for name, size in sizes.items())
