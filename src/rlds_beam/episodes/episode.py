"""The element of every pipeline: one episode, columnar, its images still encoded."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from rlds_beam.episodes.keys import EpisodeKey
from rlds_beam.errors import UsageError, Violation
from rlds_beam.images.encoded_images import EncodedImages

Column: TypeAlias = "np.ndarray[Any, Any] | EncodedImages"
"""One field of all steps: leading axis T. `EncodedImages` until pixels are needed."""


@dataclasses.dataclass(frozen=True)
class Episode:
    """One episode.

    Attributes:
      key: where it was read.
      steps: flat mapping from path (`observation/image_0`, `action`, `is_first`) to one column
        with leading axis T. Text is an object array of `bytes`; images are `EncodedImages`;
        everything else is an array of the dtype that the dataset declares. Never write into a
        column: it may be a view of the bytes that were read.
      metadata: flat mapping from path (`episode_id`) to the value of an episode-level field.
      payload: the record exactly as it was read (a serialised tf.Example), so that a rejected
        episode can be kept as its original bytes. Empty for an episode that was not read from a file.
      faults: what reading found wrong. Where it is not empty the record could not be read as an
        episode, `steps` is empty, and `validate_episode` rejects it: a bad record takes the same path as all others,
        so that none is lost.
      payload_crc: the masked CRC32C of `payload`, where reading it has compared that. Set by whoever reads; a copy made
        by `replace` has none, since its payload may be another one.
    """

    key: EpisodeKey
    steps: Mapping[str, Column]
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    payload: bytes = b""
    faults: tuple[Violation, ...] = ()
    payload_crc: int | None = dataclasses.field(default=None, init=False, repr=False, compare=False)

    def __len__(self) -> int:
        """Number of steps, T."""
        return len(next(iter(self.steps.values()))) if self.steps else 0

    def with_payload_crc(self, crc: int) -> Episode:
        """The same episode, just read, with the checksum that its payload was compared with."""
        object.__setattr__(self, "payload_crc", crc)
        return self

    def replace(self, **changes: Any) -> Episode:
        """A copy with `changes` (dataclasses.replace)."""
        return dataclasses.replace(self, **changes)

    def with_columns(self, columns: Mapping[str, Column]) -> Episode:
        """A copy with more step columns, or others in the place of those of the same path.

        Raises:
          UsageError: a column is not of T steps.
        """
        for path, column in columns.items():
            if len(column) != len(self):
                raise UsageError(f"{self.key}: {path} has {len(column)} values for an episode of {len(self)} steps")
        return self.replace(steps={**self.steps, **columns})

    def slice(self, start: int, stop: int) -> Episode:
        """The steps `start:stop` (views, not copies), with the same key and metadata."""
        return self.replace(steps={path: column[start:stop] for path, column in self.steps.items()})
