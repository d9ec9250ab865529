"""The connector interface: a function that runs on checked episodes before they are written."""

from __future__ import annotations

import abc
import copy
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NoReturn, Protocol, Self, TypeAlias

from rlds_beam.connectors.counts import Connected
from rlds_beam.connectors.fields import StepFields
from rlds_beam.episodes.columns import concatenate, with_final_observation
from rlds_beam.episodes.episode import Column, Episode, EpisodeKey
from rlds_beam.errors import RldsBeamError, UsageError
from rlds_beam.reading.base import Source
from rlds_beam.text import did_you_mean
from rlds_beam.user_functions import configurable

DEFAULT_MODULE_ID = "default_policy"
"""The module of an episode without `module_id`, as in RLlib."""

Columns = Mapping[str, Column]
"""Column name -> values. The leading axis is rows: transitions, or sequences once there is a time axis."""


@dataclasses.dataclass(frozen=True)
class Batch:
    """The input and the output of a connector.

    Attributes:
      episodes: the episodes of one record: one, or several if a repair or a connector split it.
      columns: the columns computed for a learner, one mapping per episode: name -> values, in the order added.
      time: how rows became sequences (`AddTimeDimToBatchAndZeroPad`); None while each row is a transition.
      starts: the first transition of each sequence, one array per episode; None for an episode whose rows are
        still transitions.
      modules: the columns of all episodes, concatenated per module (`BatchIndividualItems`); None before that.
      fields: which step fields hold the observation, the action, and so on.
      dropped: the number of episodes dropped, by connector name, in the order in which they last dropped one.
      running: whether the episodes are still running and a model chooses their next actions. Each episode then has
        one row: its last step, whose action is not known yet (`env_to_module_pipeline`).
      vector: the inputs of the environments of running episodes, by column (`ListifyDataForVectorEnv`).
      connected: the counts of each connector (`ConnectorRunner.connect`).
      read: the record as read, before any repair or connector. A column that is still the same object is unedited,
        and an output may copy it.
    """

    episodes: tuple[Episode, ...]
    columns: tuple[Columns, ...] = ()
    time: Any = None
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
        """Returns a copy with `changes`."""
        return dataclasses.replace(self, **changes)


@configurable
class Connector(Protocol):
    """Edits, splits, or drops episodes, or adds columns: a function or a callable object.

    A connector must be pure (same batch in, same batch out) and picklable, work on whole columns, and never write into
    the arrays it receives. Episodes that it does not return are dropped and counted under its name. Subclass
    `EpisodeConnector` or `ColumnConnector` for the common cases.
    """

    def __call__(self, batch: Batch) -> Batch: ...


class _Declared:
    """Takes what a class of connectors says of all its objects: `class MyFilter(EpisodeConnector, reads_images=False)`.

    Attributes:
      reads_images: if False, the result for all other fields is the same if an episode has no images. A job that needs
        no images itself, for example `stats`, then does not read them.
      reads_values: if False, it uses only keys and text: values that the output does not use may be invalid.
    """

    reads_images: ClassVar[bool]
    reads_values: ClassVar[bool]

    def __init_subclass__(cls, *, reads_images: bool = True, reads_values: bool = True, **others: Any):
        super().__init_subclass__(**others)
        cls.reads_images, cls.reads_values = reads_images, reads_values


@configurable
class EpisodeConnector(_Declared, abc.ABC):
    """Edits each episode. For example:

    class ClipReward(EpisodeConnector):
        def edit(self, episode, fields):
            return episode.with_columns({fields.rewards: episode.steps[fields.rewards].clip(-1, 1)})

    `class ClipReward(EpisodeConnector, reads_images=False)` says that images are not needed; subclasses say it again.
    """

    @abc.abstractmethod
    def edit(self, episode: Episode, fields: StepFields) -> Episode | Sequence[Episode]:
        """Returns the edited episode, a list of several to split it, or `[]` to drop it.

        Args:
          fields: which step fields hold the observation, the action, and so on.
        """

    def rate_after(self, fps: float | None) -> float | None:
        """The rate of the edited episodes in Hz, given that before; None if it is unknown."""
        return fps

    def __call__(self, batch: Batch) -> Batch:
        return edit_each(self, batch, self.edit)


