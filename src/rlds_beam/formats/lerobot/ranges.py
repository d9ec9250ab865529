"""What is written for a work range, and kept in `_ranges/` until all ranges are finished.

Frames, episodes, and tasks count through the whole dataset, so a range does not know their numbers yet. It writes

    _ranges/train-00003-of-00008.arrow     its frames without these numbers, as an Arrow stream
    _ranges/train-00003-of-00008.facts     the lengths of its episodes, its tasks, the statistics of each episode

and its videos: in v3.0 under their final names, in v2.1 as packs of one video per episode. When all ranges are
finished, `numbered_frames` reads the frames back with their numbers, for the data files.

Each episode is prepared first, which finds every problem before anything of it is written.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from rlds_beam import storage
from rlds_beam.checking.steps import contradicting_rate
from rlds_beam.connectors.base import Batch
from rlds_beam.encoding.arrow_columns import ipc_bytes, to_arrow
from rlds_beam.encoding.example.row_decoder import objects
from rlds_beam.encoding.parquet_files import ShardSink
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.errors import BadEpisode, NotVerifiedError, Violation
from rlds_beam.formats.lerobot import frames, language, statistics
from rlds_beam.formats.lerobot.features import LerobotFeature
from rlds_beam.formats.lerobot.frames import NUMBERED, FrameFormat, Values, frames_batch, staged_schema
from rlds_beam.formats.lerobot.statistics import StatisticsGatherer
from rlds_beam.formats.lerobot.videos import (
    EncodedAgain,
    PixelFrames,
    VideoFile,
    VideoPack,
    copied_frames,
)
from rlds_beam.images.encoded_images import ZERO_IMAGE, EncodedImages
from rlds_beam.output.shards import ShardInfo, ShardWriter, WrittenFile
from rlds_beam.typing import Array

if TYPE_CHECKING:
    import pyarrow as pa

DIRECTORY = "_ranges"
"""Removed when the dataset is complete."""

_BATCH_BYTES, _BATCH_ROWS = 1 << 20, 1 << 14
"""A batch, which becomes a row group, ends after the episode that reaches one of these."""

_MAX_BATCH_BYTES = 1 << 30
"""Maximum bytes of several episodes in a batch: an Arrow column holds twice as much."""


class RangeNumbers(NamedTuple):
    """Numbers in the whole dataset, which a range does not know itself; JSON by `_asdict`.

    Attributes:
      first_frame, first_episode: the numbers of its first frame and episode.
      tasks: the number of each of its tasks.
    """

    first_frame: int
    first_episode: int
    tasks: Sequence[int]


@dataclasses.dataclass
class RangeFacts:
    """Facts about E episodes with N frames in total.

    Attributes:
      keys: the keys of the episodes.
      lengths: the lengths of the episodes, int64 (E,).
      tasks: the task texts, in order of first appearance.
      frame_tasks: the task of each frame, an index into `tasks`, int32 (N,).
      statistics: the statistics of each episode by feature, (E, statistics, D).
      histograms: the histogram of the decoded frames by image feature, (C, 256).
      samples: the number of decoded frames of each episode by image feature, (E,).
      columns: a row for each episode, for meta/episodes.
      ends: in v2.1, where the episodes' videos begin and end in the pack of each of V cameras, int64 (V, E + 1).
      encoded: the episodes that were encoded, by feature whose videos are copied.
    """

    keys: Sequence[str]
    lengths: Array
    tasks: Sequence[str]
    frame_tasks: Array
    statistics: Mapping[str, Array]
    histograms: Mapping[str, Array]
    samples: Mapping[str, Array]
    columns: pa.Table
    ends: Array
    encoded: Mapping[str, EncodedAgain] = dataclasses.field(default_factory=dict)

    @property
    def frames(self) -> int:
        return int(self.lengths.sum())

    def episode_tasks(self) -> list[list[int]]:
        """The tasks of each episode, in order of first appearance."""
        ends = np.cumsum(self.lengths)
        return [list(dict.fromkeys(part.tolist())) for part in np.split(self.frame_tasks, ends[:-1])]

    def frame_numbers(self, numbers: RangeNumbers) -> dict[str, Array]:
        """The number of each frame, of its episode, and of its task, (N,) each, by LeRobot's name."""
        return {
            "index": numbers.first_frame + np.arange(self.frames),
            "episode_index": np.repeat(numbers.first_episode + np.arange(len(self.lengths)), self.lengths),
            "task_index": np.array(numbers.tasks, np.int64)[self.frame_tasks],
        }

    def write(self, path: str, key: object) -> ShardInfo:
        """Writes the file, with a record for each episode."""
        with ShardWriter(path) as writer:
            writer.write([msgspec.msgpack.encode(self, enc_hook=_encode_array)], len(self.lengths), key)
            return writer.commit()

    @classmethod
    def read(cls, path: str) -> RangeFacts:
        """Reads a file that `write` wrote. Raises NotVerifiedError if it is missing or damaged."""
        with report_damage(path):
            with storage.open_read(path) as file:
                content = msgspec.msgpack.decode(file.read(), ext_hook=_decode_array)
            encoded = {name: EncodedAgain(*found) for name, found in content.pop("encoded").items()}
            return cls(**content, encoded=encoded)


