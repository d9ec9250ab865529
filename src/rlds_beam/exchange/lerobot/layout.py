"""The names of the files of a LeRobot dataset (v3.0)."""

from __future__ import annotations

CODEBASE_VERSION = "v3.0"
CHUNK = 1000
"""Files in a directory, at most."""

DATA_MB, VIDEO_MB = 100, 200
"""At which size LeRobot begins another file. A range is smaller."""

DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
EPISODES_PATH = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
INFO, STATS, TASKS = "meta/info.json", "meta/stats.json", "meta/tasks.parquet"
CARD = "README.md"
FIELDS = "meta/rlds_beam.json"
"""What the fields of the episodes were: for reading them back."""

RANGES_IN_EPISODES = 256
"""Ranges whose episodes share a file of meta/episodes."""


def place(number: int) -> dict[str, int]:
    """Where the file of this number is."""
    return {"chunk_index": number // CHUNK, "file_index": number % CHUNK}
