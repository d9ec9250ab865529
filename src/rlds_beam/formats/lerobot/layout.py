"""The names of the files of a LeRobot dataset: of v3.0, and of v2.1, where each episode has files of its own."""

from __future__ import annotations

from typing import Literal

V3, V21 = "v3.0", "v2.1"

Version = Literal["3.0", "2.1"]

CHUNK = 1000
"""Files in a directory, at most; of v2.1, episodes."""

DATA_MB, VIDEO_MB = 100, 200
"""At which size LeRobot begins another file of v3.0. A range is smaller."""

DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
EPISODES_PATH = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
TASKS = "meta/tasks.parquet"

EPISODE_DATA_PATH = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
EPISODE_VIDEO_PATH = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
EPISODES_JSONL, TASKS_JSONL = "meta/episodes.jsonl", "meta/tasks.jsonl"
EPISODES_STATS_JSONL = "meta/episodes_stats.jsonl"
MODALITY = "meta/modality.json"
"""What GR00T reads besides."""

INFO, STATS = "meta/info.json", "meta/stats.json"
CARD = "README.md"
FIELDS = "meta/rlds_beam.json"
"""What the fields of the episodes were: for reading them back."""

RANGES_IN_EPISODES = 256
"""Ranges whose episodes share a file of meta/episodes."""


def place(number: int) -> dict[str, int]:
    """Where the file of this number is."""
    return {"chunk_index": number // CHUNK, "file_index": number % CHUNK}


def place_of_episode(index: int, chunk: int = CHUNK) -> dict[str, int]:
    """Where the files of this episode are (v2.1)."""
    return {"episode_chunk": index // chunk, "episode_index": index}
