"""The names of the files of a LeRobot dataset: of v3.0, and of v2.1, which has files for each episode.

`PathTemplate` fills in those of other datasets, whose `info.json` is not trusted.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import Literal

from rlds_beam import naming
from rlds_beam.errors import UsageError
from rlds_beam.text import shorten

V3, V21 = "v3.0", "v2.1"

Version = Literal["3.0", "2.1"]

CHUNK = 1000
"""Maximum number of files in a directory; of episodes in v2.1."""

DATA_MB, VIDEO_MB = 100, 200
"""Size at which LeRobot begins another file in v3.0. A range is smaller."""

DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
EPISODES_PATH = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
TASKS = "meta/tasks.parquet"

EPISODE_DATA_PATH = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
EPISODE_VIDEO_PATH = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
EPISODES_JSONL, TASKS_JSONL = "meta/episodes.jsonl", "meta/tasks.jsonl"
EPISODES_STATS_JSONL = "meta/episodes_stats.jsonl"
MODALITY = "meta/modality.json"
"""Additional file that GR00T reads."""

INFO, STATS = "meta/info.json", "meta/stats.json"
CARD = "README.md"
FIELDS = "meta/rlds_beam.json"
"""The original fields of the episodes, to read them back."""

EPISODE_COLUMNS = ("episode_index", "tasks", "length", "dataset_from_index", "dataset_to_index", "episode_key")
"""The columns of meta/episodes that rlds-beam always writes; the others are fields of the episodes."""

RANGES_IN_EPISODES = 256
"""Number of ranges that share a file of meta/episodes."""


def episodes_files(ranges: int) -> int:
    """The number of files of meta/episodes for this number of ranges."""
    return max(1, -(-ranges // RANGES_IN_EPISODES))


def place(number: int) -> dict[str, int]:
    """The location of the file with this number."""
    return {"chunk_index": number // CHUNK, "file_index": number % CHUNK}


def place_of_episode(index: int, chunk: int = CHUNK) -> dict[str, int]:
    """The location of an episode's files (v2.1)."""
    return {"episode_chunk": index // chunk, "episode_index": index}


_NUMBER = re.compile(r"\{(\w+)(?::0?(?:1?\d|20)d)?\}")
"""A placeholder of LeRobot: `{chunk_index:03d}`, with up to 20 digits."""
_KEY = "{video_key}"


@dataclasses.dataclass(frozen=True)
class PathTemplate:
    """A template that only gives files in the dataset's directory.

    Attributes:
      text: the template; `str.format` can fill it in safely.
    """

    text: str

    @classmethod
    def of(cls, text: object, numbers: Iterable[str], where: str, keys: Iterable[str] = ()) -> PathTemplate:
        """Checks a template.

        Args:
          text: the template: `data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet`.
          numbers: the names of numeric placeholders.
          where: the file and field with the template, for the error.
          keys: the values of `{video_key}`; empty for data files.

        Raises:
          UsageError: it has other placeholders or formats, or its files could be outside the dataset.
        """
        known, keys = tuple(numbers), tuple(keys)
        template = text if isinstance(text, str) else ""
        plain = _NUMBER.sub(lambda match: "0" if match[1] in known else match[0], template)
        foreign = bool({"{", "}"} & set(plain.replace(_KEY, "") if keys else plain))
        for sample in [plain.replace(_KEY, key) for key in keys] or [plain]:
            if foreign or not naming.is_file_path(sample):
                expected = [*(f"{{{name}:03d}}" for name in known), *([_KEY] if keys else [])]
                raise UsageError(
                    f"{where} is {shorten(repr(text), 80)}: expected a path in the dataset's directory, with "
                    f"{', '.join(expected)}" + ("" if foreign else f"; got {shorten(repr(sample), 80)}")
                )
        return cls(template)

    def fill(self, numbers: dict[str, int], key: str = "") -> str:
        """The path of a file in the dataset's directory. Raises ValueError if a number is not a number."""
        for name, value in numbers.items():
            if type(value) is not int:
                raise ValueError(f"{name} is {shorten(repr(value), 80)}, which is not a number")
        return self.text.format(video_key=key, **numbers)
