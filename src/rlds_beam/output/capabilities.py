"""Optional capabilities of outputs: each is a class that an output inherits from.

    class MyOutput(MetadataFiles, ItemCounts): ...

The functions at the end of the module work for any output, with or without the capability.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from rlds_beam.checking.verdicts import IgnoredValues
from rlds_beam.connectors.base import Batch, Connector
from rlds_beam.output.base import Output
from rlds_beam.processing.ranges import RangeWriter

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing from Python 3.11 on

    from rlds_beam.output.commits import RangeCommit
    from rlds_beam.output.shards import ShardInfo
    from rlds_beam.reading.plan import WorkRange
    from rlds_beam.trajectories.unused import UnusedSteps


class MetadataFiles(Output):
    """`complete` writes files."""

    @property
    @abc.abstractmethod
    def metadata(self) -> tuple[str, ...]:
        """The names of all files that `complete` may write: `name` or `name/name`."""


class SeveralFiles(Output):
    """A range has several files: its writer's `finish` returns a `WrittenFile` for each."""

    @abc.abstractmethod
    def files(self, work: WorkRange) -> tuple[str, ...]:
        """The names of a range's files."""

    def file(self, work: WorkRange) -> str:
        return self.files(work)[0]


class Sidecars(Output):
    """A range's writer also writes small files next to the range's file.

    Attributes:
      sidecars: the endings appended to that file's name: `.spec`.
    """

    sidecars: ClassVar[tuple[str, ...]]


class ItemCounts(Output):
    """An episode gives any number of items: frames, pairs, rows."""

    @abc.abstractmethod
    def predict(self, batches: Iterable[Batch]) -> int:
        """The number of items that a range's episodes give, from their lengths and columns."""


class LearnerColumns(Output):
    """Writes the rows of columns that connectors add. Other outputs reject such connectors.

    Attributes:
      default_connectors: the connectors to run if `--connectors` names none.
    """

    default_connectors: ClassVar[tuple[Connector, ...]] = ()


class SeveralSplits(Output):
    """Writes episodes to the splits that SplitEpisodes names (`connectors.fields.OUTPUT_SPLIT`)."""


class WholeShards(Output):
    """The order of a shard's episodes may matter."""

    @property
    @abc.abstractmethod
    def whole_shards(self) -> bool:
        """Whether each input shard must be one range."""


class MergesRanges(Output):
    """`complete` merges the ranges' files into a few large files.

    It returns a list of `MergedFile` as `merged`; these replace the ranges' files, which are then removed. Until then
    the output takes twice its space.
    """


class MergedFile(NamedTuple):
    """A file merged from the files of a split's ranges.

    Attributes:
      file: the name in the output directory.
      split: the split.
      shard: the content of the file.
    """

    file: str
    split: str
    shard: ShardInfo


class GlobalIndices(Output):
    """Files contain, or are named by, indices that count through the whole dataset.

    The indices are known only when all ranges are finished. Then each range gets its indices and writes them into its
    files in place, or writes new files that replace these.
    """

    def with_ranges(self, ranges: Sequence[WorkRange]) -> Self:
        """A copy that knows all ranges of the plan; for file names that depend on other splits' ranges."""
        del ranges
        return self

    @abc.abstractmethod
    def global_indices(self, commits: Sequence[RangeCommit]) -> list[Any]:
        """The indices that each range's files need, as JSON."""

    @abc.abstractmethod
    def finish_range(self, commit: RangeCommit, indices: Any) -> RangeCommit:
        """Writes the indices into a range's files, in any worker; returns its commit with the new checksums.

        Alternatively writes new files (`replacing_files`) and returns a commit that names them; the range's old files
        are then removed. It may be killed and run again: equal indices must give equal bytes.
        """

    def replacing_files(self, indices: Any) -> Sequence[str]:
        """The names of new files that `finish_range` writes to replace a range's files, if any."""
        del indices
        return ()


class SizePrediction(Output):
    """The size of the output can be predicted from a sample of its input."""

    @abc.abstractmethod
    def measure(self, batches: Sequence[Batch]) -> int | None:
        """The bytes that these batches take in a range's file; writes nothing.

        An episode that cannot be written counts as its original record. None if the size cannot be predicted.
        """


class CostHint(NamedTuple):
    """The cost of an output beyond reading the input; used to choose the number of worker processes.

    Attributes:
      copies: how many times each input frame is written: 2 for step pairs.
      decodes_images: whether it decodes JPEGs and PNGs.
      encodes_videos: whether it encodes images as videos.
    """

    copies: float = 1.0
    decodes_images: bool = True
    encodes_videos: bool = False


class CostHints(Output):
    """Costs more or less than writing each frame once with decoded images."""

    @property
    @abc.abstractmethod
    def cost_hint(self) -> CostHint:
        """The cost."""


class IgnoresValues(Output):
    """Uses other values than those of all fields that are not left out."""

    @property
    @abc.abstractmethod
    def ignored_values(self) -> IgnoredValues:
        """The values that it does not use, which are therefore not checked."""


class StoredNames(Output):
    """Field names become names of files or of objects in files."""

    @abc.abstractmethod
    def stored_names(self) -> Iterable[tuple[str, str]]:
        """The names, as (field, name). A name that cannot be stored or is not unique is a UsageError."""


class WithoutMeaning(Output):
    """Has no place for names of dimensions, the robot, or tasks: flags that give them are refused."""


class Notes(Output):
    """Adds notes about the finished output to the job's summary."""

    @abc.abstractmethod
    def notes(self, manifest: Mapping[str, Any]) -> list[str]:
        """Lines for the summary."""


class ReportsUnusedSteps(abc.ABC):
    """A `RangeWriter` that knows which steps are in no item.

    Attributes:
      unused_steps: the unused steps by reason (`checking.unused.REASONS`), available after `finish`.
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
    """The names of all files that the output may write, for the plan."""
    files = [file for work in ranges for file in files_of(output, work)]
    return [*files, *(name for file in files for name in sidecars_of(output, file)), *metadata_of(output)]


def with_ranges(output: Output, ranges: Sequence[WorkRange]) -> Output:
    """A copy of the output that knows all ranges of the plan."""
    return output.with_ranges(ranges) if isinstance(output, GlobalIndices) else output


def needs_whole_shards(output: Output) -> bool:
    """Whether each input shard must be one range."""
    return isinstance(output, WholeShards) and output.whole_shards


def predict_items(output: Output, batches: Iterable[Batch]) -> int:
    """The number of items that a range's episodes give."""
    return output.predict(batches) if isinstance(output, ItemCounts) else sum(len(b.episodes) for b in batches)


def ignored_values(output: Output) -> IgnoredValues:
    """The values that the output does not use; by default, those of the fields it leaves out."""
    if isinstance(output, IgnoresValues):
        return output.ignored_values
    return IgnoredValues(frozenset(output.describe().left_out))


def cost_of(output: Output) -> CostHint:
    """The cost of the output beyond reading the input."""
    return output.cost_hint if isinstance(output, CostHints) else CostHint()


def unused_steps_of(writer: RangeWriter) -> Mapping[str, UnusedSteps]:
    """The steps that are in no item, by reason, if the writer knows them."""
    return writer.unused_steps if isinstance(writer, ReportsUnusedSteps) else {}
