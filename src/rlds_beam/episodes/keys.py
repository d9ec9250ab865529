"""Episode keys, which are the same on every run and worker."""

from __future__ import annotations

import dataclasses
import re

_PATTERN = re.compile(r"(?P<dataset>[^:]+):(?P<split>[^:]+):(?P<shard>\d+)@(?P<position>\d+)(\.(?P<part>\d+))?")

EPISODE_KEY = "episode_key"
"""The field in which outputs keep the key of the episode that they were given."""


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
