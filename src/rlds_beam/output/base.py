"""The contract of an output: what a conversion writes, range by range, and what completes it.

`Output` is all that an output needs. What only some of them can do, or have to be asked, is in `capabilities`.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from rlds_beam.connectors.base import Batch
from rlds_beam.options import Options

if TYPE_CHECKING:
    from rlds_beam.connectors.runner import ConnectorRunner
    from rlds_beam.output.commits import RangeCommit
    from rlds_beam.output.shards import ShardInfo, WrittenFile
    from rlds_beam.reading.base import Source
    from rlds_beam.reading.plan import WorkRange


class RangeWriter(Protocol):
    """Writes the checked episodes of one work range, in order.

    Attributes:
      predicted: the number of items that the episodes written so far should give, calculated and not counted.
    """

    @property
    def predicted(self) -> int: ...

    def write(self, batch: Batch) -> None:
        """Writes the episodes of one record, as the connectors returned them: all of them, or none if it raises.

        Raises:
          BadEpisode: one of them cannot be written: for example, an image that cannot be decoded.
        """

    def finish(self) -> Any:
        """Completes the range; of a file, its `ShardInfo`. Only now the file gets its name."""

    def abort(self) -> None:
        """Removes what was written so far; does nothing after `finish`."""


class FileRangeWriter(RangeWriter, Protocol):
    """A `RangeWriter` of one file. One of several files returns a `WrittenFile` for each of them (`SeveralFiles`)."""

    def finish(self) -> ShardInfo | tuple[WrittenFile, ...]: ...


class Description(NamedTuple):
    """What an output holds, for a person.

    Attributes:
      fields: what a record holds, a line for each field.
      left_out: the fields that are not written, with the reasons.
      record: what a record is, in a word.
    """

    fields: list[str]
    left_out: Mapping[str, str] = {}
    record: str = "episode"


class Output(abc.ABC):
    """Files in a directory, one for each work range, and what completes them. Pickles.

    An output is a class that inherits from this one, or from some of `capabilities`: for example, a frozen dataclass.
    `--to=trajectories` names one of ours, `--to=module:Class` a user's. An episode is one item, unless the output has
    the capability `ItemCounts`.

    Attributes:
      directory: where the files go.
      options_class: the options that `create` takes. Those of your own output become flags.
    """

    directory: str
    options_class: ClassVar[type[Options]] = Options

    @classmethod
    @abc.abstractmethod
    def create(cls, source: Source, connectors: ConnectorRunner, directory: str, options: Any) -> Output:
        """The output for a dataset; touches nothing.

        Args:
          source: the dataset as it is read.
          connectors: what its episodes pass through; `connectors.schema` is the schema of what is written.
          directory: where the files go.
          options: an `options_class`.

        Raises:
          UsageError: the output cannot hold such episodes, or an option cannot be used.
        """

    @abc.abstractmethod
    def plan(self) -> dict[str, Any]:
        """What the bytes depend on besides the episodes, as JSON. Equal plans make equal bytes."""

    @abc.abstractmethod
    def describe(self) -> Description:
        """What a record of the output holds, and what is left out."""

    @abc.abstractmethod
    def file(self, work: WorkRange) -> str:
        """The name of a range's file in the directory. `name/name` is a file in a directory there."""

    @abc.abstractmethod
    def open_range(self, work: WorkRange) -> FileRangeWriter:
        """A writer of that file."""

    def complete(self, commits: Sequence[RangeCommit]) -> dict[str, Any]:
        """Runs once, when all ranges are finished and checked; returns the manifest's entry, as JSON."""
        del commits
        return {}