@configurable
class ColumnConnector(abc.ABC):
    """Adds columns, computed from one episode at a time. For example:

    class AddRewardSquared(ColumnConnector):
        def add(self, episode, columns, fields):
            return {"reward_squared": episode.steps[fields.rewards][:-1] ** 2}

    Existing columns are kept, so an earlier connector overrides a later one, as in RLlib. A running episode keeps only
    the last row: the transition whose action the model chooses.
    """

    @abc.abstractmethod
    def add(self, episode: Episode, columns: Columns, fields: StepFields) -> Columns:
        """Returns the new columns of an episode of T transitions, each with leading axis T.

        Args:
          episode: T + 1 steps: if the last action is real, a step that repeats the last observation has been added.
          columns: the episode's columns so far.
          fields: which step fields hold the observation, the action, and so on.
        """

    def __call__(self, batch: Batch) -> Batch:
        check_order(self, batch)
        columns = list(batch.columns)
        for i, episode in enumerate(batch.episodes):
            if batch.running:  # the last step is repeated, so that the last transition is the next one: o2 ?
                whole = episode.replace(steps={p: concatenate([c, c[-1:]]) for p, c in episode.steps.items()})
            else:
                whole = with_final_observation(episode)
            added = self.add(whole, columns[i], batch.fields)
            if not isinstance(added, Mapping):
                refuse_result(self, "add", added, "a dict of the new columns, or {} for none", episode.key)
            if batch.running:
                added = {name: values[-1:] for name, values in added.items()}
            if batch.time is not None and batch.starts[i] is not None:
                added = batch.time.sequences(added, batch.starts[i])
            columns[i] = {**columns[i], **{name: values for name, values in added.items() if name not in columns[i]}}
        return batch.replace(columns=tuple(columns))


class Accumulator(Protocol):
    """Statistics of a dataset, gathered batch by batch in many workers and then merged. Picklable."""

    def add(self, batch: Batch) -> None:
        """Adds the batch of one record, as the previous connectors returned it."""

    def merge(self, *others: Self) -> Self:
        """Returns the sum; order and grouping do not matter."""

    def finish(self) -> Any:
        """Returns the result for `FittedConnector.fit`, as JSON."""


@configurable
class FittedConnector(_Declared, abc.ABC):
    """A connector that is fitted to the whole dataset before it runs.

        class SubtractMeanReward(FittedConnector):
            def __init__(self, mean=None):
                self.mean = mean

            @property
            def fitted(self):
                return self.mean is not None

            def accumulator(self):
                return MeanReward()

            def fit(self, result):
                return SubtractMeanReward(result["mean"])

    For each connector that is not fitted, `convert` and `push` read the dataset once more, running the connectors
    before it.
    """

    @property
    @abc.abstractmethod
    def fitted(self) -> bool:
        """Whether the connector is ready to run: fitted, or constructed with its statistics."""

    @abc.abstractmethod
    def accumulator(self) -> Accumulator:
        """Returns an empty accumulator."""

    @abc.abstractmethod
    def fit(self, result: Any) -> Connector:
        """Returns the fitted connector.

        Args:
          result: `Accumulator.finish()` of the whole dataset.
        """

    @abc.abstractmethod
    def transform(self, batch: Batch) -> Batch:
        """Runs the fitted connector on a batch."""

    def __call__(self, batch: Batch) -> Batch:
        if not self.fitted:
            raise ValueError(f"{short_name(self)} must be fitted to the dataset first")
        return self.transform(batch)


