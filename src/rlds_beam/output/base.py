"""The contract of an output: what a conversion writes for each range, and what completes the dataset.

An output must implement the abstract methods of `Output`; the others have defaults. Outputs with `GlobalIndices` do
more when all ranges are finished. Those whose rows are an observation and an action (`RowsOutput`) leave out last steps
without an action.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

import numpy as np

from rlds_beam.checking.verdicts import IgnoredValues
from rlds_beam.connectors.base import Batch, Connector
from rlds_beam.episodes.episode import SOURCE_DATASET, Column, Episode
from rlds_beam.episodes.schema import Field, Schema
from rlds_beam.options import Options
from rlds_beam.processing.ranges import RangeWriter
from rlds_beam.reading.base import WorkRange
from rlds_beam.reading.last_steps import LastSteps, find_last_steps, is_action
from rlds_beam.reading.meaning import LastAction
from rlds_beam.text import some
from rlds_beam.trajectories.items import UnusedSteps

if TYPE_CHECKING:
    from rlds_beam.connectors.pipeline import ConnectorRunner
    from rlds_beam.output.commits import EarlierOutput, RangeCommit
    from rlds_beam.reading.base import Source


class Description(NamedTuple):
    """A readable description of an output.

    Attributes:
      fields: the content of a record, a line for each field.
      left_out: the fields that are not written, with reasons.
      record: what a record is, in one word.
    """

    fields: list[str]
    left_out: Mapping[str, str] = {}
    record: str = "episode"


class Output(abc.ABC):
    """An output directory: files for each work range, and the metadata that completes them. Picklable.

    An output is a class, for example a frozen dataclass, that inherits from this one. `--to=trajectories` names a
    built-in output, `--to=module:Class` a user's.

    Attributes:
      directory: the output directory.
      options_class: the class of the options that `create` takes; its options become flags.
      sidecars: the endings of small files that a range's writer writes next to the range's file: `.spec`.
      writes_columns: whether it writes the rows of columns that connectors add. Other outputs reject such connectors.
      default_connectors: the connectors to run if `--connectors` names none.
      writes_splits: whether it writes episodes to the splits that SplitEpisodes names.
      input_facts: the entries of `plan` that only describe the input (`rlds.info`): an append may change them.
    """

    directory: str
    options_class: ClassVar[type[Options]] = Options
    sidecars: ClassVar[tuple[str, ...]] = ()
    writes_columns: ClassVar[bool] = False
    default_connectors: ClassVar[tuple[Connector, ...]] = ()
    writes_splits: ClassVar[bool] = False
    input_facts: ClassVar[tuple[str, ...]] = ()

    @classmethod
    @abc.abstractmethod
    def create(cls, source: Source, connectors: ConnectorRunner, directory: str, options: Any) -> Output:
        """Makes the output for a dataset; writes nothing.

        Args:
          source: the input dataset.
          connectors: the connectors that edit its episodes; `connectors.schema` is the schema of the result.
          directory: the output directory.
          options: an `options_class`.

        Raises:
          UsageError: the output cannot hold such episodes, or an option is invalid.
        """

    @abc.abstractmethod
    def plan(self) -> dict[str, Any]:
        """Everything but the episodes that the bytes depend on, as JSON. Equal plans give equal bytes."""

    @abc.abstractmethod
    def describe(self) -> Description:
        """The content of a record, and what is left out."""

    @abc.abstractmethod
    def file(self, work: WorkRange) -> str:
        """The name of a range's file, relative to the directory: `name` or `name/name`."""

    @abc.abstractmethod
    def open_range(self, work: WorkRange) -> RangeWriter:
        """Opens a writer of that file."""

    def complete(self, commits: Sequence[RangeCommit]) -> dict[str, Any]:
        """Runs once when all ranges are finished and checked; returns the manifest's entry as JSON.

        It may merge the ranges' files into a few large ones: their list of `MergedFile`, as `merged`, replaces the
        ranges' files, which are then removed.
        """
        del commits
        return {}

    def append_to(self, earlier: EarlierOutput, ranges: Sequence[WorkRange], directory: str) -> Self | None:
        """A copy that writes into `directory` what `convert --append` adds to a finished output; None: it cannot.

        `complete` is then called with the commits of all ranges, old and new, in the order of the splits, and writes
        the metadata of the whole into `directory`. No file of the earlier output may be changed.

        Args:
          earlier: the finished output.
          ranges: the new ranges; their numbers continue those of the earlier ones.
          directory: where to write.

        Raises:
          UsageError: these ranges cannot be added.
        """
        del earlier, ranges, directory
        return None

    def files(self, work: WorkRange) -> tuple[str, ...]:
        """The names of a range's files, if it has several; its writer's `finish` returns a `WrittenFile` for each."""
        return (self.file(work),)

    def list_sidecars(self, file: str) -> tuple[str, ...]:
        """The names of the sidecar files of a range's file."""
        return tuple(file + ending for ending in self.sidecars)

    def with_ranges(self, ranges: Sequence[WorkRange]) -> Self:
        """A copy that knows all ranges of the plan, if its files' names depend on those of other splits."""
        del ranges
        return self

    @property
    def whole_shards(self) -> bool:
        """Whether each input shard must be one range, because the order of its episodes matters."""
        return False

    def predict(self, batches: Iterable[Batch]) -> int:
        """The number of items that a range's episodes give, from their lengths and columns; by default one each."""
        return sum(len(batch.episodes) for batch in batches)

    def check_batch(self, batch: Batch) -> None:
        """Checks, for `inspect`, what its writer refuses, if that shows without writing.

        Raises:
          BadEpisode: an episode cannot be written.
        """
        del batch

    @property
    def ignored_values(self) -> IgnoredValues:
        """The values that it does not use, which are therefore not checked; by default, those of fields left out."""
        return IgnoredValues(frozenset(self.describe().left_out))

    def stored_names(self) -> Iterable[tuple[str, str]]:
        """The fields whose names become names of files or of objects in files, as (field, name).

        A name that cannot be stored or is not unique is a UsageError.
        """
        return ()

    def notes(self, manifest: Mapping[str, Any]) -> list[str]:
        """Lines about the finished output for the job's summary."""
        del manifest
        return []


