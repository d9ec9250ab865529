"""`rlds-beam serve`: a Reverb server whose tables match a dataset."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from typing import TYPE_CHECKING

from rlds_beam import worker_status
from rlds_beam.errors import UsageError
from rlds_beam.options import option, options_given
from rlds_beam.trajectories.options import FrameOptions, ItemOptions

if TYPE_CHECKING:
    from rlds_beam.reverb.serving import EmbeddedServer
    from rlds_beam.trajectories.spec import TrajectorySpec

__all__ = ["ServeConfig", "read_spec", "serve"]

USAGE = "--like=INPUT --tables=NAME:KIND"
EXAMPLES = """
    rlds-beam serve --like=data/point_mass/1.0.0 --tables=replay:uniform --port=8000
"""

_LOOK_SECONDS = 0.2


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeConfig(FrameOptions):
    """Serve Reverb tables whose signatures match a dataset's trajectories, until interrupted."""

    like: str | None = option(
        None, "dataset that the tables are for: RLDS, or a directory that convert wrote", metavar="DIR"
    )
    tables: tuple[str, ...] = option(
        ("uniform_table",),
        "NAME[:KIND[:MAX_SIZE]], comma separated (default: uniform_table:uniform:1000000000). Kinds: "
        "uniform (for TF-Agents' ReverbReplayBuffer) and prioritized sample an item any number of times, and drop "
        "the oldest item when the table is full; queue and stack sample each item once, and block inserts when the "
        "table is full",
        metavar="NAMES",
    )
    port: int | None = option(None, "port to listen on (default: a free one)", least=0)


def serve(config: ServeConfig) -> EmbeddedServer:
    """Creates the server; enter its context to start it.

    Raises:
      UsageError: the dataset or the tables cannot be used.
    """
    from rlds_beam.reverb.serving import EmbeddedServer, parse_tables

    if config.like is None:
        raise UsageError("--like=INPUT is missing: the dataset that the tables are for")
    return EmbeddedServer(parse_tables(config.tables), read_spec(config.like, config), port=config.port)


def read_spec(like: str, options: FrameOptions) -> TrajectorySpec:
    """The frames' spec of an RLDS dataset, or of the output of `convert`.

    Raises:
      UsageError: the dataset cannot be opened, or is already converted and so cannot take the options.
    """
    from rlds_beam.formats.inputs import open_source
    from rlds_beam.formats.trajectories.written_items import is_converted, open_converted
    from rlds_beam.trajectories.spec import trajectory_spec

    if not is_converted(like):
        return trajectory_spec(open_source(like).schema, options, ItemOptions())
    for name in options_given(options, FrameOptions):
        raise UsageError(f"--{name}: {like} is already converted, with the options of that conversion: remove it")
    return open_converted(like).spec


def main(config: ServeConfig) -> int:
    """Runs the command: serves until a signal ends it, and returns the exit code."""
    before = worker_status.interrupts()
    with serve(config) as server, contextlib.suppress(KeyboardInterrupt):
        info = server.wait_ready()
        lines = [f"serving   {server.address}, for every client that can reach this machine (no password)", "tables"]
        kinds = {name: kind for name, _, kind in (text.partition(":") for text in config.tables)}
        for name, table in info.tables.items():
            kind = kinds[name].partition(":")[0] or "uniform"
            lines.append(f"  {name}: {kind}, {table.current_size:,} items of at most {table.max_size:,}")
        print("\n".join(lines), flush=True)
        while worker_status.interrupts() == before:  # a finalizer may have dropped the exception
            time.sleep(_LOOK_SECONDS)
            server.check()
    return 0
