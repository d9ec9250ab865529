"""Verifies a push: compares the tables' content with the items sent."""

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
    "observer": "empty the tables and run the same command again: observers rewrite all items",
}


@dataclasses.dataclass(frozen=True)
class Verified:
    """A verified push.

    Attributes:
      pushed: the items sent.
      checks: the items predicted, acknowledged, and found in each table of each server.
    """

    pushed: Pushed
    checks: tuple[TableCheck, ...]

    def to_json(self) -> dict[str, Any]:
        return {"pushed": self.pushed.to_json(), "tables": [check.to_json() for check in self.checks]}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Verified:
        return cls(Pushed.from_json(content["pushed"]), tuple(TableCheck(**check) for check in content["tables"]))

    def lines(self) -> list[str]:
        """The lines for a terminal, one per table."""
        return [f"table     {check}" for check in self.checks]


def verify(pushed: Pushed, target: ReverbTarget, baseline: Baseline) -> Verified:
    """Asks the servers for their items and compares.

    Raises:
      NotVerifiedError: a server is gone or was restarted, or its items differ from the prediction.
    """
    remedy = _REMEDIES[target.writer]
    try:
        after = tables.ask(target.servers, target.timeout)
    except ServerError as error:
        raise NotVerifiedError(
            f"all items were acknowledged, but cannot be verified: {error}. When the server is up, {remedy}"
        ) from error
    return Verified(pushed, tables.compare_tables(baseline, after, pushed.predicted, pushed.acknowledged, remedy))
