"""LeRobot datasets (v3.0 or v2.1) as a source: `--from=lerobot`."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlds_beam import naming, storage
from rlds_beam.encoding import arrow_columns
from rlds_beam.encoding.example.row_decoder import objects
from rlds_beam.episodes.columns import exact_cast, text_bytes
from rlds_beam.episodes.episode import Column, Episode, EpisodeKey
from rlds_beam.episodes.schema import Field, Schema, is_name
from rlds_beam.errors import BadEpisode, UsageError, Violation
from rlds_beam.formats.arrays.array_episodes import discounts
from rlds_beam.formats.lerobot import language, layout
from rlds_beam.formats.lerobot.data import EPISODE, LerobotFiles, read_meta
from rlds_beam.formats.lerobot.features import DISCOUNT, REWARD, FeatureMap, LerobotFeature
from rlds_beam.formats.lerobot.fields import episode_fields, name_notes
from rlds_beam.formats.lerobot.metadata import EpisodeVideo, Meta
from rlds_beam.formats.splits import parse_slice, selected_splits
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.images.video_frames import Depth, video_frames
from rlds_beam.reading.base import Details, Shard, Source, Span, Split, VideoSpan
from rlds_beam.reading.meaning import Meaning
from rlds_beam.text import count, shorten


@dataclasses.dataclass(frozen=True)
class LerobotSource(Source):
    """A LeRobot dataset.

    Attributes:
      root: the directory.
      fields: the fields of its episodes.
      digest: the digest of its metadata.
      The others: see `Source`.
    """

    dataset: str
    root: str
    schema: Schema
    fields: FeatureMap
    splits: tuple[Split, ...]
    digest: str
    meaning: Meaning
    details: Details

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
        splits = _splits(meta, shards, ranges, split)
        name = naming.to_name(storage.split(root.rstrip("/"))[1], "lerobot")
        dataset = f"{name}/{meta.version.removeprefix('v')}"
        robot = meta.info.get("robot_type")
        last = (meta.fields or {}).get("last_action", "real")
        meaning = Meaning(float(meta.info["fps"]), robot if is_name(robot) else None, last_action=last)
        found = (*_notes(meta, ranges), *name_notes(meta))
        notes = tuple(f"{layout.INFO}: {note}" for note in found)
        details = Details(violations, notes, fields.left_out, _video_facts(meta, fields))
        return cls(dataset, root, fields.schema, fields, splits, meta.digest(), meaning, details)

    @property
    def files(self) -> LerobotFiles:  # type: ignore[override]
        return LerobotFiles(self.root, self.digest)

    @functools.cached_property
    def decoder(self) -> LerobotDecoder:  # type: ignore[override]
        return LerobotDecoder(self.fields, self.root, self.fps or 1.0, self.last_action == "real")

    def companions(self, shard: Shard) -> list[str]:
        rows = self.files.rows(shard.path)
        return sorted({storage.join(self.root, video.file) for row in rows for video in row.videos.values()})

    def media(self, shard: Shard, position: int) -> dict[str, Sequence[Span] | VideoSpan]:
        rows, media = self.files.rows(shard.path), dict[str, Sequence[Span] | VideoSpan]()
        if not 0 <= position < len(rows):
            return media
        row = rows[position]
        for feature in self.fields.features:
            path = feature.fields[0].path
            if feature.kind == "image":
                chunks = self.files.image_chunks(shard.path, position)
                media[path] = [Span(shard.path, *chunk) for chunk in chunks.get(feature.name, ())]
            elif feature.kind == "video" and feature.name in row.videos:
                video = row.videos[feature.name]
                file, stop = (
                    storage.join(self.root, *video.file.split("/")),
                    video.start + row.length / self.decoder.fps,
                )
                media[path] = VideoSpan(file, video.start, stop, row.length)
        return media

    def source_keys(self) -> Sequence[str]:
        """The key of each episode in the dataset from which it was converted; empty if it is not known."""
        keys = [row.key for row in read_meta(self.root, self.digest).episodes]
        return [key for key in keys if key is not None] if None not in keys else ()

    def without(self, paths: Collection[str], why: str) -> LerobotSource:
        fields = self.fields.without(paths, why)
        details = dataclasses.replace(self.details, left_out=fields.left_out)
        return dataclasses.replace(self, schema=self.schema.without(paths), fields=fields, details=details)

    def plan(self) -> dict[str, Any]:
        return {"meta_sha256": self.digest}


def _video_facts(meta: Meta, fields: FeatureMap) -> dict[str, dict[str, Any]]:
    """What info.json says about each video feature, by the path of its field."""
    videos = {}
    for feature in fields.features:
        if feature.kind in ("video", "depth"):
            entry = meta.info["features"][feature.name]
            about = entry.get("info") or entry.get("video_info")
            single = about.items() if isinstance(about, dict) else ()
            videos[feature.fields[0].path] = {k: v for k, v in single if isinstance(v, str | int | float)}
    return videos


def _shards(meta: Meta) -> tuple[list[Shard], tuple[Violation, ...]]:
    """The data files in episode order, and a violation for each missing one."""
    shards, violations = [], []
    for index, (file, episodes) in enumerate(Counter(row.file for row in meta.episodes).items()):
        path = storage.join(meta.root, file)
        there = storage.exists(path)
        if not there:
            violations.append(Violation("missing_shard", f"{path} is missing; it should have {episodes} episodes"))
        shards.append(Shard(index, path, storage.size(path) if there else 0, episodes))
    return shards, tuple(violations)


def _ranges(meta: Meta) -> dict[str, tuple[int, int]]:
    """The first episode and the end of each split in info.json."""
    ranges: dict[str, tuple[int, int]] = {}
    splits = meta.info.get("splits") if meta.episodes_in_meta is not None else None  # LeRobot records one
    for name, text in (splits or {"train": f"0:{len(meta.episodes)}"}).items():
        naming.check_name(name, f"{meta.path(layout.INFO)}: a split")
        match = re.fullmatch(r"(\d{1,18}):(\d{1,18})", text)
        if match is None:
            raise UsageError(f"{meta.path(layout.INFO)}: the split {name} is {shorten(text)}, expected FIRST:END")
        ranges[name] = int(match[1]), int(match[2])
    return ranges


def _notes(meta: Meta, ranges: Mapping[str, tuple[int, int]]) -> Iterator[str]:
    """Says how many episodes are in no split, or in several, and which splits name episodes that do not exist."""
    total = len(meta.episodes)
    if meta.episodes_in_meta is None:
        cut = [row for row in meta.episodes if row.fault]
        saved = f"the recording was cut; {total - len(cut)} of {count(total, 'episode')} can be converted"
        yield saved + "".join(f", but not episode {row.index}: {row.fault}" for row in cut[:1])
    times = np.zeros(total, np.int64)
    for name, (first, end) in ranges.items():
        times[first:end] += 1
        if end > total or end < first:
            yield f"the split {name} is {first}:{end} of {count(total, 'episode')}"
    for number, where in ((times > 1).sum(), "in several splits"), ((times == 0).sum(), "in no split, so not read"):
        if number:
            yield f"{count(int(number), 'episode')} of {total:,} {'is' if number == 1 else 'are'} {where}"


def _splits(
    meta: Meta, shards: Sequence[Shard], ranges: Mapping[str, tuple[int, int]], wanted: str | None
) -> tuple[Split, ...]:
    """The selected splits, each with the files that have its episodes, and its slice of these files."""
    total, splits = len(meta.episodes), []
    for name, low, high in selected_splits(wanted, ranges, storage.split(meta.root.rstrip("/"))[1]):
        start, stop = (min(bound, total) for bound in ranges[name])
        stop = max(start, stop)
        if low is not None or high is not None:
            first, last = parse_slice(name, stop - start, low, high)
            start, stop = start + first, start + last
        if (start, stop) != (0, total):
            _check_order(meta, name)
        taken = [*Split(name, shards, start, stop).taken]
        own = tuple(shard for shard, _, _ in taken)
        first = taken[0][1] if taken else 0
        whole = all((low, high) == (0, shard.records) for shard, low, high in taken)
        splits.append(Split(name, own) if whole else Split(name, own, first, first + stop - start))
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


_PNG, _16_BITS = b"\x89PNG", b"\x10"


@dataclasses.dataclass(frozen=True)
class LerobotDecoder:
    """Decodes records into episodes (`reading.base.Decoder`).

    Attributes:
      fields: the fields of the episodes.
      root: the directory of the dataset, for its videos.
      fps: frames per second.
      real: whether last actions are real.
    """

    fields: FeatureMap
    root: str
    fps: float
    real: bool = True

    def decode(self, payload: bytes, key: EpisodeKey) -> Episode:
        import pyarrow as pa

        try:
            table = pa.ipc.open_stream(payload, options=pa.ipc.IpcReadOptions(use_threads=False)).read_all()
            about = json.loads((table.schema.metadata or {})[EPISODE])
        except (pa.ArrowException, KeyError, ValueError) as error:
            raise BadEpisode(Violation("not_an_example", f"not a record of a LeRobot dataset: {error!r}")) from None
        rows = table.num_rows
        if not rows:
            raise BadEpisode(Violation("empty_episode", "the episode has no frames"))
        steps: dict[str, Column] = {}
        metadata: dict[str, Any] = {}
        for feature in self.fields.features:
            try:
                if feature.is_persistent:
                    metadata[feature.fields[0].path] = language.shared_text(_column(feature, table))
                else:
                    steps |= self._columns(feature, table, about)
            except (AttributeError, LookupError, OverflowError, TypeError, ValueError) as error:  # also from pyarrow
                detail = f"{feature.name} does not match info.json: {error}"
                raise BadEpisode(Violation("wrong_dtype_or_shape", detail, feature.fields[0].path)) from None
        for name, field in self.fields.columns.items():
            try:
                metadata[field.path] = _value(field, about["columns"].get(name))
            except (AttributeError, OverflowError, TypeError, ValueError) as error:
                raise BadEpisode(Violation("wrong_dtype_or_shape", f"{name} in meta/: {error}", field.path)) from None
        if self.fields.task is not None:
            texts = objects(arrow_columns.texts(table["task"]))
            if self.fields.task_of_episode:
                metadata[self.fields.task] = texts[0]
            else:
                steps[self.fields.task] = texts
        _complete(steps, self.fields.missing, rows, real=self.real)
        return Episode(key, {path: steps[path] for path in self.fields.schema.steps}, metadata, payload)

    def _columns(self, feature: LerobotFeature, table: Any, about: Mapping[str, Any]) -> dict[str, Column]:
        rows, (first, *more) = table.num_rows, feature.fields
        if feature.kind in ("video", "depth"):
            video = EpisodeVideo(*about["videos"][feature.name])
            return {first.path: self._frames(first, video, rows, feature.depth)}
        column = _column(feature, table)
        if feature.kind == "language":
            return {first.path: objects(language.read_texts(feature.name, column))}
        if feature.kind == "image":
            content: list[bytes | None] = column.field("bytes").to_pylist()
            if None in content:
                raise ValueError("its images are in separate files, not in the data file")
            if first.dtype == "uint8" and any(c[24:25] == _16_BITS and c.startswith(_PNG) for c in content if c):
                # read as 8 bits, they would lose half of each value
                raise ValueError("a PNG has 16 bits, but the feature is not marked as depth in millimeters")
            images = EncodedImages(objects(content), first.shape, first.dtype, first.encoding)
            return {first.path: images if first.holds_image_files else images.decode(first.path)}
        if feature.kind == "text":
            return {first.path: objects(arrow_columns.texts(column)).reshape(rows, *first.closed_shape)}
        values = arrow_columns.numbers(column)
        if not more:
            shaped = exact_cast(values.reshape(rows, *first.closed_shape), first.numpy_dtype, first.path)
            if first.path == "is_terminal" and feature.name != "is_terminal":
                shaped = shaped & (np.arange(rows) == rows - 1)  # next.done: only the last step can be terminal
            return {first.path: shaped}
        stops = np.cumsum([field.known_size for field in feature.fields])
        parts = np.split(values.reshape(rows, -1), stops[:-1], axis=1)
        return {
            field.path: exact_cast(part.reshape(rows, *field.closed_shape), field.numpy_dtype, field.path)
            for field, part in zip(feature.fields, parts, strict=True)
        }

    def _frames(self, field: Field, video: EpisodeVideo, rows: int, depth: Depth | None) -> Column:
        path, about = storage.join(self.root, *video.file.split("/")), (field.shape, field.dtype, field.encoding)
        frames = video_frames(path, video.start, self.fps, rows, field.path, *about, scale=depth)
        if field.holds_image_files:
            return frames
        pixels = frames.stack()
        return pixels if depth is None else pixels.reshape(rows, *field.closed_shape)


def _column(feature: LerobotFeature, table: Any) -> Any:
    column = table[feature.name].combine_chunks()
    if column.null_count:
        raise ValueError(f"{column.null_count} frames have no value")
    return column


def _value(field: Field, value: Any) -> Any:
    """A value of the episode; None becomes zeros or an empty string. Raises BadEpisode if it does not fit the field."""
    if field.dtype == "string":
        if not field.shape:
            return text_bytes(value or "", field.path)
        return objects([text_bytes(text, field.path) for text in value or []])
    if field.holds_image_files:
        return value or b""
    if value is None:
        return np.zeros(field.closed_shape, field.numpy_dtype)[()]
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise BadEpisode(Violation("wrong_dtype_or_shape", str(error), field.path)) from None
    if value == [] and None in field.shape:  # also for the shape (0, 2)
        return np.zeros(field.closed_shape, field.numpy_dtype)
    return exact_cast(array, field.numpy_dtype, field.path)[()]


def _complete(steps: dict[str, Column], missing: tuple[str, ...], rows: int, *, real: bool) -> None:
    """Adds the fields that have no feature. FLAGS come before the discount in `missing`."""
    place = np.arange(rows)
    flags = {"is_first": place == 0, "is_last": place == rows - 1, "is_terminal": place < 0}
    for path in missing:
        if path == DISCOUNT.path:
            steps[path] = discounts(np.asarray(steps["is_terminal"], bool), real=real)
        else:
            steps[path] = flags[path] if path in flags else np.zeros(rows, REWARD.dtype)