def _encode_array(value: Any) -> msgspec.msgpack.Ext:
    if not isinstance(value, np.ndarray):
        return msgspec.msgpack.Ext(1, ipc_bytes(value))
    buffer = io.BytesIO()
    np.save(buffer, value, allow_pickle=False)
    return msgspec.msgpack.Ext(0, buffer.getvalue())


def _decode_array(code: int, data: memoryview) -> Any:
    import pyarrow as pa

    return pa.ipc.open_stream(data).read_all() if code else np.load(io.BytesIO(data), allow_pickle=False)


@contextlib.contextmanager
def report_damage(path: str) -> Iterator[None]:
    """Raises NotVerifiedError if a file of a finished range turns out to be missing or damaged."""
    import pyarrow as pa

    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, msgspec.MsgspecError, pa.ArrowException) as error:
        raise NotVerifiedError(
            f"{path} is missing or damaged ({error}): remove the commit of its range, and run the same command again"
        ) from error


class FramesFile:
    """Appends episodes to an Arrow stream; each of its batches holds whole episodes."""

    def __init__(self, path: str, features: Sequence[LerobotFeature]):
        import pyarrow as pa

        self._shard, self._features = ShardWriter(path), features
        self._sink = ShardSink(self._shard)
        self._writer = pa.ipc.new_stream(self._sink, staged_schema(features))
        self._held: list[Mapping[str, Values]] = []
        self._bytes = self._rows = 0

    def add(self, columns: Mapping[str, Values], length: int, key: object) -> None:
        """Adds the frames of an episode."""
        size = sum(
            values.nbytes if isinstance(values, np.ndarray) else sum(map(len, values)) for values in columns.values()
        )
        if self._bytes + size > _MAX_BATCH_BYTES:
            self._end_batch()
        self._held.append(columns)
        self._bytes += size
        self._rows += length
        self._shard.write((), length, key)
        if self._bytes >= _BATCH_BYTES or self._rows >= _BATCH_ROWS:
            self._end_batch()

    def _end_batch(self) -> None:
        if self._held:
            self._writer.write_batch(frames_batch(self._features, self._held))
        self._held, self._bytes, self._rows = [], 0, 0

    def commit(self) -> ShardInfo:
        """Completes the file and returns its counts."""
        self._end_batch()
        self._writer.close()
        self._sink.flush()
        return self._shard.commit()

    def abort(self) -> None:
        """Removes what was written so far. Does nothing after `commit`."""
        self._shard.abort()


def numbered_frames(
    path: str, features: Sequence[LerobotFeature], facts: RangeFacts, numbers: RangeNumbers
) -> Iterator[pa.Table]:
    """The frames of a range's Arrow stream, with their numbers in the dataset; a table for each batch.

    Raises:
      NotVerifiedError: the file is missing or damaged.
    """
    import pyarrow as pa

    schema, every, first = frames.frames_schema(features), facts.frame_numbers(numbers), 0
    with report_damage(path):
        if storage.scheme(path) is None:
            source: Any = pa.memory_map(path)
        else:
            with storage.open_read(path) as file:
                source = pa.py_buffer(file.read())
        for batch in pa.ipc.open_stream(source, options=pa.ipc.IpcReadOptions(use_threads=False)):
            stop = first + batch.num_rows
            own = [pa.array(every[name][first:stop]) for name in NUMBERED]
            yield pa.Table.from_arrays([*batch.columns, *own], schema=schema)
            first = stop
        if first != facts.frames:
            raise ValueError(f"it has {first} frames, expected {facts.frames}")


def split_episodes(tables: Iterable[pa.Table], lengths: Iterable[int]) -> Iterator[pa.Table]:
    """The frames of each episode, from tables that hold whole episodes."""
    remaining = iter(lengths)
    for table in tables:
        first = 0
        while first < table.num_rows:
            length = next(remaining)
            yield table.slice(first, length)
            first += length


