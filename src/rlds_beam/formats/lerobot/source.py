"""LeRobot datasets (v3.0 or v2.1) as a source: `--from=lerobot`."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rlds_beam import naming, storage
from rlds_beam.episodes.schema import Schema, is_name
from rlds_beam.errors import UsageError, Violation
from rlds_beam.formats.lerobot import layout
from rlds_beam.formats.lerobot.data_files import LerobotFiles, read_meta
from rlds_beam.formats.lerobot.decoder import LerobotDecoder
from rlds_beam.formats.lerobot.episode_fields import EpisodeFields, episode_fields, name_notes
from rlds_beam.formats.lerobot.metadata import Meta
from rlds_beam.reading.base import LastAction, Shard, Source, Span, Split, VideoSpan
from rlds_beam.reading.directory_listing import names_below

_MAX_ENTRIES = 100
"""Entries that are read of what info.json says of a video."""


@dataclasses.dataclass(frozen=True)
class LerobotSource(Source):
    """A LeRobot dataset.

    Attributes:
      root: the directory.
      fields: the fields of its episodes.
      digest: the digest of its metadata.
      notes: what is odd about its splits and names.
      The others: see `Source`.
    """

    dataset: str
    root: str
    schema: Schema
    fields: EpisodeFields
    splits: tuple[Split, ...]
    digest: str
    fps: float = 1.0
    violations: tuple[Violation, ...] = ()
    robot: str | None = None
    notes: tuple[str, ...] = ()
    last_action: LastAction = "real"

    @classmethod
    def open(
        cls, input: str | Sequence[str], *, split: str | None = None, features: str | None = None
    ) -> LerobotSource:
        if features is not None:
            raise UsageError("--features is for RLDS; a LeRobot dataset has info.json")
        (given,) = [input] if isinstance(input, str) else input
        root = given if storage.scheme(given) else os.path.abspath(given)
        meta = Meta.open(root)
        fields = episode_fields(meta)
        shards, violations = _shards(meta)
        ranges = _ranges(meta)
        splits = _splits(meta, shards, _within(ranges, len(meta.episodes)), split)
        name = naming.to_name(storage.split(root.rstrip("/"))[1], "lerobot")
        dataset = f"{name}/{meta.version.removeprefix('v')}"
        fps, robot = float(meta.info["fps"]), meta.info.get("robot_type")
        robot = robot if is_name(robot) else None
        found = (*_notes(ranges, len(meta.episodes)), *name_notes(meta))
        notes = tuple(f"{layout.INFO}: {note}" for note in found)
        last = (meta.fields or {}).get("last_action", "real")
        return cls(dataset, root, fields.schema, fields, splits, meta.digest(), fps, violations, robot, notes, last)

    @classmethod
    def recognize(cls, path: str) -> str | None:
        meta, _, info = layout.INFO.partition("/")
        return layout.INFO if info in names_below(path, meta) else None

    @property
    def files(self) -> LerobotFiles:  # type: ignore[override]
        return LerobotFiles(self.root, self.digest)

    @functools.cached_property
    def decoder(self) -> LerobotDecoder:  # type: ignore[override]
        return LerobotDecoder(self.fields, self.root, self.fps, self.last_action == "real")

    def companions(self, shard: Shard) -> list[str]:
        rows = self.files.rows(shard.path)
        return sorted({storage.join(self.root, video.file) for row in rows for video in row.videos.values()})

    @property
    def videos(self) -> dict[str, dict[str, Any]]:
        described = read_meta(self.root, self.digest).info["features"]
        features = (feature for feature in self.fields.features if feature.kind in ("video", "depth"))
        return {feature.fields[0].path: _about_video(described[feature.name]) for feature in features}

    def image_spans(self, shard: Shard, position: int) -> dict[str, list[Span]]:
        chunks = self.files.image_chunks(shard.path, position)
        features = (feature for feature in self.fields.features if feature.kind == "image")
        return {
            feature.fields[0].path: [Span(shard.path, *chunk) for chunk in chunks.get(feature.name, ())]
            for feature in features
        }

    def video_spans(self, shard: Shard, position: int) -> dict[str, VideoSpan]:
        rows = self.files.rows(shard.path)
        if not 0 <= position < len(rows):
            return {}
        row, spans = rows[position], {}
        for feature in self.fields.features:
            if feature.kind == "video" and feature.name in row.videos:
                video = row.videos[feature.name]
                path, stop = storage.join(self.root, *video.file.split("/")), video.start + row.length / self.fps
                spans[feature.fields[0].path] = VideoSpan(path, video.start, stop, row.length)
        return spans

    def without_videos(self) -> LerobotSource:
        features = tuple(feature for feature in self.fields.features if feature.kind != "video")
        fields = dataclasses.replace(self.fields, features=features)
        return dataclasses.replace(self, fields=fields, schema=fields.schema)

    def origins(self) -> Sequence[str]:
        keys = [row.key for row in read_meta(self.root, self.digest).episodes]
        return [key for key in keys if key is not None] if None not in keys else ()

    def without(self, paths: Collection[str], why: str) -> LerobotSource:
        fields = self.fields.without(paths, why)
        return dataclasses.replace(self, schema=self.schema.without(paths), fields=fields)

    @property
    def left_out(self) -> Mapping[str, str]:  # type: ignore[override]
        return self.fields.left_out

    def plan(self) -> dict[str, Any]:
        return {"meta_sha256": self.digest}
