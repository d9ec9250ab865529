"""What only some outputs can do, or have to be asked: each a class that an output inherits from, next to its others.

    class MyOutput(MetadataFiles, ItemCounts): ...

The functions at the end of the module ask any output, with or without the capability.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from rlds_beam.checking.verdicts import IgnoredValues
from rlds_beam.connectors.base import Batch, Connector
from rlds_beam.output.base import Output, RangeWriter

if TYPE_CHECKING:
    from typing_extensions import Self  # of typing from Python 3.11 on

    from rlds_beam.checking.unused import UnusedSteps
    from rlds_beam.output.commits import RangeCommit
    from rlds_beam.output.shards import ShardInfo
    from rlds_beam.reading.plan import WorkRange


class MetadataFiles(Output):
    """`complete` writes files."""

    @property
    @abc.abstractmethod
    def metadata(self) -> tuple[str, ...]:
        """The names of all files that `complete` may write; `name/name` is a file in a directory."""


class SeveralFiles(Output):
    """A range is several files: `finish` of its writer returns a `WrittenFile` for each."""

    @abc.abstractmethod
    def files(self, work: WorkRange) -> tuple[str, ...]:
        """Their names."""

    def file(self, work: WorkRange) -> str:
        return self.files(work)[0]


class Sidecars(Output):
    """The writer of a range also writes small files that belong to the range's file.

    Attributes:
      sidecars: the endings that the name of that file gets: `.spec`.
    """

    sidecars: ClassVar[tuple[str, ...]]


class ItemCounts(Output):
    """An episode is not one item, but some number of them: frames, pairs, rows."""

    @abc.abstractmethod
    def predict(self, batches: Iterable[Batch]) -> int:
        """The number of items that the episodes of one range give, from their lengths and columns."""


class LearnerColumns(Output):
    """The rows of the columns that connectors add are written. Other outputs refuse such connectors.

    Attributes:
      default_connectors: those that run if `--connectors` names none.
    """

    default_connectors: ClassVar[tuple[Connector, ...]] = ()


class SeveralSplits(Output):
    """Episodes go to the splits that SplitEpisodes names (`connectors.fields.OUTPUT_SPLIT`)."""


class WholeShards(Output):
    """The order of a shard's episodes may matter."""

    @property
    @abc.abstractmethod
    def whole_shards(self) -> bool:
        """Whether each input shard has to be one range."""


class MergesRanges(Output):
    """`complete` merges the files of the ranges into a few large files.

    It returns a list of `MergedFile` as `merged`; these replace the files of the ranges, which are removed. Until then
    the output takes its room twice.
    """


class MergedFile(NamedTuple):
    """A file merged from the files of the ranges of a split.

    Attributes:
      file: its name in the output directory.
      split: the split.
      shard: what is in it.
    """

    file: str
    split: str
    shard: ShardInfo


class GlobalIndices(Output):
    """Files hold, or are named by, numbers that count through the whole dataset.

    They are known only when all ranges are finished. Then each range is given its numbers, and writes them into its
    files in place, or other files that replace these.
    """

    def with_ranges(self, ranges: Sequence[WorkRange]) -> Self:
        """The output, told all ranges of the plan, for file names that depend on the ranges of other splits."""
        del ranges
        return self

    @abc.abstractmethod
    def global_indices(self, commits: Sequence[RangeCommit]) -> list[Any]:
        """For each range, as JSON, the numbers that its files lack."""

    @abc.abstractmethod
    def finish_range(self, commit: RangeCommit, indices: Any) -> RangeCommit:
        """Writes these numbers into the files of a range, in any worker; returns its commit with the new checksums.

        Or writes other files (`replacing_files`), and returns a commit that names them; those of the range are removed
        then. It may be killed and run again: the same numbers give the same bytes, whatever was written before.
        """

    def replacing_files(self, indices: Any) -> Sequence[str]:
        """The names of the files that `finish_range` writes to replace those of a range, if it does."""
        del indices
        return ()


class SizePrediction(Output):
    """The size of the output can be predicted from a sample of its input."""

    @abc.abstractmethod
    def measure(self, batches: Sequence[Batch]) -> int | None:
        """The bytes that a range's file takes for these batches; writes nothing.

        An episode that cannot be written counts as the record that it was. None if the size cannot be predicted.
        """


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


class CostHints(Output):
    """An output that costs more or less than writing each frame once, its images decoded."""

    @property
    @abc.abstractmethod
    def cost_hint(self) -> CostHint:
        """What it costs."""


class IgnoresValues(Output):
    """An output that uses other values than those of all fields but the ones left out."""

    @property
    @abc.abstractmethod
    def ignored_values(self) -> IgnoredValues:
        """The values that it does not use, so that they are not checked."""


class StoredNames(Output):
    """Names of fields become names of files, or of objects in files."""

    @abc.abstractmethod
    def stored_names(self) -> Iterable[tuple[str, str]]:
        """These names: (field, name). One that cannot be stored, or that two fields have, is a UsageError."""


class Notes(Output):
    """There is something to know about the finished output."""

    @abc.abstractmethod
    def notes(self, manifest: Mapping[str, Any]) -> list[str]:
        """Lines for the job's summary."""


class ReportsUnusedSteps(abc.ABC):
    """A `RangeWriter` that knows which steps are in no item.

    Attributes:
      unused_steps: these, by reason (`checking.unused.REASONS`), after `finish`.
    """

    @property
    @abc.abstractmethod
    def unused_steps(self) -> Mapping[str, UnusedSteps]: ...


def files_of(output: Output, work: WorkRange) -> tuple[str, ...]:
    """The names of a range's files."""
    return output.files(work) if isinstance(output, SeveralFiles) else (output.file(work),)


def sidecars_of(output: Output, file: str) -> tuple[str, ...]:
    """The names of the sidecar files of a range's file."""
    return tuple(file + ending for ending in output.sidecars) if isinstance(output, Sidecars) else ()


def metadata_of(output: Output) -> tuple[str, ...]:
    """The names of the files that `complete` may write."""
    return output.metadata if isinstance(output, MetadataFiles) else ()


def all_files_of(output: Output, ranges: Iterable[WorkRange]) -> list[str]:
    """The names of all files that may be written, for the plan."""
    files = [file for work in ranges for file in files_of(output, work)]
    return [*files, *(name for file in files for name in sidecars_of(output, file)), *metadata_of(output)]


def with_ranges(output: Output, ranges: Sequence[WorkRange]) -> Output:
    """The output, told all ranges of the plan."""
    return output.with_ranges(ranges) if isinstance(output, GlobalIndices) else output


def needs_whole_shards(output: Output) -> bool:
    """Whether each input shard has to be one range."""
    return isinstance(output, WholeShards) and output.whole_shards


def predict_items(output: Output, batches: Iterable[Batch]) -> int:
    """The number of items that the episodes of one range give."""
    return output.predict(batches) if isinstance(output, ItemCounts) else sum(len(b.episodes) for b in batches)


def ignored_values(output: Output) -> IgnoredValues:
    """The values that the output does not use: by default, of the fields that it leaves out."""
    if isinstance(output, IgnoresValues):
        return output.ignored_values
    return IgnoredValues(frozenset(output.describe().left_out))


def cost_of(output: Output) -> CostHint:
    """What the output costs besides reading the input."""
    return output.cost_hint if isinstance(output, CostHints) else CostHint()


def unused_steps_of(writer: RangeWriter) -> Mapping[str, UnusedSteps]:
    """The steps that are in no item, by reason, if the writer knows them."""
    return writer.unused_steps if isinstance(writer, ReportsUnusedSteps) else {}
