"""Tables to serve: their kinds, and how the command line names them."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Literal, cast, get_args

from rlds_beam.errors import UsageError
from rlds_beam.reverb.protocol.info import TableInfo

TableKind = Literal["uniform", "prioritized", "queue", "stack"]

UNLIMITED = 1_000_000_000
"""Items in a table by default: more than a machine's memory holds, so that memory is the limit.

A full `uniform` or `prioritized` table silently drops its oldest items; a full queue or stack blocks.
"""

_TABLE = re.compile(r"(?P<name>[^:]+)(:(?P<kind>[^:]+)(:(?P<max_size>[\d_]*\d))?)?")

_TRAITS = {
    ("uniform", "fifo", 0): "uniform",
    ("prioritized", "fifo", 0): "prioritized",
    ("fifo", "fifo", 1): "queue",
    ("lifo", "lifo", 1): "stack",
}
"""Sampler, remover, how often an item is sampled at most (0: without end)."""


@dataclasses.dataclass(frozen=True)
class ServedTable:
    """A table to serve.

    Attributes:
      name: of the table.
      kind: `uniform`: any item, as often as wanted; the oldest goes when it is full. What TF-Agents'
        `ReverbReplayBuffer` is used with. `prioritized`: the same, by priority. `queue`, `stack`: each item
        once, the oldest or the newest first; inserting waits when it is full.
      max_size: items at most; None for `UNLIMITED`.
      priority_exponent: of a prioritized table: 1 samples in proportion to the priority, 0 uniformly.

    Raises:
      UsageError: there is no such kind, or no room for an item.
    """

    name: str
    kind: TableKind = "uniform"
    max_size: int | None = None
    priority_exponent: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in get_args(TableKind):
            kinds = ", ".join(get_args(TableKind))
            raise UsageError(f"table {self.name}:{self.kind}: there is no such kind; there are {kinds}")
        if self.max_size is not None and not 0 < self.max_size < 1 << 63:
            raise UsageError(f"table {self.name}:{self.kind}:{self.max_size}: a table has room for 1 item to 2^63 - 1")
        if not 0 <= self.priority_exponent < math.inf:
            raise UsageError(f"--priority_exponent={self.priority_exponent:g}: expected a number from 0 on")

    @property
    def capacity(self) -> int:
        """Items at most."""
        return UNLIMITED if self.max_size is None else self.max_size


def parse_tables(texts: Sequence[str], priority_exponent: float = 1.0) -> tuple[ServedTable, ...]:
    """Reads tables as the command line has them, each `NAME[:KIND[:MAX_SIZE]]`; a kind that is not named is uniform.

    Raises:
      UsageError: one is not of that form, or a name is there twice.
    """
    tables = []
    for text in texts:
        match = _TABLE.fullmatch(text)
        if match is None:
            raise UsageError(f"table {text}: expected NAME[:KIND[:MAX_SIZE]], such as replay:uniform:1000000")
        max_size = None if match["max_size"] is None else int(match["max_size"].replace("_", ""))
        kind = cast(TableKind, match["kind"] or "uniform")
        tables.append(ServedTable(match["name"], kind, max_size, priority_exponent))
    for name, count in Counter(table.name for table in tables).items():
        if count > 1:
            raise UsageError(f"table {name} is named twice")
    return tuple(tables)


def kind_of(table: TableInfo) -> str:
    """The kind of a server's table, in words where it is none of ours."""
    traits = table.sampler, table.remover, max(0, table.max_times_sampled)
    times = f", each item {traits[2]} times" if traits[2] else ""
    return _TRAITS.get(traits, f"{table.sampler} sampler, {table.remover} remover{times}")