class PreparedEpisode:
    """An episode's frames, tasks, and statistics.

    Attributes:
      key, length: the key and length of the episode.
      columns: the columns of its frames by name, without the numbers that only the range knows.
      numbers: the numeric columns, (T, ...).
      texts: the text of its task: one for the episode, or one for each frame.
      histograms: the histogram of each image feature; empty if no frame is decoded.
      samples: the number of decoded frames of each image feature.
      metadata: an array of one value for each column of meta/episodes.
      pixels: the video frames by feature.

    Raises:
      BadEpisode: the episode cannot be written.
    """

    def __init__(self, frame_format: FrameFormat, episode: Episode, decoded: int):
        """Args: decoded: the number of frames of each camera to decode (`statistics.sample_count`)."""
        mapped, steps = frame_format.features, episode.steps
        self.key, self.length = episode.key, len(episode)
        self.metadata = {
            name: metadata_column(field, [episode.metadata[field.path]]) for name, field in mapped.columns.items()
        }
        self.columns: dict[str, Values] = {}
        self.numbers: dict[str, Array] = {}
        self.histograms: dict[str, Array] = {}
        self.samples: dict[str, int] = {}
        self.pixels: dict[str, Iterable[Array]] = {}
        for feature in mapped.features:
            if feature.kind == "language":
                shared = feature.path in episode.metadata
                column = objects([episode.metadata[feature.path]]) if shared else steps[feature.path]
                rows = language.checked_texts(feature.name, frames.texts(column, feature.path), feature.path)
                self.columns[feature.name] = [*rows] * (self.length if shared else 1)
                continue
            column = steps[feature.path]
            if feature.kind == "number":
                self.numbers[feature.name] = frames.read_numbers(feature, steps)
                _check_rate(feature, column, frame_format.fps)
            elif feature.kind == "text":
                self.columns[feature.name] = frames.texts(column, feature.path)
            else:
                check_size(feature, column)
                self.samples[feature.name] = 0
                if decoded:
                    self._sample(feature, column, decoded)
                if feature in frame_format.videos:
                    copied = copied_frames(column, feature) if feature.path in frame_format.copied else None
                    self.pixels[feature.name] = copied or PixelFrames(column, feature)
                else:
                    self.columns[feature.name] = frames.image_parts(feature, column)
        places = np.arange(self.length)
        self.numbers |= {"timestamp": (places / frame_format.fps).astype(np.float32), "frame_index": places}
        self.columns |= self.numbers
        self.texts = [""]
        if (task := mapped.task) is not None:
            given = objects([episode.metadata[task]]) if task in episode.metadata else steps[task]
            self.texts = frames.texts(given, task)

    def _sample(self, feature: LerobotFeature, column: Column, count: int) -> None:
        """Counts the pixels of sampled frames, except `ZERO_IMAGE`. If all are, counts one zero pixel."""
        places = statistics.sample_places(self.length, count)
        if isinstance(column, EncodedImages):
            some: Column = column.with_data(objects([image for image in map(column.image, places) if image]))
        else:
            some = column[places]
        if len(some) and feature.depth is not None:
            histogram = feature.depth.histogram(some, feature.path)
        elif len(some):
            histogram = statistics.count_levels(some, feature.shape[-1], feature.path)
        else:
            histogram = np.zeros((feature.shape[-1], len(feature.levels)), np.int64)
            histogram[:, 0] = 1
        self.histograms[feature.name] = histogram
        self.samples[feature.name] = max(1, len(some))

    def release(self) -> None:
        """Frees the frames."""
        self.columns, self.numbers, self.texts, self.pixels, self.histograms = {}, {}, [], {}, {}


def metadata_column(field: Any, values: list[Any]) -> pa.Array:
    """An Arrow array of an episode field's values."""
    if field.holds_image_files:
        return to_arrow(field, EncodedImages(objects(values), field.shape, field.dtype), len(values))
    if field.dtype == "string" or None in field.shape:
        return to_arrow(field, objects(values), len(values))
    column = np.array(values, field.numpy_dtype).reshape(len(values), *field.closed_shape)
    return to_arrow(field, column, len(values))


def _check_rate(feature: LerobotFeature, column: Column, fps: float) -> None:
    """Raises BadEpisode if a field of timestamps has another rate than the dataset that is written."""
    rate = contradicting_rate(feature.path, column, fps) if len(feature.fields) == 1 else None
    if rate is not None:
        detail = (
            f"its times are {rate:.3g} Hz, but the dataset is written with {fps:g} Hz: correct the rate, resample, or "
            f"leave the field out (--map=-{feature.path})"
        )
        raise BadEpisode(Violation("not_representable", detail, feature.path))


