"""Where an episode comes from: the same on every run and every worker."""

from __future__ import annotations

import dataclasses
import re

_PATTERN = re.compile(r"(?P<dataset>[^:]+):(?P<split>[^:]+):(?P<shard>\d+)@(?P<position>\d+)(\.(?P<part>\d+))?")


@dataclasses.dataclass(frozen=True, order=True)
class EpisodeKey:
    """The immutable address of an episode.

    Attributes:
      dataset: `name/version` (or `name/config/version`), as TFDS spells it.
      split: the split's name, `train`.
      shard: the index of the input shard within the split, from 0.
      position: byte offset of the record in a TFRecord shard (in the uncompressed bytes of a
        gzip shard); index of the record in an ArrayRecord shard.
      part: 0, unless a repair split the record into several episodes: then 0, 1, 2, ...

    `str(key)` is `bridge_dataset/1.0.0:train:00000@12345` (followed by `.part` if that is not 0),
    and `EpisodeKey.parse` reads it back.
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
        """Whether the episode was not read, but made of zeros, to see what connectors make of it."""
        return self == PROBE

    @property
    def shard_name(self) -> str:
        """`train:00000`: the shard within its dataset."""
        return f"{self.split}:{self.shard:05d}"

    @classmethod
    def parse(cls, text: str) -> EpisodeKey:
        """Reads `str(key)` back; raises ValueError if `text` is not the string form of a key."""
        match = _PATTERN.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not an episode key; expected dataset:split:shard@position")
        return cls(
            match["dataset"], match["split"], int(match["shard"]), int(match["position"]), int(match["part"] or 0)
        )


PROBE = EpisodeKey("probe/1.0.0", "train", 0, 0)
"""Of episodes of zeros, with which connectors are tried."""
