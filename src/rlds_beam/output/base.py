"""The contract of an output: what a conversion writes, range by range, and what completes the whole of it."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from rlds_beam.checking.verdicts import IgnoredValues
from rlds_beam.connectors.base import Batch, Connector

if TYPE_CHECKING:
    from typing_extensions import Self  # of typing from Python 3.11 on

    from rlds_beam.connectors.runner import ConnectorRunner
    from rlds_beam.output.commits import RangeCommit
    from rlds_beam.output.shards import ShardInfo, WrittenFile
    from rlds_beam.reading.base import Source
    from rlds_beam.reading.plan import WorkRange


class RangeWriter(Protocol):
    """Writes the checked episodes of one work range, in order.

    Attributes:
      predicted: items that the episodes written so far should give, by calculation, not by count.
      unused_steps: optional: those that are in no item, by reason (`checking.unused.REASONS`), after `finish`.
    """

    @property
    def predicted(self) -> int: ...

    def write(self, batch: Batch) -> None:
        """Writes the episodes of one record, as the connectors returned them: all, or (where it raises) none.

        Raises:
          BadEpisode: one of them cannot be written: for example, an image that cannot be decoded.
        """

    def finish(self) -> Any:
        """Completes the range; of a file, its `ShardInfo`. Only now the file gets its name."""

    def abort(self) -> None:
        """Removes what was written so far; does nothing after `finish`."""


class FileRangeWriter(RangeWriter, Protocol):
    """A `RangeWriter` of one file, or of several: then `finish` returns one `WrittenFile` for each of `files`."""

    def finish(self) -> ShardInfo | tuple[WrittenFile, ...]: ...


class CostHint(NamedTuple):
    """What an output costs besides reading the input, to choose the number of worker processes.

    Attributes:
      copies: how often a frame of the input is written: 2 for step pairs.
      decodes_images: whether JPEGs and PNGs are decoded for it.
      encodes_videos: whether images are encoded as videos.
    """

    copies: float = 1.0
    decodes_images: bool = True
    encodes_videos: bool = False


class MergedFile(NamedTuple):
    """A file that `FileOutput.complete` made of the files of the ranges of a split.

    Attributes:
      file: its name in the output directory.
      split: whose it is.
      shard: what is in it.
    """

    file: str
    split: str
    shard: ShardInfo


class FileOutput(abc.ABC):
    """Files in a directory, one for each work range (or several), and metadata that completes them. Pickles.

    An implementation is a class that inherits from this one (a frozen dataclass, say). `--to=trajectories` names
    ours, `--to=module:Class` a user's.

    Attributes:
      directory: where the files go.
      name: of the dataset that is written.
      default_connectors: what runs over the episodes where `--connectors` names none.
      holds: what `describe` describes, in a word.
      divides: whether episodes go to the splits that SplitEpisodes says (`connectors.fields.OUTPUT_SPLIT`).
      beside: endings of the files that are written next to the file of each range: `.spec`.
      metadata: names of the files that `complete` writes; a name here, and of a range's file, may be `name/name`: a
        file in a directory of its own (or deeper).
      numbers_ranges: whether the files of a range lack something until all ranges are finished (`number`).
      merges: whether `complete` merges the files of the ranges; until it is done, the output takes its room twice.
      whole_shards: whether each input shard has to be one range, because the order of its episodes matters.
    """

    directory: str
    name: str
    beside: ClassVar[tuple[str, ...]] = ()
    default_connectors: ClassVar[tuple[Connector, ...]] = ()
    holds: ClassVar[str] = "frame"
    numbers_ranges: ClassVar[bool] = False
    merges: ClassVar[bool] = False
    divides: ClassVar[bool] = False

    @property
    def metadata(self) -> tuple[str, ...]:
        return ()

    @property
    def whole_shards(self) -> bool:
        return False

    @property
    def effort(self) -> CostHint:
        return CostHint()

    @property
    def unjudged(self) -> IgnoredValues:
        """The values that the output has no use for, so that they are not judged."""
        return IgnoredValues(frozenset(self.describe()[1]))

    @classmethod
    @abc.abstractmethod
    def create(cls, source: Source, directory: str, options: Any) -> FileOutput:
        """The output for a dataset; touches nothing.

        Args:
          source: the dataset; its schema is that of the episodes which the connectors return.
          directory: where the files go.
          options: the job's config, with the fields of its option groups.

        Raises:
          UsageError: the output cannot hold such episodes, or an option cannot be used.
        """

    @classmethod
    def create_connected(cls, source: Source, connecting: ConnectorRunner, directory: str, options: Any) -> FileOutput:
        """The output for a dataset whose episodes pass through connectors: by default, `create` for their schema."""
        if connecting.connectors:
            source = source.with_schema(connecting.probed.schema)
        return cls.create(source, directory, options)

    def placed(self, ranges: Sequence[WorkRange]) -> Self:
        """The output, told all ranges of the plan: for names of files that depend on those of other splits."""
        del ranges
        return self

    @abc.abstractmethod
    def plan(self) -> dict[str, Any]:
        """What the bytes depend on besides the episodes, as JSON. Equal plans make equal bytes."""

    @abc.abstractmethod
    def describe(self) -> tuple[list[str], dict[str, str]]:
        """What a record of the output holds, a line for each field; and the fields left out, with the reasons."""

    def stored_names(self) -> Iterable[tuple[str, str]]:
        """The names of files, and of objects within files, that are made of the names of fields: (field, name).

        They are looked at before any work: a name that cannot be stored, or that two fields have, is a UsageError.
        """
        return ()

    @abc.abstractmethod
    def predict(self, steps: Iterable[int]) -> int:
        """The number of items that the episodes of one range give, from their numbers of steps."""

    def count(self, batch: Batch) -> int | None:
        """The number of items that a batch gives, where that follows from its columns; else None (`predict`)."""
        del batch
        return None

    def measure(self, batches: Sequence[Batch]) -> int | None:
        """The bytes that a range's file takes for these batches, to predict the size of an output; writes nothing.

        An episode that cannot be written counts as the record that it was. None where it is not known: the size is not
        predicted, and the disk is not looked at.
        """
        del batches
        return None

    @abc.abstractmethod
    def file(self, work: WorkRange) -> str:
        """The name of a range's file in the directory."""

    def files(self, work: WorkRange) -> tuple[str, ...]:
        """The names of all files of a range: one, unless an output says otherwise."""
        return (self.file(work),)

    @abc.abstractmethod
    def open_range(self, work: WorkRange) -> FileRangeWriter:
        """A writer of that file."""

    def number(self, commits: Sequence[RangeCommit]) -> list[Any]:
        """For each range, as JSON, what its files lack: numbers that are known only when all ranges are finished."""
        return [None for _ in commits]

    def finished_files(self, numbers: Any) -> Sequence[str]:
        """The names of the files that `finish_range` makes in place of those of a range, where it makes others."""
        del numbers
        return ()

    def finish_range(self, commit: RangeCommit, numbers: Any) -> RangeCommit:
        """Writes those numbers into the files of a range, in any worker; returns its commit with the new checksums.

        Or writes other files in place of these, and returns a commit of them: those of the range are removed then.

        It may be killed and run again: the same numbers give the same bytes, whatever was written before.
        """
        del numbers
        return commit

    def notes(self, manifest: Mapping[str, Any]) -> list[str]:
        """Lines for the job's summary on what its user has to know about the finished output."""
        del manifest
        return []

    @abc.abstractmethod
    def complete(self, commits: Sequence[RangeCommit]) -> dict[str, Any]:
        """Writes the metadata, when all ranges are finished and checked; returns the manifest's entry for them.

        An output of a few large files merges the files of the ranges here: where the entry has `merged`, a list of
        `MergedFile`, these take the place of the ranges' files, which are removed.
        """
