"""LeRobot datasets (v3.0 or v2.1) as a source: `--from=lerobot`."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
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
from rlds_beam.reading.plan import parse_slice, selected_splits
from rlds_beam.text import count, shorten

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


def _about_video(feature: Mapping[str, Any]) -> dict[str, Any]:
    """The single values of a video feature in info.json."""
    about = feature.get("info") or feature.get("video_info")
    entries = list(about.items())[:_MAX_ENTRIES] if isinstance(about, dict) else []
    return {name: value for name, value in entries if isinstance(value, (str, int, float, bool))}


def _shards(meta: Meta) -> tuple[list[Shard], tuple[Violation, ...]]:
    """The data files in episode order, and a violation for each missing one."""
    records: dict[str, int] = {}
    for row in meta.episodes:
        records[row.file] = records.get(row.file, 0) + 1
    shards, violations = [], []
    for index, (file, episodes) in enumerate(records.items()):
        path = storage.join(meta.root, file)
        if storage.exists(path):
            shards.append(Shard(index, path, storage.size(path), episodes))
        else:
            violations.append(Violation("missing_shard", f"{path} is missing; it should have {episodes} episodes"))
            shards.append(Shard(index, path, 0, episodes))
    return shards, tuple(violations)


def _ranges(meta: Meta) -> dict[str, tuple[int, int]]:
    """The first episode and the end of each split in info.json."""
    ranges: dict[str, tuple[int, int]] = {}
    for name, text in (meta.info.get("splits") or {"train": f"0:{len(meta.episodes)}"}).items():
        naming.check_name(name, f"{meta.path(layout.INFO)}: a split")
        match = re.fullmatch(r"(\d{1,18}):(\d{1,18})", text)
        if match is None:
            raise UsageError(f"{meta.path('meta/info.json')}: the split {name} is {shorten(text)}, expected FIRST:END")
        ranges[name] = int(match[1]), int(match[2])
    return ranges


def _within(ranges: Mapping[str, tuple[int, int]], total: int) -> dict[str, tuple[int, int]]:
    """The existing episodes of each split; first and end are equal for an empty one."""
    firsts = {name: min(first, total) for name, (first, _) in ranges.items()}
    return {name: (first, max(first, min(ranges[name][1], total))) for name, first in firsts.items()}


def _notes(ranges: Mapping[str, tuple[int, int]], total: int) -> Iterator[str]:
    """Says which splits name episodes that do not exist, and which episodes are in no split, or in two."""
    for name, (first, end) in ranges.items():
        if end > total:
            yield f"the split {name} is {first}:{end}, but the dataset has {count(total, 'episode')}"
        elif end < first:
            yield f"the split {name} is {first}:{end}, which is empty"
    reached, before, missed = 0, "", 0
    for name, (first, end) in sorted(_within(ranges, total).items(), key=lambda item: item[1]):
        if first < min(end, reached):
            yield f"the splits {before} and {name} share {count(min(end, reached) - first, 'episode')}"
        missed += max(0, first - reached) if first < end else 0
        if end > max(first, reached):
            reached, before = end, name
    if missed := missed + total - reached:
        yield f"{count(missed, 'episode')} of {total:,} {'is' if missed == 1 else 'are'} in no split, so not read"


def _splits(
    meta: Meta, shards: Sequence[Shard], ranges: Mapping[str, tuple[int, int]], wanted: str | None
) -> tuple[Split, ...]:
    """The selected splits, each a slice of the episodes."""
    total, splits = len(meta.episodes), []
    for name, low, high in selected_splits(wanted, ranges, storage.split(meta.root.rstrip("/"))[1]):
        start, stop = ranges[name]
        if low is not None or high is not None:
            first, last = parse_slice(name, stop - start, low, high)
            start, stop = start + first, start + last
        if (start, stop) != (0, total):
            _check_order(meta, name)
        own, first, end = _slice_files(shards, start, stop)
        splits.append(Split(name, own, first, end))
    return tuple(splits)


def _check_order(meta: Meta, split: str) -> None:
    """Raises UsageError if a file's episodes are not consecutive: a slice of them is then not a run of records."""
    last: dict[str, int] = {}
    for number, row in enumerate(meta.episodes):
        if last.get(row.file, number - 1) != number - 1:
            raise UsageError(
                f"{meta.path(row.file)} holds the episodes {last[row.file]} and {number} but not those between them, "
                f"so the split {split} cannot be sliced. Read all episodes (one split, without a slice)"
            )
        last[row.file] = number


def _slice_files(shards: Sequence[Shard], start: int, stop: int) -> tuple[tuple[Shard, ...], int, int | None]:
    """The files with the episodes start to stop, and their slice of these files; (0, None) for all."""
    if start == stop:
        return (), 0, None
    own, first, skipped = [], 0, 0
    for shard in shards:
        episodes = shard.records or 0
        if first + episodes <= start:
            skipped += episodes
        elif first < stop:
            own.append(shard)
        first += episodes
    held = sum(shard.records or 0 for shard in own)
    whole = start == skipped and stop == skipped + held
    return tuple(own), 0 if whole else start - skipped, None if whole else stop - skipped
