"""Episode keys, which are the same on every run and worker; the names of flags and metadata."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping

import numpy as np

from rlds_beam.text import printable
from rlds_beam.typing import Array

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


FLAGS = ("is_first", "is_last", "is_terminal")
"""The RLDS step flags."""

FIRST, MID, LAST = 0, 1, 2
"""Step type values."""


def episode_flags(length: int, *, last: bool = True, terminal: bool = True) -> dict[str, Array]:
    """The flags of an episode's steps, bool [T]; `last` and `terminal` set the flags of the last step."""
    index = np.arange(length)
    end = index == length - 1
    return {"is_first": index == 0, "is_last": end & last, "is_terminal": end & terminal}


def tree(groups: Mapping[str, Mapping[str, str]]) -> str:
    """Trees of paths, each with a text: one tree for each group that has any."""
    lines: list[tuple[str, str]] = []
    for name, texts in groups.items():
        if texts:
            lines.append((name, ""))
            lines += _branches({tuple(path.split("/")): text for path, text in texts.items()}, "")
    width = max((len(name) for name, text in lines if text), default=0)
    return "\n".join(f"{name:{width}}  {text}".rstrip() for name, text in lines)


def shape_text(shape: tuple[int | None, ...]) -> str:
    """A shape as numpy writes it, with unknown sizes as question marks: `(7,)`, `(?, 3)`, `()`."""
    dims = ", ".join("?" if size is None else str(size) for size in shape)
    return f"({dims}{',' if len(shape) == 1 else ''})"


def type_text(dtype: str, shape: tuple[int | None, ...]) -> str:
    """A dtype and a shape: `float32 (7,)`, `bool`."""
    return f"{dtype} {shape_text(shape)}" if shape else dtype


def _branches(texts: Mapping[tuple[str, ...], str], indent: str) -> Iterable[tuple[str, str]]:
    """The lines below a node: each with the name, and the text of a leaf."""
    names = list(dict.fromkeys(path[0] for path in texts))
    for name in names:
        last = name == names[-1]
        yield f"{indent}{'└── ' if last else '├── '}{printable(name)}", texts.get((name,), "")
        below = {path[1:]: text for path, text in texts.items() if path[0] == name and len(path) > 1}
        if below:
            yield from _branches(below, indent + ("    " if last else "│   "))
