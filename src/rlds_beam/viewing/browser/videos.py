"""LeRobot videos, which the browser plays itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

from rlds_beam import storage
from rlds_beam.episodes.keys import EpisodeKey
from rlds_beam.formats.lerobot.source import LerobotSource
from rlds_beam.reading.base import Source
from rlds_beam.reading.single import shard_of


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


def without_videos(source: Source) -> Source:
    """A source that does not decode videos; other sources as they are."""
    if not isinstance(source, LerobotSource):
        return source
    features = tuple(feature for feature in source.fields.features if feature.kind != "video")
    fields = dataclasses.replace(source.fields, features=features)
    return dataclasses.replace(source, fields=fields, schema=fields.schema)


def video_sizes(source: Source) -> Mapping[str, tuple[int | None, ...]]:
    """The field of each video camera, with its (height, width, channels)."""
    if not isinstance(source, LerobotSource):
        return {}
    return {feature.fields[0].path: feature.fields[0].shape
            for feature in source.fields.features if feature.kind == "video"}  # fmt: skip


def videos_of(source: Source, key: EpisodeKey) -> Mapping[str, VideoSpan]:
    """The videos of an episode by camera.

    Raises:
      UsageError: there is no such shard.
    """
    if not isinstance(source, LerobotSource):
        return {}
    rows = source.files.rows(shard_of(source, key).path)
    if not 0 <= key.position < len(rows):
        return {}
    row, spans = rows[key.position], {}
    for feature in source.fields.features:
        if feature.kind == "video" and feature.name in row.videos:
            video = row.videos[feature.name]
            path, stop = storage.join(source.root, *video.file.split("/")), video.start + row.length / source.fps
            spans[feature.fields[0].path] = VideoSpan(path, video.start, stop, row.length)
    return spans