class GlobalIndices(Output):
    """Files contain, or are named by, indices that count through the whole dataset.

    The indices are known only when all ranges are finished. Then each range gets its own and writes its final files.
    """

    @abc.abstractmethod
    def global_indices(self, commits: Sequence[RangeCommit]) -> list[Any]:
        """The indices that each range's files need, as JSON."""

    @abc.abstractmethod
    def finish_range(self, commit: RangeCommit, indices: Any) -> RangeCommit:
        """Writes a range's files with their indices, in any worker; returns its commit with these files.

        Files that the commit no longer names are then removed. It may be killed and run again: equal indices must give
        equal bytes.
        """


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
        return IgnoredValues.from_last_action(self.last_action, self.describe().left_out)


def ends(episode: Episode) -> bool:
    """Whether the last step of an episode is marked as the last; true if it has no such field."""
    last = episode.steps.get("is_last")
    return bool(len(episode)) and (last is None or bool(np.asarray(last)[-1]))


def without_last(episode: Episode) -> Episode:
    """The steps before the last one. The end of the episode is marked in the one that leads there, as in LeRobot."""
    rows = episode.slice(0, len(episode) - 1)
    marks: dict[str, Column] = {}
    for path in ("is_last", "is_terminal"):
        if len(rows) and path in rows.steps:
            marks[path] = np.concatenate([np.asarray(rows.steps[path])[:-1], np.asarray(episode.steps[path])[-1:]])
    return rows.with_columns(marks)


@dataclasses.dataclass(frozen=True)
class RowRule:
    """Selects the steps that become rows of an observation and an action.

        RLDS, void   o0 a0 r0   o1 a1 r1   o2 (void)         rows   o0 a0 r0   o1 a1 r1
        RLDS, real   o0 a0      o1 a1      o2 a2             rows   o0 a0      o1 a1      o2 a2

    Attributes:
      left_out: whether last steps are left out.
      last_steps: what they are; None if it did not matter, because the user chose.
      kept_void: whether the user keeps last steps whose actions the source says are void.
      only_of: the datasets whose last steps are left out (`Meaning.void_datasets`); None: all.
    """

    left_out: bool = False
    last_steps: LastSteps | None = None
    kept_void: bool = False
    only_of: tuple[str, ...] | None = None

    @classmethod
    def choose(cls, source: Source, schema: Schema, choice: Literal["drop", "keep"] | None) -> RowRule:
        """The rule for a dataset: void last steps are left out unless the user chose.

        Args:
          schema: the schema of the episodes, after connectors; without actions, all steps are rows.
        """
        if choice is not None:
            return cls(choice == "drop", kept_void=choice == "keep" and source.last_action == "void")
        if not any(is_action(path) for path in schema.steps):
            return cls()
        last_steps = find_last_steps(source)
        return cls(last_steps.action == "void", last_steps, only_of=source.meaning.void_datasets)

    def rows(self, episode: Episode) -> Episode:
        """The rows of an episode, perhaps none."""
        name = episode.metadata.get(SOURCE_DATASET)
        other = self.only_of is not None and isinstance(name, bytes) and name.decode() not in self.only_of
        return without_last(episode) if self.left_out and ends(episode) and not other else episode

    def to_json(self) -> dict[str, Any]:
        """The rule as an entry of a plan."""
        found = {} if self.last_steps is None else {key: v for key, v in vars(self.last_steps).items() if v}
        found |= {"kept_void": True} if self.kept_void else {}
        found |= {"only_of": [*self.only_of]} if self.only_of is not None else {}
        matters = self.left_out or self.kept_void or found.get("assumed")
        return {"last_step": {"left_out": self.left_out, **found}} if matters else {}


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
        store = "--connectors=CastFields stores float32, as LeRobot's recorders do"
        said = self.rule.left_out and found is not None and found.assumed
        roles = ("action", "observation")
        double = [f.path for f in self.fields if f.dtype == "float64" and f.path.split("/")[0] in roles]
        return [
            *([f"note      last steps are {found}"] if said else []),
            *([f"float64   {some(double)}; {store}"] if double else []),
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
