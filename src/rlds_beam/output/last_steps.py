"""Outputs whose rows are an observation and an action: they leave out last steps without an action."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping
from typing import Any

from rlds_beam.checking.verdicts import IgnoredValues
from rlds_beam.connectors.base import Batch
from rlds_beam.episodes.schema import Field
from rlds_beam.output.base import Output
from rlds_beam.processing.ranges import RangeWriter
from rlds_beam.reading.base import LastAction
from rlds_beam.reading.meaning import RowRule
from rlds_beam.text import some
from rlds_beam.trajectories.items import UnusedSteps

_STORE_FLOAT32 = "--connectors=CastFields stores float32, as LeRobot's recorders do"


class HoldsLastActions(Output):
    """Writes the action, reward, and discount of last steps.

    Attributes:
      last_action: see `Source`.
    """

    @property
    @abc.abstractmethod
    def last_action(self) -> LastAction: ...

    @property
    def ignored_values(self) -> IgnoredValues:
        return IgnoredValues.of(self.last_action, self.describe().left_out)


class RowsOutput(HoldsLastActions):
    """Its rows are an observation and an action.

    Attributes:
      rule: which steps become rows.
      fields: the fields of the observation and the action that it writes.
    """

    rule: RowRule

    @property
    @abc.abstractmethod
    def fields(self) -> Iterable[Field]: ...

    @property
    def last_action(self) -> LastAction:
        return "unknown" if self.rule.last_steps is None else self.rule.last_steps.action

    def notes(self, manifest: Mapping[str, Any]) -> list[str]:
        del manifest
        found = self.rule.last_steps
        said = self.rule.left_out and found is not None and found.assumed
        roles = ("action", "observation")
        double = [f.path for f in self.fields if f.dtype == "float64" and f.path.split("/")[0] in roles]
        return [
            *([f"note      last steps are {found}"] if said else []),
            *([f"float64   {some(double)}; {_STORE_FLOAT32}"] if double else []),
        ]


class RowsWriter:
    """A `RangeWriter` that gives another one only the rows of episodes; an episode without rows is left out."""

    def __init__(self, writer: RangeWriter, rule: RowRule):
        self._writer, self._rule, self._left_out = writer, rule, UnusedSteps()

    @property
    def predicted(self) -> int:
        return self._writer.predicted

    @property
    def unused_steps(self) -> Mapping[str, UnusedSteps]:
        return {"no_action": self._left_out} if self._left_out.steps else {}

    def write(self, batch: Batch) -> None:
        rows = select_rows(batch, self._rule)
        if rows.episodes:
            self._writer.write(rows)
        steps = sum(map(len, batch.episodes)) - sum(map(len, rows.episodes))
        empty = len(batch.episodes) - len(rows.episodes)
        self._left_out = self._left_out.add(UnusedSteps(empty, steps, int(empty > 0)))

    def finish(self) -> Any:
        return self._writer.finish()

    def abort(self) -> None:
        self._writer.abort()


def select_rows(batch: Batch, rule: RowRule) -> Batch:
    """The batch with only the rows of its episodes, without those that have none."""
    if not rule.left_out:
        return batch
    return batch.replace(episodes=tuple(rows for episode in batch.episodes if len(rows := rule.rows(episode))))
