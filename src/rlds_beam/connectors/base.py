"""The contract of a connector: a function over checked episodes, before they are written."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from rlds_beam.episodes.episode import Column, Episode


@dataclasses.dataclass(frozen=True)
class Batch:
    """What a connector is given, and what it returns.

    Attributes:
      episodes: the episodes of one record: one, or the parts into which a repair or a connector split it.
      columns: what connectors made of the episodes for a learner, by name, in the order in which they were added.
    """

    episodes: tuple[Episode, ...]
    columns: Mapping[str, Column] = dataclasses.field(default_factory=dict)

    def replace(self, **changes: Any) -> Batch:
        """A copy with `changes`."""
        return dataclasses.replace(self, **changes)


class Connector(Protocol):
    """Edits, splits or drops episodes, or adds columns. A function, or an object that can be called.

    It is pure (the same batch gives the same result), it pickles, it works on whole columns, and it never writes into
    an array that it is given: `episode.replace(steps={**episode.steps, "reward": reward.clip(-1, 1)})`. A batch
    without episodes drops the record, which is counted under the connector's name.
    """

    def __call__(self, batch: Batch) -> Batch: ...


class Connected(NamedTuple):
    """What connectors made of the episodes of one record.

    Attributes:
      batch: the episodes and columns.
      dropped_by: the name of the connector that dropped all of the episodes; None where some are left.
    """

    batch: Batch
    dropped_by: str | None = None


def connect(connectors: Sequence[Connector], episodes: Sequence[Episode]) -> Connected:
    """Runs connectors one after another over the episodes of one record. For example:

        def clip_reward(batch):
            clipped = (e.replace(steps={**e.steps, "reward": e.steps["reward"].clip(-1, 1)}) for e in batch.episodes)
            return batch.replace(episodes=tuple(clipped))

        connect([clip_reward], [episode]).batch.episodes

    Returns:
      What the last connector returned; or, where one returned no episodes, what that one returned, and its name.
    """
    batch = Batch(tuple(episodes))
    for connector in connectors:
        batch = connector(batch)
        if not batch.episodes:
            return Connected(batch, name_of(connector))
    return Connected(batch)


def name_of(connector: Connector) -> str:
    """The name under which dropped episodes are counted: the function's, or the class's."""
    return getattr(connector, "__name__", type(connector).__name__)
