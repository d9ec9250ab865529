"""The contract of a source: a dataset of episodes, in any storage format."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from rlds_beam.encoding.base import RecordFormat
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.keys import EpisodeKey
from rlds_beam.episodes.schema import Schema
from rlds_beam.errors import Violation
from rlds_beam.options import Options
from rlds_beam.text import count, format_size

if TYPE_CHECKING:
    pass  # of typing from Python 3.11 on


@dataclasses.dataclass(frozen=True)
class Shard:
    """One input file.

    Attributes:
      index: position within the split, the `shard` of an episode's key.
      path: where it is.
      size: bytes on disk.
      records: how many records dataset_info.json says it holds; None where nothing says so.
    """

    index: int
    path: str
    size: int
    records: int | None


@dataclasses.dataclass(frozen=True)
class Split:
    """One split, whole or a slice of its episodes.

    Attributes:
      name: `train`.
      shards: the shards that exist, in order.
      start, stop: the slice, in episodes from the start of the split; None means to the end.
    """

    name: str
    shards: tuple[Shard, ...]
    start: int = 0
    stop: int | None = None

    @property
    def sliced(self) -> bool:
        return self.start != 0 or self.stop is not None

    @property
    def episodes(self) -> int | None:
        """How many records dataset_info.json promises (of the slice); None where nothing does."""
        if any(shard.records is None for shard in self.shards):
            return None
        total = sum(shard.records or 0 for shard in self.shards)
        return max(0, min(total, total if self.stop is None else self.stop) - self.start)

    @property
    def taken(self) -> list[tuple[Shard, int, int]]:
        """The shards that a slice takes records of, and which: the first, and the one after the last."""
        stop = self.stop if self.stop is not None else self.start + (self.episodes or 0)
        taken, first = [], 0
        for shard in self.shards:
            count = shard.records or 0
            low, high = max(self.start - first, 0), min(stop - first, count)
            if low < high:
                taken.append((shard, low, high))
            first += count
        return taken

    @property
    def size(self) -> int:
        """Bytes on disk; of a slice, those of its share of the records of each shard."""
        if not self.sliced:
            return sum(shard.size for shard in self.shards)
        return sum(shard.size * (high - low) // (shard.records or 1) for shard, low, high in self.taken)


@dataclasses.dataclass(frozen=True)
class Segment:
    """A stretch of one shard: the records whose first byte lies in [start, stop).

    `start` and `stop` are byte offsets in a TFRecord shard (of the uncompressed bytes, where it is
    gzip) and record indices in an ArrayRecord shard; `stop` None reads to the end. `start` is where a
    record begins: bytes within a record may look like records.
    """

    shard: Shard
    start: int = 0
    stop: int | None = None


class Decoder(Protocol):
    """Makes episodes of records. Pickles."""

    def decode(self, payload: bytes, key: EpisodeKey) -> Episode:
        """The episode in one record.

        Raises:
          BadEpisode: with every violation found. Nothing else, whatever the bytes are.
        """


class TfdsMetadata(NamedTuple):
    """What TFDS says of a dataset.

    Attributes:
      features: the text of its features.json.
      info: the text of its dataset_info.json; None where there is none.
      files: the bytes of files next to them that belong to the data, by file name: class names, licenses, the
        provenance of what rlds-beam wrote. They are only copied, so they may be in any encoding.
      outside: the names of those of these files that are links to files outside of the dataset: never copied.
    """

    features: str
    info: str | None = None
    files: Mapping[str, bytes] = {}
    outside: tuple[str, ...] = ()


class Source(abc.ABC):
    """A dataset of episodes: where its records are, and how one becomes an episode.

    An implementation is a class that inherits from this one, has the attributes below (a frozen dataclass, say), and
    an `open`. `--from=rlds` names ours, `--from=module:Class` a user's.

    Attributes:
      dataset: `name/version`, the `dataset` of an episode's key.
      schema: what an episode holds.
      files: how the records of a shard are read.
      decoder: how a record becomes an episode.
      splits: the selected ones.
      violations: what is wrong with the dataset as a whole (missing and extra shards).
      fps: frames a second, where the dataset says so.
      has_files: whether the shards are files. Those of a recording are not: there is nothing to fingerprint, to sample
        or to compare before they are read, and each is a range of its own.
      options_class: the options of the source. If it has any, `open` takes an instance of the class as `options`.
    """

    fps: float | None = None
    has_files: ClassVar[bool] = True
    options_class: ClassVar[type[Options]] = Options
    dataset: str
    schema: Schema
    files: RecordFormat
    decoder: Decoder
    splits: tuple[Split, ...]
    violations: tuple[Violation, ...]

    @classmethod
    @abc.abstractmethod
    def open(cls, input: str | Sequence[str], *, split: str | None = None, features: str | None = None) -> Source:
        """Finds what there is to read; reads metadata only, never a record.

        Args:
          input: what the command line names: a directory, or files.
          split, features: as in `SourceOptions`; an option that the source has no use for is a UsageError.

        Raises:
          UsageError: there is no such dataset, or it cannot be read.
        """

    def describe(self) -> str:
        """What there is to read, for a person."""
        return f"{self.dataset}: {count(self.episodes, 'episode')}, {format_size(self.size)}"

    def plan(self) -> dict[str, Any]:
        """What the content of an episode depends on besides the shards' bytes, as JSON.

        `functions` are versions of the user's code, by option.
        """
        return {}

    def companions(self, shard: Shard) -> Sequence[str]:
        """Paths of the other files that a shard's episodes are read from, for example their videos."""
        del shard
        return ()

    def decode_seconds(self) -> float:
        """About how many seconds one core takes to decode what the sizes of the shards do not tell of: videos."""
        return 0.0

    def most_steps(self) -> int | None:
        """An upper bound of the dataset's steps; None where the files' sizes give none."""
        return None

    @property
    def tfds(self) -> TfdsMetadata | None:
        """The metadata of a dataset whose records are tf.Examples as TFDS stores RLDS; None of any other."""
        return None

    @property
    def name(self) -> str:
        """The dataset's name without its version."""
        return self.dataset.split("/")[0]

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(split.size for split in self.splits)

    @property
    def episodes(self) -> int | None:
        """How many records the metadata promises; None where it does not say."""
        counts = [split.episodes for split in self.splits]
        return None if None in counts else sum(count for count in counts if count is not None)
