"""The contract of a connector: a function over checked episodes, before they are written."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, Protocol, TypeAlias

from rlds_beam.checking.connected import Connected
from rlds_beam.connectors.fields import StepFields
from rlds_beam.episodes.columns import concatenate
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.episodes.keys import EpisodeKey
from rlds_beam.errors import RldsBeamError, UsageError
from rlds_beam.user_functions import configurable

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
      starts: the transition at which each sequence of an episode starts, one array for each episode; None for an
        episode whose rows stay transitions.
      modules: columns of all episodes, concatenated for each module (`BatchIndividualItems`); None before that.
      fields: where the observation, action and so on are found in the steps.
      dropped: episodes that were dropped, by the name of the connector that dropped them; the last one to drop any
        comes last.
      running: whether the episodes still go on, and a model is to give their next actions: then an episode gives one
        row, of its last step, whose action is not known yet (`env_to_module_pipeline`).
      vector: by column, what the environments of running episodes are given (`ListifyDataForVectorEnv`).
      connected: what each connector did (`ConnectorRunner.connect`).
      read: what was read of the record, before any repair and connector: what of it is still the same object was not
        edited, and an output may copy it.
    """

    episodes: tuple[Episode, ...]
    columns: tuple[Columns, ...] = ()
    time: TimeAxis | None = None
    starts: tuple[Any, ...] = ()
    modules: Mapping[str, Columns] | None = None
    fields: StepFields = dataclasses.field(default_factory=StepFields)
    dropped: Mapping[str, int] = dataclasses.field(default_factory=dict)
    running: bool = False
    vector: Mapping[str, Any] | None = None
    read: Episode | None = None
    connected: tuple[Connected, ...] = ()

    def __post_init__(self) -> None:
        if len(self.columns) != len(self.episodes):
            if any(self.columns):
                raise ValueError(f"{len(self.columns)} mappings of columns for {len(self.episodes)} episodes")
            object.__setattr__(self, "columns", ({},) * len(self.episodes))

    def replace(self, **changes: Any) -> Batch:
        """A copy with `changes`."""
        return dataclasses.replace(self, **changes)


@configurable
class Connector(Protocol):
    """Edits, splits or drops episodes, or adds columns. A function, or an object that can be called.

    It is pure (the same batch gives the same result), it pickles, it works on whole columns, and it never writes into
    an array that it is given. Episodes that it does not return are dropped, and counted under the connector's name.
    `EpisodeConnector` and `ColumnConnector` make the usual ones short.
    """

    def __call__(self, batch: Batch) -> Batch: ...


Edit: TypeAlias = "Callable[[Episode, StepFields], Episode | Sequence[Episode]]"
"""What `EpisodeConnector.edit` does."""


@configurable
class EpisodeConnector(abc.ABC):
    """A connector that edits each episode. For example:

    class ClipReward(EpisodeConnector):
        def edit(self, episode, fields):
            return episode.with_columns({fields.rewards: episode.steps[fields.rewards].clip(-1, 1)})
    """

    @abc.abstractmethod
    def edit(self, episode: Episode, fields: StepFields) -> Episode | Sequence[Episode]:
        """The edited episode; a list of several to split it, `[]` to drop it.

        Args:
          fields: where things are found in the steps.
        """

    def __call__(self, batch: Batch) -> Batch:
        return edit_each(self, batch, self.edit)


