"""The contract of an output: what a conversion writes for each range, and what completes the dataset.

`Output` is all that an output must implement. Features that only some outputs have are in `capabilities`.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from rlds_beam.options import Options
from rlds_beam.processing.ranges import RangeWriter

if TYPE_CHECKING:
    from rlds_beam.connectors.runner import ConnectorRunner
    from rlds_beam.output.commits import RangeCommit
    from rlds_beam.output.shards import ShardInfo, WrittenFile
    from rlds_beam.reading.base import Source
    from rlds_beam.reading.plan import WorkRange


class FileRangeWriter(RangeWriter, Protocol):
    """A `RangeWriter` of one file; for several files, `finish` returns a `WrittenFile` for each (`SeveralFiles`)."""

    def finish(self) -> ShardInfo | tuple[WrittenFile, ...]: ...


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
    """An output directory: one file for each work range, and the metadata that completes them. Picklable.

    An output is a class, for example a frozen dataclass, that inherits from this one or from some of `capabilities`.
    `--to=trajectories` names a built-in output, `--to=module:Class` a user's. An episode is one item, unless the output
    inherits from `ItemCounts`.

    Attributes:
      directory: the output directory.
      options_class: the class of the options that `create` takes; its options become flags.
    """

    directory: str
    options_class: ClassVar[type[Options]] = Options

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
    def open_range(self, work: WorkRange) -> FileRangeWriter:
        """Opens a writer of that file."""

    def complete(self, commits: Sequence[RangeCommit]) -> dict[str, Any]:
        """Runs once when all ranges are finished and checked; returns the manifest's entry as JSON."""
        del commits
        return {}
