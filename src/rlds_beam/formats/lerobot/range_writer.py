"""Writes the episodes of a range as frames of a LeRobot dataset.

Each episode is prepared first, which finds every problem before anything of it is written.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_beam import storage
from rlds_beam.checking.rates import contradicting_rate
from rlds_beam.connectors.base import Batch
from rlds_beam.encoding.arrow_columns import to_arrow
from rlds_beam.encoding.example.row_decoder import objects
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.errors import BadEpisode, Violation
from rlds_beam.formats.lerobot import frames, language, statistics
from rlds_beam.formats.lerobot.camera_frames import DepthFrames, PixelFrames, copied_frames
from rlds_beam.formats.lerobot.features import LerobotFeature
from rlds_beam.formats.lerobot.frames import FrameFormat, LerobotFrames, Values
from rlds_beam.formats.lerobot.range_facts import RangeFacts
from rlds_beam.formats.lerobot.range_files import EpisodeFiles, RangeFiles
from rlds_beam.formats.lerobot.statistics import StatisticsGatherer
from rlds_beam.images.checks import check_images
from rlds_beam.images.encoded_images import ZERO_IMAGE, EncodedImages
from rlds_beam.output.shards import WrittenFile
from rlds_beam.typing import Array

if TYPE_CHECKING:
    import pyarrow as pa


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
                self.columns[feature.name] = self._annotations(feature, episode)
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
                if feature.depth is not None:
                    self.pixels[feature.name] = DepthFrames(column, feature.path, feature.shape, feature.depth)
                elif feature in frame_format.videos:
                    copied = copied_frames(column, feature) if feature.path in frame_format.copied else None
                    self.pixels[feature.name] = copied or PixelFrames(frames.read_images(feature, column), feature)
                else:
                    self.columns[feature.name] = frames.image_parts(feature, column)
        places = np.arange(self.length)
        self.numbers |= {"timestamp": (places / frame_format.fps).astype(np.float32), "frame_index": places}
        self.columns |= self.numbers
        self.texts = _task_texts(mapped.task, episode)

    def _annotations(self, feature: LerobotFeature, episode: Episode) -> Sequence[str]:
        """The rows of a language column in each frame, as JSON."""
        of_episode = feature.path in episode.metadata
        column = objects([episode.metadata[feature.path]]) if of_episode else episode.steps[feature.path]
        texts = language.checked_texts(feature.name, frames.texts(column, feature.path), feature.path)
        return [*texts] * (self.length if of_episode else 1)

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


def _task_texts(task: str | None, episode: Episode) -> list[str]:
    if task is None:
        return [""]
    if task in episode.metadata:
        return frames.texts(objects([episode.metadata[task]]), task)
    return frames.texts(episode.steps[task], task)


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
        violations = check_images(images, sys.maxsize, feature.path)
        if violations:
            raise BadEpisode(*violations)


class LerobotWriter:
    """The `output.base.FileRangeWriter` of a LeRobot dataset.

    Args:
      directory: the directory of the dataset.
      frame_format: how frames are stored.
      files: writes the files of the range.
      facts: the name of the facts file.

    Attributes:
      predicted: the number of frames so far.
    """

    def __init__(
        self,
        directory: str,
        frame_format: FrameFormat,
        files: RangeFiles | EpisodeFiles,
        facts: str,
    ):
        self._directory, self._format, self._files, self._facts = directory, frame_format, files, facts
        self._map = frame_format.features
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
            self._files.add(self._number(ready), ready.pixels, ready.key)
            self._statistics.add(ready.numbers, ready.histograms)
            for name, histogram in ready.histograms.items():
                self._histograms[name] += histogram
            ready.release()
            self._episodes.append(ready)
            self.predicted += ready.length

    def _number(self, episode: PreparedEpisode) -> LerobotFrames:
        """The frames, numbered as the next ones of the range. Adds new tasks."""
        tasks = [self._tasks.setdefault(text, len(self._tasks)) for text in episode.texts]
        self._frame_tasks.append(np.repeat(np.array(tasks, np.int32), episode.length // len(tasks)))
        numbers = {
            "index": self.predicted + np.arange(episode.length),
            "episode_index": np.full(episode.length, len(self._episodes)),
            "task_index": self._frame_tasks[-1].astype(np.int64),
        }
        return LerobotFrames({**episode.columns, **numbers}, episode.length)

    def finish(self) -> tuple[WrittenFile, ...]:
        data, *videos = self._files.commit()
        episodes = self._episodes
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
            columns=self._columns(episodes),
            ends=self._files.ends,
            encoded=self._files.encoded,
        )
        kept = facts.write(storage.below(self._directory, self._facts), data.shard.first_key)
        return (data, WrittenFile(self._facts, kept, len(episodes), role="temporary"), *videos)

    def abort(self) -> None:
        self._files.abort()

    def _columns(self, episodes: list[PreparedEpisode]) -> pa.Table:
        import pyarrow as pa

        columns = {}
        for name, field in self._map.columns.items():
            parts = [episode.metadata[name] for episode in episodes]
            columns[name] = pa.concat_arrays(parts) if parts else metadata_column(field, [])
        return pa.table(columns) if columns else pa.table({"episode_key": [str(episode.key) for episode in episodes]})