def after_connectors(connectors: Sequence[Connector], source: Source) -> Source:
    """The source with the rate that episodes have after connectors."""
    meaning, fps = source.meaning, source.fps
    for connector in connectors:
        fps = connector.rate_after(fps) if hasattr(connector, "rate_after") else fps
    rates = meaning.rates if fps is None else ()
    return with_attributes(source, meaning=dataclasses.replace(meaning, fps=fps, rates=rates))


def with_attributes(source: Source, **changes: Any) -> Source:
    """A copy of a source, of any class, with other values of some attributes."""
    changed = copy.copy(source)
    for name, value in changes.items():
        object.__setattr__(changed, name, value)  # sources are frozen dataclasses
    return changed


def edit_each(
    connector: Connector, batch: Batch, edit: Callable[[Episode, StepFields], Episode | Sequence[Episode]]
) -> Batch:
    """Edits each episode of the batch; dropped ones are counted under the connector's name.

    Raises:
      ValueError: the episodes already have columns.
    """
    check_order(connector, batch, columns=True)
    edited: list[Episode] = []
    dropped = dict(batch.dropped)
    for episode in batch.episodes:
        result = edit(episode, batch.fields)
        parts = [result] if isinstance(result, Episode) else list(result) if isinstance(result, Iterable) else None
        if parts is None or not all(isinstance(part, Episode) for part in parts):
            refuse_result(connector, "edit", result, "the episode, or [] to drop it", episode.key)
        if not parts:
            dropped[short_name(connector)] = dropped.pop(short_name(connector), 0) + 1
        edited += parts
    return batch.replace(episodes=tuple(edited), columns=(), dropped=dropped)


def refuse_result(connector: Connector, method: str, value: Any, wanted: str, key: EpisodeKey) -> NoReturn:
    """Raises RldsBeamError for a connector's method that returned the wrong type; empty `method`: the connector."""
    where = "in the dry run on zeros" if key.of_probe else f"for {key}"
    name = f"{full_name(connector)}.{method}" if method else full_name(connector)
    kind = "None" if value is None else f"a value of type {type(value).__name__}"
    error = UsageError if key.of_probe else RldsBeamError
    raise error(f"--connectors: {name} returned {kind} {where}; return {wanted}")


def check_order(connector: Connector, batch: Batch, *, columns: bool = False, time: bool = False) -> None:
    """Raises UsageError if a connector comes too late.

    Args:
      columns, time: whether it must come before connectors that add columns, and before AddTimeDimToBatchAndZeroPad.
    """
    later = (
        (batch.modules is not None, "BatchIndividualItems"),
        (time and batch.time is not None, "AddTimeDimToBatchAndZeroPad"),
        (columns and any(batch.columns), "connectors that add columns"),
    )
    for is_late, others in later:
        if is_late:
            raise UsageError(f"{short_name(connector)} must come before {others}")


def connect(connectors: Sequence[Connector], episodes: Sequence[Episode], fields: StepFields | None = None) -> Batch:
    """Runs connectors in order over the episodes of one record. For example:

        def clip_reward(batch):
            clipped = (e.replace(steps={**e.steps, "reward": e.steps["reward"].clip(-1, 1)}) for e in batch.episodes)
            return batch.replace(episodes=tuple(clipped))

        connect([clip_reward], [episode]).episodes

    Args:
      fields: which step fields hold the observation, the action, and so on; by default RLDS's names.

    Returns:
      The batch after the last connector, or after the first one that left no episodes.
    """
    return run(connectors, Batch(tuple(episodes), fields=fields or StepFields()))


_EDITED = "the batch, edited by batch.replace(...)"


def run(connectors: Sequence[Connector], batch: Batch) -> Batch:
    """Runs connectors in order; stops when no episodes are left."""
    for connector in connectors:
        if not batch.episodes:
            break
        before, batch = batch, connector(batch)
        if not isinstance(batch, Batch):
            refuse_result(connector, "", batch, _EDITED, before.episodes[0].key)
        less = len(before.episodes) - len(batch.episodes)
        if less > 0 and batch.dropped == before.dropped:  # a plain function, which does not count what it drops
            dropped, name = dict(batch.dropped), short_name(connector)
            dropped[name] = dropped.pop(name, 0) + less
            batch = batch.replace(dropped=dropped)
    return batch


