"""The contract of a connector: a function over checked episodes, before they are written."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from rlds_beam.connectors.fields import StepFields
from rlds_beam.episodes.episode import Column, Episode

Columns = Mapping[str, Column]
"""By name. Leading axis: the rows that an episode gives, transitions or (with a time axis) sequences."""


class TimeAxis(Protocol):
    """How rows of transitions become rows of sequences."""

    def sequences(self, columns: Columns, starts: Any) -> Columns:
        """Columns (T, ...) as (len(starts), length of a sequence, ...)."""


@dataclasses.dataclass(frozen=True)
class Batch:
    """What a connector is given, and what it returns.

    Attributes:
      episodes: the episodes of one record: one, or the parts into which a repair or a connector split it.
      columns: what connectors made of each of the episodes for a learner, by name, in the order in which they were
        added; one mapping for each episode.
      time: how rows became sequences; None while a row is a transition (`AddTimeDimToBatchAndZeroPad`).
      starts: the transition at which each sequence of an episode starts, one array for each episode.
      modules: columns of all episodes, concatenated for each module (`BatchIndividualItems`); None before that.
      fields: where the observation, action and so on are found in the steps.
      dropped_by: the name of the connector that dropped all of the episodes.
    """

    episodes: tuple[Episode, ...]
    columns: tuple[Columns, ...] = ()
    time: TimeAxis | None = None
    starts: tuple[Any, ...] = ()
    modules: Mapping[str, Columns] | None = None
    fields: StepFields = dataclasses.field(default_factory=StepFields)
    dropped_by: str | None = None

    def __post_init__(self) -> None:
        if len(self.columns) != len(self.episodes):
            if any(self.columns):
                raise ValueError(f"{len(self.columns)} mappings of columns for {len(self.episodes)} episodes")
            object.__setattr__(self, "columns", ({},) * len(self.episodes))

    def replace(self, **changes: Any) -> Batch:
        """A copy with `changes`."""
        return dataclasses.replace(self, **changes)


class Connector(Protocol):
    """Edits, splits or drops episodes, or adds columns. A function, or an object that can be called.

    It is pure (the same batch gives the same result), it pickles, it works on whole columns, and it never writes into
    an array that it is given. A batch without episodes drops the record, which is counted under the connector's name.
    `EpisodeConnector` and `ColumnConnector` make the usual ones short.
    """

    def __call__(self, batch: Batch) -> Batch: ...


class EpisodeConnector(abc.ABC):
    """A connector that edits each episode. For example:

    class ClipReward(EpisodeConnector):
        def edit(self, episode):
            return episode.replace(steps={**episode.steps, "reward": episode.steps["reward"].clip(-1, 1)})
    """

    @abc.abstractmethod
    def edit(self, episode: Episode) -> Episode | Sequence[Episode] | None:
        """The episode, edited; several, where it is split; None, where it is dropped."""

    def __call__(self, batch: Batch) -> Batch:
        if any(batch.columns):
            raise ValueError(f"{name_of(self)} edits episodes, so it has to come before connectors that add columns")
        return batch.replace(episodes=tuple(self._edited(batch.episodes)), columns=())

    def _edited(self, episodes: Sequence[Episode]) -> Iterator[Episode]:
        for episode in episodes:
            edited = self.edit(episode)
            if isinstance(edited, Episode):
                yield edited
            elif edited is not None:
                yield from edited


class ColumnConnector(abc.ABC):
    """A connector that adds columns, each made of one episode. For example:

    class AddRewardSquared(ColumnConnector):
        def add(self, episode, columns, fields):
            return {"reward_squared": episode.steps[fields.rewards][:-1] ** 2}

    A column that is there already is passed through, so an earlier connector overrides a later one, as in RLlib.
    """

    @abc.abstractmethod
    def add(self, episode: Episode, columns: Columns, fields: StepFields) -> Columns:
        """New columns of an episode of T transitions, each with leading axis T.

        Args:
          columns: those that the episode has so far.
          fields: where things are found in the steps.
        """

    def __call__(self, batch: Batch) -> Batch:
        check_not_batched(self, batch)
        columns = list(batch.columns)
        for i, episode in enumerate(batch.episodes):
            added = self.add(episode, columns[i], batch.fields)
            if batch.time is not None:
                added = batch.time.sequences(added, batch.starts[i])
            columns[i] = {**columns[i], **{name: values for name, values in added.items() if name not in columns[i]}}
        return batch.replace(columns=tuple(columns))


def check_not_batched(connector: Connector, batch: Batch) -> None:
    """Raises ValueError where the columns of the episodes have been concatenated."""
    if batch.modules is not None:
        raise ValueError(
            f"{name_of(connector)} works on single episodes, so it has to come before BatchIndividualItems"
        )


class Connected(NamedTuple):
    """What connectors made of the episodes of one record.

    Attributes:
      batch: the episodes and columns.
      dropped_by: the name of the connector that dropped all of the episodes; None where some are left.
    """

    batch: Batch
    dropped_by: str | None = None


def connect(
    connectors: Sequence[Connector], episodes: Sequence[Episode], fields: StepFields | None = None
) -> Connected:
    """Runs connectors one after another over the episodes of one record. For example:

        def clip_reward(batch):
            clipped = (e.replace(steps={**e.steps, "reward": e.steps["reward"].clip(-1, 1)}) for e in batch.episodes)
            return batch.replace(episodes=tuple(clipped))

        connect([clip_reward], [episode]).batch.episodes

    Args:
      fields: where things are found in the steps; the default is RLDS's convention.

    Returns:
      What the last connector returned; or, where one returned no episodes, what that one returned, and its name.
    """
    batch = run(connectors, Batch(tuple(episodes), fields=fields or StepFields()))
    return Connected(batch, batch.dropped_by)


def run(connectors: Sequence[Connector], batch: Batch) -> Batch:
    """Runs connectors one after another, until one drops all of the episodes."""
    for connector in connectors:
        batch = connector(batch)
        if not batch.episodes:
            return batch if batch.dropped_by else batch.replace(dropped_by=name_of(connector))
    return batch


def name_of(connector: Connector) -> str:
    """The name under which dropped episodes are counted: the function's, or the class's."""
    return getattr(connector, "__name__", type(connector).__name__)
