"""Options for writing to Reverb."""

from __future__ import annotations

import dataclasses
from typing import Literal

from rlds_beam.errors import UsageError
from rlds_beam.options import Options, option

WriterKind = Literal["stream", "observer"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReverbOptions(Options):
    """Reverb servers and tables."""

    reverb: tuple[str, ...] = option((), "servers (comma separated), or embedded", metavar="HOST:PORT")
    table: tuple[str, ...] = option((), "tables to fill (comma separated); every item goes into each", metavar="NAMES")
    writer: WriterKind = option("stream", "stream writes each item once; observer, of TF-Agents, at least once")
    columns: bool = option(False, "push the columns of --connectors, one item per row", needs="writer=stream")
    module: str | None = option(None, "module whose columns to push, if the connectors name several", needs="columns")
    priority: str = option("1", "of items: a number, a leaf of the frames (observation/progress), or module:function")
    chunk_length: int | None = option(None, "frames per chunk, the unit sent to a sampler (default: by size)", least=1)
    timeout: float = option(60.0, "seconds to wait for a server that makes no progress", least=1)
    allow_eviction: bool = option(False, "push more items than a table holds; its remover drops the excess")
    allow_blocking: bool = option(False, "push into tables that block until a client samples (queues)")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("reverb", "table"):
            given = getattr(self, name)
            if not given:
                raise UsageError(f"--{name} is missing: name the servers with --reverb, and what to fill with --table")
            if len({*given}) < len(given):
                raise UsageError(f"--{name}={','.join(given)}: one of them is named twice")
