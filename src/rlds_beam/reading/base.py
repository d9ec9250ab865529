"""The contract of a source: a dataset of episodes, in any storage format."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

from rlds_beam import naming, storage
from rlds_beam.encoding.base import RecordFormat
from rlds_beam.encoding.tfds.dataset_info import TfdsMetadata
from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.episodes.schema import Schema, schema_tree
from rlds_beam.errors import Violation
from rlds_beam.options import Options
from rlds_beam.reading.meaning import UNKNOWN, LastAction, Meaning
from rlds_beam.text import count, format_size, shorten

_COMPANIONS = 16
"""Companions whose sizes are looked at."""


@dataclasses.dataclass(frozen=True, slots=True)
class Shard:
    """An input file.

    Attributes:
      index: its position in the split, which is the `shard` of an episode's key.
      path: its path.
      size: its size in bytes.
      records: the number of records according to dataset_info.json; None if unknown.
      is_file: whether it is a file. A shard of a recording is computed when it is read: it cannot be fingerprinted,
        sampled, or compared before, is its own range, and its size is an estimate.
    """

    index: int
    path: str
    size: int
    records: int | None
    is_file: bool = True


@dataclasses.dataclass(frozen=True)
class Split:
    """A split, or a slice of its episodes.

    Attributes:
      name: the split's name, for example `train`.
      shards: the existing shards, in order; a `ShardList` if there are many.
      start, stop: the slice, in episodes from the start of the split; a `stop` of None means to the end.
    """

    name: str
    shards: Sequence[Shard]
    start: int = 0
    stop: int | None = None

    @property
    def sliced(self) -> bool:
        return self.start != 0 or self.stop is not None

    @property
    def episodes(self) -> int | None:
        """The number of records (of the slice) according to dataset_info.json; None if unknown."""
        if any(shard.records is None for shard in self.shards):
            return None
        total = sum(shard.records or 0 for shard in self.shards)
        return max(0, min(total, total if self.stop is None else self.stop) - self.start)

    @property
    def taken(self) -> Iterator[tuple[Shard, int, int | None]]:
        """The shards (of the slice), each with its first record and the one after its last; None if unknown."""
        if not self.sliced:
            yield from ((shard, 0, shard.records) for shard in self.shards)
            return
        stop, first = self.start + (self.episodes or 0) if self.stop is None else self.stop, 0
        for shard in self.shards:
            count = shard.records or 0
            low, high = max(self.start - first, 0), min(stop - first, count)
            if low < high:
                yield shard, low, high
            first += count

    @property
    def size(self) -> int:
        """Bytes on disk; for a slice, its share of each shard, by records."""
        if not self.sliced:
            return sum(shard.size for shard in self.shards)
        return sum(shard.size * ((high or 0) - low) // (shard.records or 1) for shard, low, high in self.taken)


@dataclasses.dataclass(frozen=True, slots=True)
class Segment:
    """A segment of a shard: the records whose first byte is in [start, stop).

    `start` and `stop` are byte offsets in a TFRecord shard (of the uncompressed bytes, if it is gzipped), and record
    indices in an ArrayRecord shard. A `stop` of None reads to the end. A record begins at `start`: bytes within a
    record may look like records.
    """

    shard: Shard
    start: int = 0
    stop: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class WorkRange:
    """A unit of work for one worker, which becomes one output shard.

    Attributes:
      split: the name of the split.
      index: the number of the range in its split.
      of: the number of ranges in the split.
      segments: the segments to read, in order.
    """

    split: str
    index: int
    of: int
    segments: tuple[Segment, ...]

    @property
    def number(self) -> str:
        """`00003-of-00010`."""
        return naming.format_shard_number(self.index, self.of)

    def __str__(self) -> str:
        return f"{self.split}-{self.number}"


class Decoder(Protocol):
    """Decodes records into episodes. Picklable."""

    def decode(self, payload: bytes, key: EpisodeKey) -> Episode:
        """Decodes the episode in one record.

        Raises:
          BadEpisode: with all violations. Never anything else, whatever the bytes are.
        """


class Span(NamedTuple):
    """The bytes `start` to `stop` of a file."""

    file: str
    start: int
    stop: int


class VideoSpan(NamedTuple):
    """An episode in a video file, in seconds.

    Attributes:
      path: the file.
      start, stop: the first and the last moment.
      frames: the number of frames.
    """

    path: str
    start: float
    stop: float
    frames: int


@dataclasses.dataclass(frozen=True)
class Details:
    """What opening a dataset found besides its schema and meaning, for reports and outputs.

    Attributes:
      violations: the faults of the dataset as a whole (missing and extra shards).
      notes: what a user should know about how the data are read.
      left_out: the parts of the dataset that are not read, with the reasons.
      videos: the facts about each step field that is stored as videos (`{"video.codec": "av1", ...}`), by path.
      tfds: TFDS's metadata if the records are tf.Examples as TFDS stores RLDS; otherwise None.
    """

    violations: tuple[Violation, ...] = ()
    notes: tuple[str, ...] = ()
    left_out: Mapping[str, str] = dataclasses.field(default_factory=dict)
    videos: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    tfds: TfdsMetadata | None = None

    def without(self, paths: Collection[str], why: str) -> Details:
        """A copy that also lists these fields as left out."""
        return dataclasses.replace(self, left_out={**self.left_out, **dict.fromkeys(paths, why)})


class Source(abc.ABC):
    """A dataset of episodes: where its records are and how to decode them.

    An implementation is a class, for example a frozen dataclass, that inherits from this one, has the attributes below,
    and implements `open`. `--from=rlds` names a built-in source, `--from=module:Class` a user's.

    Attributes:
      dataset: `name/version`, which is the `dataset` of an episode's key.
      schema: the schema of an episode.
      files: reads the records of a shard.
      decoder: decodes a record into an episode.
      splits: the selected splits.
      meaning: the rate, the robot, and what last actions are.
      details: what else opening it found.
      options_class: the class of the source's options. If it has any, `open` takes an instance as `options`.
    """

    meaning: Meaning = UNKNOWN
    details: Details = Details()
    options_class: ClassVar[type[Options]] = Options
    dataset: str
    schema: Schema
    files: RecordFormat
    decoder: Decoder
    splits: tuple[Split, ...]

    @classmethod
    @abc.abstractmethod
    def open(cls, input: str | Sequence[str], *, split: str | None = None, features: str | None = None) -> Source:
        """Opens a dataset; reads only metadata, never a record.

        Args:
          input: the input on the command line: a directory or files.
          split, features: as in `InputOptions`; an option that does not apply to the source is a UsageError.

        Raises:
          UsageError: the dataset does not exist or cannot be read.
        """

    def without(self, paths: Collection[str], why: str) -> Source:
        """The same dataset without these step fields, for a job that does not need them.

        Their values are neither decoded nor checked. A source that cannot decode its records without them returns
        itself.

        Args:
          paths: fields of the schema.
          why: the reason, for `Details.left_out`.
        """
        del paths, why
        return self

    def plan(self) -> dict[str, Any]:
        """Everything but the shards' bytes that the content of an episode depends on, as JSON.

        `functions` holds versions of the user's code, by option.
        """
        return {}

    def companions(self, shard: Shard) -> Sequence[str]:
        """The paths of other files that a shard's episodes are read from, for example videos."""
        del shard
        return ()

    def media(self, shard: Shard, position: int) -> Mapping[str, Sequence[Span] | VideoSpan]:
        """Where the media of a record are as they are, by the paths of their fields.

        A `VideoSpan` is a video that a web browser plays; spans may hold the encoded images, in order.
        """
        del shard, position
        return {}

    # What follows is derived.

    def __str__(self) -> str:
        return f"{self.describe()}\n{schema_tree(self.schema)}"

    def describe(self) -> str:
        """Describes the dataset in words, with the notes."""
        left_out = "".join(f"; left out: {shorten(name)} ({why})" for name, why in self.details.left_out.items())
        size = f", {format_size(self.size)}" if self.has_files else ""
        return "\n".join([f"{self.dataset}: {count(self.episodes, 'episode')}{size}{left_out}", *self.details.notes])

    @property
    def has_files(self) -> bool:
        """Whether the shards are files (`Shard.is_file`)."""
        return all(split.shards[0].is_file for split in self.splits if split.shards)

    @property
    def input_bytes(self) -> int:
        """The bytes to read, with those of companions: a few of them are looked at if there are many."""
        files = sorted({file for split in self.splits for shard in split.shards for file in self.companions(shard)})
        sizes = [storage.size(file) for file in files[:_COMPANIONS] if storage.exists(file)]
        return self.size + sum(sizes) * len(files) // max(1, len(sizes))

    @property
    def fps(self) -> float | None:
        return self.meaning.fps

    @property
    def robot(self) -> str | None:
        return self.meaning.robot

    @property
    def last_action(self) -> LastAction:
        return self.meaning.last_action

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
        """The number of records according to the metadata; None if unknown."""
        counts = [split.episodes for split in self.splits]
        return None if None in counts else sum(count for count in counts if count is not None)