def check_size(feature: LerobotFeature, column: Column) -> None:
    """Raises BadEpisode if an image has another size and the schema does not fix it."""
    if feature.is_sized and isinstance(column, EncodedImages):
        there = column.data != ZERO_IMAGE
        images = EncodedImages(column.data[there], feature.shape, column.dtype, column.encoding)
        violations = images.check(sys.maxsize, feature.path)
        if violations:
            raise BadEpisode(*violations)


class LerobotWriter:
    """The `processing.ranges.RangeWriter` of a LeRobot dataset.

    Args:
      directory: the directory of the dataset.
      frame_format: how frames are stored.
      names: the names of the frames file, of the facts file, and of the videos.
      video_class: writes the videos of a camera.

    Attributes:
      predicted: the number of frames so far.
    """

    def __init__(
        self,
        directory: str,
        frame_format: FrameFormat,
        names: tuple[str, ...],
        video_class: type[VideoFile | VideoPack],
    ):
        self._names, self._format, self._map = names, frame_format, frame_format.features
        data, self._facts, *videos = (storage.below(directory, name) for name in names)
        self._frames = FramesFile(data, frame_format.stored)
        self._videos: dict[str, VideoFile | VideoPack] = {}
        for feature, path in zip(frame_format.videos, videos, strict=True):
            height, width, _ = feature.shape
            encoding = frame_format.video_encoding(feature)
            self._videos[feature.name] = video_class(path, encoding, frame_format.fps, height, width)
        self._copied = [feature.name for feature in frame_format.videos if feature.path in frame_format.copied]
        self._tasks: dict[str, int] = {}
        self._frame_tasks: list[Array] = []
        self._episodes: list[PreparedEpisode] = []
        self._statistics = StatisticsGatherer(
            {feature.name: feature.levels for feature in self._map.images if feature.depth}
        )
        self._histograms = {f.name: np.zeros((f.shape[-1], len(f.levels)), np.int64) for f in self._map.images}
        self._not_decoded = statistics.FRAMES_OF_A_SAMPLE
        self.predicted = 0

    def write(self, batch: Batch) -> None:
        prepared, not_decoded = [], self._not_decoded
        episodes = [episode for episode in batch.episodes if len(episode)]
        for episode in episodes:
            decoded = statistics.sample_count(
                len(episode), not_decoded, self._format.image_samples, self._format.least_samples
            )
            prepared.append(PreparedEpisode(self._format, episode, decoded))
            not_decoded = 0 if decoded else not_decoded + len(episode)
        self._not_decoded = not_decoded
        for ready in prepared:  # nothing can fail after preparing
            tasks = [self._tasks.setdefault(text, len(self._tasks)) for text in ready.texts]
            self._frame_tasks.append(np.repeat(np.array(tasks, np.int32), ready.length // len(tasks)))
            self._frames.add(ready.columns, ready.length, ready.key)
            for name, pixels in ready.pixels.items():
                self._videos[name].add(pixels, ready.key)
            self._statistics.add(ready.numbers, ready.histograms)
            for name, histogram in ready.histograms.items():
                self._histograms[name] += histogram
            ready.release()
            self._episodes.append(ready)
            self.predicted += ready.length

    def finish(self) -> tuple[WrittenFile, ...]:
        import pyarrow as pa

        data, *videos = (file.commit() for file in (self._frames, *self._videos.values()))
        episodes = self._episodes
        columns: dict[str, Any] = {"episode_key": [str(episode.key) for episode in episodes]}
        for name, field in self._map.columns.items():
            parts = [episode.metadata[name] for episode in episodes]
            columns[name] = pa.concat_arrays(parts) if parts else metadata_column(field, [])
        facts = RangeFacts(
            keys=[str(episode.key) for episode in episodes],
            lengths=np.array([episode.length for episode in episodes], np.int64),
            tasks=list(self._tasks),
            frame_tasks=np.concatenate([np.empty(0, np.int32), *self._frame_tasks]),
            statistics=self._statistics.finish(),
            histograms=self._histograms,
            samples={
                name: np.array([episode.samples[name] for episode in episodes], np.int64) for name in self._histograms
            },
            columns=pa.table(columns),
            ends=np.array([video.ends for video in self._videos.values()], np.int64),
            encoded={name: self._videos[name].encoded for name in self._copied},
        )
        kept = facts.write(self._facts, data.first_key)
        names = iter(self._names)
        return (
            WrittenFile(next(names), data, self.predicted),
            WrittenFile(next(names), kept, len(episodes), role="temporary"),
            *(WrittenFile(name, video, self.predicted, role="part") for name, video in zip(names, videos, strict=True)),
        )

    def abort(self) -> None:
        self._frames.abort()
        for video in self._videos.values():
            video.abort()
