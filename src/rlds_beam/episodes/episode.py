"""The element of every pipeline: one episode as columns, with images still encoded; and its key."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from rlds_beam.errors import UsageError, Violation
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.lazy import Viewable
from rlds_beam.text import count, format_size, shorten, tree, type_text

_PATTERN = re.compile(r"(?P<dataset>[^:]+):(?P<split>[^:]+):(?P<shard>\d+)@(?P<position>\d+)(\.(?P<part>\d+))?")

EPISODE_KEY = "episode_key"
"""The field in which outputs keep `str(episode.key)`."""

SOURCE_DATASET = "source_dataset"
"""The episode field with the dataset that an episode of merged datasets is from: `name/version`, as bytes."""


@dataclasses.dataclass(frozen=True, order=True)
class EpisodeKey:
    """The address of an episode in its dataset.

    Attributes:
      dataset: `name/version` or `name/config/version`, as in TFDS.
      split: the name of the split, for example `train`.
      shard: the index of the input shard within the split, from 0.
      position: the byte offset of the record in a TFRecord shard (in the uncompressed bytes of a gzip shard), or its
        index in an ArrayRecord shard.
      part: 0, 1, 2, ... if a repair split the record into several episodes, otherwise 0.

    `str(key)` is `bridge_dataset/1.0.0:train:00000@12345`, followed by `.part` if that is not 0. `EpisodeKey.parse` is
    its inverse.
    """

    dataset: str
    split: str
    shard: int
    position: int
    part: int = 0

    def __str__(self) -> str:
        part = f".{self.part}" if self.part else ""
        return f"{self.dataset}:{self.split}:{self.shard:05d}@{self.position}{part}"

    @property
    def of_probe(self) -> bool:
        """Whether the episode is the dry run of zeros that determines the outputs of connectors."""
        return self == PROBE

    @property
    def shard_name(self) -> str:
        """`train:00000`: the shard within its dataset."""
        return f"{self.split}:{self.shard:05d}"

    @classmethod
    def parse(cls, text: str) -> EpisodeKey:
        """Parses `str(key)`; raises ValueError if `text` is not a key."""
        match = _PATTERN.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not an episode key; expected dataset:split:shard@position")
        return cls(
            match["dataset"], match["split"], int(match["shard"]), int(match["position"]), int(match["part"] or 0)
        )


PROBE = EpisodeKey("probe/1.0.0", "train", 0, 0)
"""The key of the episode of zeros with which connectors are tried."""


Column: TypeAlias = "np.ndarray[Any, Any] | EncodedImages"
"""One field of all steps, with leading axis T; images are `EncodedImages` until pixels are needed."""


@dataclasses.dataclass(frozen=True, repr=False)
class Episode(Viewable):
    """An episode.

    Attributes:
      key: where the episode was read from.
      steps: flat mapping from path (`observation/image_0`, `action`, `is_first`) to a column with leading axis T. Text
        is an object array of `bytes`; images are `EncodedImages`; everything else is an array of the declared dtype.
        Never modify a column: it may be a view of the record.
      metadata: flat mapping from path (`episode_id`) to the value of an episode-level field.
      payload: the record exactly as read (a serialized tf.Example), so that a rejected episode keeps its original
        bytes. Empty if the episode was not read from a file.
      faults: the problems found while reading. If there are any, the record could not be read as an episode, `steps`
        is empty, and `validate_episode` rejects it. Bad records take the same path as all others, so none is lost.
      last_action_is_real: whether the last step has the action taken at its observation, and its reward, as in robot
        data; by default they are void, as RLDS defines (`columns.transitions`).
      payload_crc: the masked CRC32C of `payload`, if the reader has verified it. A copy made by `replace` has none,
        since its payload may differ.
      sound: whether the reader has seen that its numbers break no rule. A copy made by `replace` is not, since its
        columns may differ.
    """

    key: EpisodeKey
    steps: Mapping[str, Column]
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    payload: bytes = b""
    faults: tuple[Violation, ...] = ()
    last_action_is_real: bool = False
    payload_crc: int | None = dataclasses.field(default=None, init=False, repr=False, compare=False)
    sound: bool = dataclasses.field(default=False, init=False, repr=False, compare=False)

    def __len__(self) -> int:
        """The number of steps, T."""
        return len(next(iter(self.steps.values()))) if self.steps else 0

    def __repr__(self) -> str:
        """The key, and the types of the columns as a tree."""
        steps = {path: kind_of_column(column) for path, column in sorted(self.steps.items())}
        metadata = {path: kind_of_value(value) for path, value in sorted(self.metadata.items())}
        faults = [f"fault: {shorten(fault)}" for fault in self.faults]
        title = f"Episode {self.key}: {count(len(self), 'step')}"
        return "\n".join(line for line in [title, *faults, tree({"step": steps, "episode": metadata})] if line)

    def note(self, **facts: Any) -> Episode:
        """Sets `payload_crc`, `last_action_is_real`, or `sound` of an episode that was just read; returns the same."""
        for name, value in facts.items():
            object.__setattr__(self, name, value)
        return self

    def replace(self, **changes: Any) -> Episode:
        """A copy with `changes`, like dataclasses.replace."""
        return dataclasses.replace(self, **changes)

    def with_columns(self, columns: Mapping[str, Column]) -> Episode:
        """A copy with step columns added or replaced.

        Raises:
          UsageError: a column does not have T steps.
        """
        for path, column in columns.items():
            if len(column) != len(self):
                raise UsageError(f"{self.key}: {path} has {len(column)} values, but the episode has {len(self)} steps")
        return self.replace(steps={**self.steps, **columns})

    def slice(self, start: int, stop: int) -> Episode:
        """The steps `start:stop` as views, with the same key and metadata."""
        return self.replace(steps={path: column[start:stop] for path, column in self.steps.items()})


def kind_of_column(column: Column) -> str:
    """The type of a column's values: `float32 (7,)`, `uint8 (96, 96, 3) jpeg, 1.2 MB`, `text`."""
    if isinstance(column, EncodedImages):
        size = format_size(sum(len(image) for image in column))
        return f"{type_text(column.dtype, column.shape)} {column.encoding}, {size}"
    if column.dtype.kind in "OSU":
        return "arrays of several shapes" if any(isinstance(value, np.ndarray) for value in column) else "text"
    return type_text(column.dtype.name, column.shape[1:])


def kind_of_value(value: Any, most: int = 60) -> str:
    """A value of the episode in up to `most` characters, or its type if it is an image or a large array."""
    if isinstance(value, (bytes, str)):
        is_text = isinstance(value, str) or not value.startswith((b"\xff\xd8\xff", b"\x89PNG"))
        return shorten(value, most) if is_text else f"image, {format_size(len(value))}"
    array = np.asarray(value)
    return shorten(value, most) if array.size <= 8 else type_text(array.dtype.name, array.shape)
