"""What the tables hold when all is pushed, compared with what was sent."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from rlds_beam.errors import NotVerifiedError
from rlds_beam.reverb import tables
from rlds_beam.reverb.connection import ServerError
from rlds_beam.reverb.options import WriterKind
from rlds_beam.reverb.pushing import Pushed
from rlds_beam.reverb.tables import Baseline, TableCheck
from rlds_beam.reverb.target import ReverbTarget

_REMEDIES: dict[WriterKind, str] = {
    "stream": tables.RUN_AGAIN,
    "observer": "empty the tables and run the same command again: observers write all items again",
}


@dataclasses.dataclass(frozen=True)
class Verified:
    """A push that was compared with the servers.

    Attributes:
      pushed: what was sent.
      checks: what was predicted, acknowledged and found, of each table of each server.
    """

    pushed: Pushed
    checks: tuple[TableCheck, ...]

    def to_json(self) -> dict[str, Any]:
        return {"pushed": self.pushed.to_json(), "tables": [check.to_json() for check in self.checks]}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Verified:
        return cls(Pushed.from_json(content["pushed"]), tuple(TableCheck(**check) for check in content["tables"]))

    def lines(self) -> list[str]:
        """For a terminal: one for each table."""
        return [f"table     {check}" for check in self.checks]


def verify(pushed: Pushed, target: ReverbTarget, baseline: Baseline) -> Verified:
    """Asks the servers what they hold.

    Raises:
      NotVerifiedError: a server is gone, was restarted, or holds something else than was predicted.
    """
    remedy = _REMEDIES[target.writer]
    try:
        after = tables.ask(target.servers, target.timeout)
    except ServerError as error:
        raise NotVerifiedError(
            f"all items were acknowledged, but what became of them is not known: {error}. When it is up, {remedy}"
        ) from error
    return Verified(pushed, tables.compare_tables(baseline, after, pushed.predicted, pushed.acknowledged, remedy))