def full_name(connector: Connector) -> str:
    """Returns `module:Class` for a user's connector, and the bare name for a built-in one."""
    of: Any = connector if hasattr(connector, "__qualname__") else type(connector)
    name, module = getattr(of, "__qualname__", short_name(connector)), of.__module__
    return name if module.startswith(f"{__package__}.") else f"{module}:{name}"


def is_users(connector: Connector) -> bool:
    """Whether a user wrote the connector."""
    return not (getattr(connector, "__module__", None) or "").startswith(f"{__package__}.")


def short_name(connector: Connector) -> str:
    """The name under which dropped episodes are counted: the function's or the class's name."""
    return getattr(connector, "__name__", type(connector).__name__)


Which: TypeAlias = "str | type | Connector"
"""How to refer to a connector of a pipeline: by name, by class, or by the object."""


@configurable
class ConnectorPipeline(list[Connector]):
    """A list of connectors that run in order. Pipelines can be nested and pickled.

        pipeline = ConnectorPipeline([AddObservationsFromEpisodesToBatch(), BatchIndividualItems()])
        pipeline.insert_before("BatchIndividualItems", AddColumnsFromEpisodesToTrainBatch())
        connect([pipeline], episodes).modules["default_policy"]["obs"]

    Refer to a connector by name, by class, or by the object; the first match counts.
    """

    def __call__(self, batch: Batch) -> Batch:
        return run(self, batch)

    def __repr__(self) -> str:
        return f"ConnectorPipeline([{', '.join(map(short_name, self))}])"

    def prepend(self, connector: Connector) -> None:
        self.insert(0, connector)

    def insert_before(self, which: Which, connector: Connector) -> None:
        self.insert(self.find(which), connector)

    def insert_after(self, which: Which, connector: Connector) -> None:
        self.insert(self.find(which) + 1, connector)

    def remove(self, which: Which) -> None:
        del self[self.find(which)]

    def find(self, which: Which) -> int:
        """The index of a connector. Raises UsageError if there is none."""
        for i, connector in enumerate(self):
            if connector is which or short_name(connector) == which or type(connector) is which:
                return i
        name = which if isinstance(which, str) else getattr(which, "__name__", short_name(which))  # type: ignore[arg-type]
        raise UsageError(f"{name} is not in {self!r}{did_you_mean(name, map(short_name, self))}")


def find_module(episode: Episode) -> str:
    """The module that learns from the episode: metadata `module_id`, or `default_policy`."""
    return _metadata_text(episode, "module_id") or DEFAULT_MODULE_ID


def find_agent(episode: Episode) -> str:
    """The agent of the episode: metadata `agent_id`; empty for a single agent."""
    return _metadata_text(episode, "agent_id")


def _metadata_text(episode: Episode, name: str) -> str:
    value = episode.metadata.get(name, "")
    return value.decode() if isinstance(value, bytes) else str(value)


def by_module(batch: Batch) -> Mapping[str, Columns]:
    """Concatenates the columns of all episodes of each module.

    Raises:
      UsageError: two episodes of a module have different columns.
    """
    if batch.modules is not None:
        return batch.modules
    of: dict[str, list[Columns]] = {}
    for episode, columns in zip(batch.episodes, batch.columns, strict=True):
        of.setdefault(find_module(episode), []).append(columns)
    return {module: _concatenate(module, of[module]) for module in sorted(of)}


def _concatenate(module: str, parts: list[Columns]) -> Columns:
    first = parts[0]
    if len(parts) == 1:
        return dict(first)
    for part in parts:
        if part.keys() != first.keys():
            name = min(part.keys() ^ first.keys())
            raise UsageError(f"module {module}: only some of its episodes have the column {name}")
    return {name: concatenate([part[name] for part in parts]) for name in first}