@configurable
class ColumnConnector(abc.ABC):
    """A connector that adds columns, each made of one episode. For example:

    class AddRewardSquared(ColumnConnector):
        def add(self, episode, columns, fields):
            return {"reward_squared": episode.steps[fields.rewards][:-1] ** 2}

    A column that is there already is passed through, so an earlier connector overrides a later one, as in RLlib. Of a
    running episode, the last row is taken: that of the transition whose action is to be chosen.
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
            added = self.add(upcoming(episode) if batch.running else episode, columns[i], batch.fields)
            if not isinstance(added, Mapping):
                returned(self, "add", added, "a dict of the new columns, or {} for none", episode.key)
            if batch.running:
                added = {name: values[-1:] for name, values in added.items()}
            if batch.time is not None and batch.starts[i] is not None:
                added = batch.time.sequences(added, batch.starts[i])
            columns[i] = {**columns[i], **{name: values for name, values in added.items() if name not in columns[i]}}
        return batch.replace(columns=tuple(columns))


def edit_each(connector: Connector, batch: Batch, edit: Edit) -> Batch:
    """The batch with each of its episodes edited; those that are dropped are counted under the connector's name.

    Raises:
      ValueError: the episodes have columns already.
    """
    if any(batch.columns):
        raise ValueError(f"{name_of(connector)} edits episodes, so it has to come before connectors that add columns")
    edited: list[Episode] = []
    none = 0
    for episode in batch.episodes:
        result = edit(episode, batch.fields)
        parts = [result] if isinstance(result, Episode) else list(result) if isinstance(result, Iterable) else None
        if parts is None or not all(isinstance(part, Episode) for part in parts):
            returned(connector, "edit", result, "the episode, or [] to drop it", episode.key)
        none += not parts
        edited += parts
    return _with_dropped(batch.replace(episodes=tuple(edited), columns=()), name_of(connector), none)


def returned(connector: Connector, method: str, value: Any, wanted: str, key: EpisodeKey | None = None) -> NoReturn:
    """Raises RldsBeamError: a method of a connector (empty for the connector itself) returned the wrong thing."""
    kind = type(value).__name__
    what = "None" if value is None else f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
    if value and isinstance(value, (list, tuple)):
        what += f" of {' and '.join(sorted({type(part).__name__ for part in value}))}"
    name = f"{full_name_of(connector)}.{method}" if method else full_name_of(connector)
    of = "" if key is None else " in the dry run on zeros" if key.of_probe else f" for {key}"
    error = UsageError if key is None or key.of_probe else RldsBeamError
    raise error(f"--connectors: {name} returned {what}{of}; return {wanted}")


def upcoming(episode: Episode) -> Episode:
    """A running episode with its last step once more, so that its last transition is the one that comes next.

    step          0    1    2                    0    1    2    2
    observation   o0   o1   o2        ->         o0   o1   o2   o2         transitions: o0 a0, o1 a1, o2 ?
    action        a0   a1   (void)               a0   a1   (void)
    """
    return episode.replace(steps={p: concatenate([column, column[-1:]]) for p, column in episode.steps.items()})


def check_not_batched(connector: Connector, batch: Batch) -> None:
    """Raises ValueError where the columns of the episodes have been concatenated."""
    if batch.modules is not None:
        raise ValueError(
            f"{name_of(connector)} works on single episodes, so it has to come before BatchIndividualItems"
        )


def connect(connectors: Sequence[Connector], episodes: Sequence[Episode], fields: StepFields | None = None) -> Batch:
    """Runs connectors one after another over the episodes of one record. For example:

        def clip_reward(batch):
            clipped = (e.replace(steps={**e.steps, "reward": e.steps["reward"].clip(-1, 1)}) for e in batch.episodes)
            return batch.replace(episodes=tuple(clipped))

        connect([clip_reward], [episode]).episodes

    Args:
      fields: where things are found in the steps; the default is RLDS's convention.

    Returns:
      What the last connector returned; or, where one returned no episodes, what that one returned.
    """
    return run(connectors, Batch(tuple(episodes), fields=fields or StepFields()))


def run(connectors: Sequence[Connector], batch: Batch) -> Batch:
    """Runs connectors one after another, until one drops the last of the episodes."""
    for connector in connectors:
        before, batch = batch, connector(batch)
        if not isinstance(batch, Batch):
            returned(connector, "", batch, "the batch, edited by batch.replace(...)", _key(before))
        less = len(before.episodes) - len(batch.episodes)
        if less > 0 and batch.dropped == before.dropped:  # a function, which does not count what it drops
            batch = _with_dropped(batch, name_of(connector), less)
        if not batch.episodes:
            break
    return batch


def _key(batch: Batch) -> EpisodeKey | None:
    return batch.episodes[0].key if batch.episodes else None


def _with_dropped(batch: Batch, name: str, count: int) -> Batch:
    if not count:
        return batch
    others = {other: n for other, n in batch.dropped.items() if other != name}
    return batch.replace(dropped={**others, name: batch.dropped.get(name, 0) + count})


def full_name_of(connector: Connector) -> str:
    """`module:Class` of a connector of the user's; the name alone of one of rlds-beam's."""
    of: Any = connector if hasattr(connector, "__qualname__") else type(connector)
    name, module = getattr(of, "__qualname__", name_of(connector)), of.__module__
    return name if module.startswith(f"{__package__}.") else f"{module}:{name}"


def name_of(connector: Connector) -> str:
    """The name under which dropped episodes are counted: the function's, or the class's."""
    return getattr(connector, "__name__", type(connector).__name__)
