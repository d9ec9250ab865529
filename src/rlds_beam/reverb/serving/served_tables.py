"""Tables to serve: their kinds, and their notation on the command line."""

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
"""Default maximum of items in a table: more than fit in memory, so memory is the limit.

A full `uniform` or `prioritized` table silently drops its oldest items; a full queue or stack blocks.
"""

_TABLE = re.compile(r"(?P<name>[^:]+)(:(?P<kind>[^:]+)(:(?P<max_size>[\d_]*\d))?)?")

_TRAITS = {
    ("uniform", "fifo", 0): "uniform",
    ("prioritized", "fifo", 0): "prioritized",
    ("fifo", "fifo", 1): "queue",
    ("lifo", "lifo", 1): "stack",
}
"""The kind by sampler, remover, and maximum number of samples of an item (0: no limit)."""


@dataclasses.dataclass(frozen=True)
class ServedTable:
    """A table to serve.

    Attributes:
      name: the name of the table.
      kind: `uniform` samples items any number of times, and drops the oldest when full; use it with TF-Agents'
        `ReverbReplayBuffer`. `prioritized` does the same by priority. `queue` and `stack` sample each item once, the
        oldest or the newest first; inserts wait when full.
      max_size: the maximum number of items; None for `UNLIMITED`.
      priority_exponent: the exponent of a prioritized table: 1 samples in proportion to the priority, 0 uniformly.

    Raises:
      UsageError: the kind is unknown, or a number is out of range.
    """

    name: str
    kind: TableKind = "uniform"
    max_size: int | None = None
    priority_exponent: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in get_args(TableKind):
            kinds = ", ".join(get_args(TableKind))
            raise UsageError(f"table {self.name}:{self.kind}: unknown kind; expected one of {kinds}")
        if self.max_size is not None and not 0 < self.max_size < 1 << 63:
            raise UsageError(
                f"table {self.name}:{self.kind}:{self.max_size}: expected a maximum of 1 to 2^63 - 1 items"
            )
        if not 0 <= self.priority_exponent < math.inf:
            raise UsageError(f"--priority_exponent={self.priority_exponent:g}: expected 0 or more")

    @property
    def capacity(self) -> int:
        """The maximum number of items."""
        return UNLIMITED if self.max_size is None else self.max_size


def parse_tables(texts: Sequence[str], priority_exponent: float = 1.0) -> tuple[ServedTable, ...]:
    """Parses tables of the command line, each `NAME[:KIND[:MAX_SIZE]]`; the default kind is uniform.

    Raises:
      UsageError: a text has another form, or a name occurs twice.
    """
    tables = []
    for text in texts:
        match = _TABLE.fullmatch(text)
        if match is None:
            raise UsageError(f"table {text}: expected NAME[:KIND[:MAX_SIZE]], for example replay:uniform:1000000")
        max_size = None if match["max_size"] is None else int(match["max_size"].replace("_", ""))
        kind = cast(TableKind, match["kind"] or "uniform")
        tables.append(ServedTable(match["name"], kind, max_size, priority_exponent))
    for name, count in Counter(table.name for table in tables).items():
        if count > 1:
            raise UsageError(f"table {name} is given twice")
    return tuple(tables)


def table_kind(table: TableInfo) -> str:
    """The kind of a server's table, or a description if it is none of our kinds."""
    traits = table.sampler, table.remover, max(0, table.max_times_sampled)
    times = f", each item {traits[2]} times" if traits[2] else ""
    return _TRAITS.get(traits, f"{table.sampler} sampler, {table.remover} remover{times}")
