"""Decode records of a LeRobot dataset into episodes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from rlds_beam import storage
from rlds_beam.encoding import arrow_columns
from rlds_beam.encoding.example.row_decoder import objects
from rlds_beam.episodes.columns import exact_cast, text_bytes
from rlds_beam.episodes.episode import Column, Episode, EpisodeKey
from rlds_beam.episodes.schema import FLAGS, Field
from rlds_beam.errors import BadEpisode, Violation
from rlds_beam.formats.arrays.array_episodes import discounts
from rlds_beam.formats.lerobot import language
from rlds_beam.formats.lerobot.data_files import EPISODE
from rlds_beam.formats.lerobot.episode_fields import DISCOUNT, REWARD, EpisodeFields, FeatureFields
from rlds_beam.formats.lerobot.metadata import EpisodeVideo
from rlds_beam.images.depth import Depth
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.images.video_frames import video_frames

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

    fields: EpisodeFields
    root: str
    fps: float
    real: bool = True

    def decode(self, payload: bytes, key: EpisodeKey) -> Episode:
        import pyarrow as pa

        try:
            table = pa.ipc.open_stream(payload).read_all()
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
                if feature.kind == "language" and feature.name == language.PERSISTENT:
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
        _complete(steps, self.fields.made, rows, real=self.real)
        return Episode(key, {path: steps[path] for path in self.fields.schema.steps}, metadata, payload)

    def _columns(self, feature: FeatureFields, table: Any, about: Mapping[str, Any]) -> dict[str, Column]:
        rows, (first, *more) = table.num_rows, feature.fields
        if feature.kind in ("video", "depth"):
            video = EpisodeVideo(*about["videos"][feature.name])
            return {first.path: self._frames(first, video, rows, feature.depth)}
        column = _column(feature, table)
        if feature.kind == "language":
            return {first.path: objects(language.read_texts(feature.name, column))}
        if feature.kind == "image":
            _check_bits(content := _image_bytes(column), first)
            images = EncodedImages(objects(content), first.shape, first.dtype, first.encoding)
            return {first.path: images if first.holds_image_files else images.decode(first.path)}
        if feature.kind == "text":
            return {first.path: objects(arrow_columns.texts(column)).reshape(rows, *first.closed_shape)}
        values = arrow_columns.numbers(column)
        if not more:
            flags = first.path == "is_terminal" and first.path not in (feature.name,)
            shaped = exact_cast(values.reshape(rows, *first.closed_shape), first.numpy_dtype, first.path)
            return {first.path: _only_last(shaped) if flags else shaped}
        stops = np.cumsum([field.known_size for field in feature.fields])
        parts = np.split(values.reshape(rows, -1), stops[:-1], axis=1)
        return {
            field.path: exact_cast(part.reshape(rows, *field.closed_shape), field.numpy_dtype, field.path)
            for field, part in zip(feature.fields, parts, strict=True)
        }

    def _frames(self, field: Field, video: EpisodeVideo, rows: int, depth: Depth | None) -> Column:
        path = storage.join(self.root, *video.file.split("/"))
        seconds = None if video.stop is None else video.stop - video.start
        frames = video_frames(
            path,
            video.start,
            self.fps,
            rows,
            field.path,
            field.shape,
            field.dtype,
            field.encoding,
            scale=depth,
            seconds=seconds,
        )
        if field.holds_image_files:
            return frames
        pixels = frames.stack()
        return pixels if depth is None else pixels.reshape(rows, *field.closed_shape)


def _column(feature: FeatureFields, table: Any) -> Any:
    column = table[feature.name].combine_chunks()
    if column.null_count:
        raise ValueError(f"{column.null_count} frames have no value")
    return column


def _only_last(flags: Any) -> Any:
    """`next.done` for the last frame only: in RLDS only the last step of an episode can be terminal."""
    last = np.zeros(len(flags), bool)
    last[-1:] = flags[-1:]
    return last


def _check_bits(images: list[bytes], field: Field) -> None:
    """Raises ValueError if 16-bit PNGs would be read as 8-bit ones, which loses half of each value."""
    if field.dtype == "uint8" and any(image[24:25] == _16_BITS and image.startswith(_PNG) for image in images):
        raise ValueError("a PNG has 16 bits, but the feature is not marked as depth in millimeters (is_depth_map)")


def _image_bytes(column: Any) -> list[bytes]:
    content: list[bytes] = column.field("bytes").to_pylist()
    if any(image is None for image in content):
        raise ValueError("its images are in separate files, not in the data file")
    return content


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
    flags: dict[str, Any] = {path: np.zeros(rows, bool) for path in FLAGS}
    flags["is_first"][0] = flags["is_last"][-1] = True
    for path in missing:
        if path in FLAGS:
            steps[path] = flags[path]
        elif path == DISCOUNT.path:
            steps[path] = discounts(np.asarray(steps["is_terminal"], bool), real=real)
        else:
            steps[path] = np.zeros(rows, REWARD.dtype)
