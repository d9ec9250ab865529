"""Where in Reverb items go: the options."""

from __future__ import annotations

import dataclasses
from typing import Literal

from rlds_beam.errors import UsageError
from rlds_beam.options import Options, option

WriterKind = Literal["stream", "observer"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReverbOptions(Options):
    """Which tables of which Reverb servers items go to, and how."""

    reverb: tuple[str, ...] = option((), "host:port of a server, or of several (comma separated)", metavar="HOST:PORT")
    table: tuple[str, ...] = option((), "table to fill, or several: every item goes into each", metavar="NAMES")
    writer: WriterKind = option(
        "stream",
        "stream writes each item once, however often the job is retried or run again; observer writes through "
        "TF-Agents' own observers, at least once",
    )
    columns: bool = option(False, "push the columns that --connectors add, an item for each row; no trajectories")
    module: str | None = option(None, "whose columns, where the connectors name several modules")
    priority: str = option(
        "1", "of each item: a number, a leaf of the frames (reward, observation/progress), or module:function"
    )
    chunk_length: int | None = option(
        None, "frames in a chunk, the least that a sampler is sent (chosen by size)", least=1
    )
    timeout: float = option(60.0, "seconds that any wait for a server may take without progress")
    allow_eviction: bool = option(False, "push more than a table holds: it drops the items that its remover chooses")
    allow_blocking: bool = option(False, "push into tables that take items only while a client samples (queues)")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.timeout <= 0:
            raise UsageError(f"--timeout={self.timeout:g}: it must be more than 0 seconds")
        if self.module is not None and not self.columns:
            raise UsageError("--module is for --columns")
        if self.columns and self.writer == "observer":
            raise UsageError("--columns: the observers of TF-Agents write trajectories: --writer=stream")
        for name in ("reverb", "table"):
            if not getattr(self, name):
                raise UsageError(f"--{name} is needed: " + _NEEDED[name])
            if len(set(getattr(self, name))) < len(getattr(self, name)):
                raise UsageError(f"--{name}={','.join(getattr(self, name))}: one of them is named twice")


_NEEDED = {
    "reverb": "host:port of a Reverb server (`rlds-beam serve` starts one), or embedded",
    "table": "the name of the table to fill",
}
