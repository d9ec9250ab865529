"""The names of the files of a LeRobot dataset: of v3.0, and of v2.1, which has files for each episode."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rlds_beam import naming
from rlds_beam.errors import UsageError
from rlds_beam.text import shorten

V3, V21 = "v3.0", "v2.1"

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


_PLACEHOLDER = re.compile(r"\{(\w+)(?::(0?\d{1,2}d))?\}")
"""As in `{chunk_index:03d}`."""


def fill_template(template: object, values: Mapping[str, int | str], where: str) -> str:
    """The path of a file of a dataset, whose `info.json` is not trusted, from the template there.

    Args:
      template: `data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet`.
      values: the values of the placeholders.
      where: the file and field with the template, for the error.

    Raises:
      UsageError: it has other placeholders or formats, or the file would be outside the dataset.
    """
    try:
        path = _PLACEHOLDER.sub(lambda found: format(values[found[1]], found[2] or ""), str(template))
    except (LookupError, TypeError, ValueError):
        path = ""
    if not naming.is_file_path(path) or "{" in path:
        known = ", ".join(f"{{{name}}}" for name in values)
        raise UsageError(
            f"{where} is {shorten(repr(template), 80)}: expected a path in the dataset's directory, with {known}"
        )
    return path
