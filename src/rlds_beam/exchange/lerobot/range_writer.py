"""Writes the episodes of a range as frames of a LeRobot dataset."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_beam import storage
from rlds_beam.connectors.base import Batch
from rlds_beam.episodes.columns import ZERO_IMAGE
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.episodes.image_checking import check_images
from rlds_beam.episodes.images import EncodedImages
from rlds_beam.episodes.violations import BadEpisode
from rlds_beam.exchange.lerobot import statistics, tables
from rlds_beam.exchange.lerobot.features import Feature
from rlds_beam.exchange.lerobot.parquet_file import MARKS
from rlds_beam.exchange.lerobot.range_facts import RangeFacts, facts_file
from rlds_beam.exchange.lerobot.videos import Pixels
from rlds_beam.formats.arrow_columns import to_arrow
from rlds_beam.formats.example_columns import objects
from rlds_beam.output.shards import WrittenFile

if TYPE_CHECKING:
    import pyarrow as pa

    from rlds_beam.exchange.lerobot.output import LerobotOutput
    from rlds_beam.reading.plan import WorkRange

Array = np.ndarray[Any, Any]


class LerobotWriter:
    """`output.base.FileRangeWriter` of a LeRobot dataset.

    Attributes:
      predicted: frames of the episodes so far.
    """

    def __init__(self, output: LerobotOutput, work: WorkRange):
        self._output, self._facts = output, facts_file(work)
        self._map = output.features
        self._schema = tables.frames_schema(output.stored)
        names = tuple(name for name in output.files(work) if name != self._facts)
        self._files = output.files_class(output, self._schema, names)
        self._tasks: dict[str, int] = {}
        self._episodes: list[_Prepared] = []
        self._histograms = {f.name: np.zeros((f.shape[-1], statistics.LEVELS), np.int64) for f in self._map.images}
        self.predicted = 0

    def write(self, batch: Batch) -> None:
        prepared = [_Prepared(self._output, episode) for episode in batch.episodes if len(episode)]
        for one in prepared:  # all that can fail has not
            table = one.table(self._schema, self._tasks, len(self._episodes), self.predicted)
            self._files.add(table, one.pixels, one.key)
            for name, histogram in one.histograms.items():
                self._histograms[name] += histogram
            one.release()
            self._episodes.append(one)
            self.predicted += one.length

    def finish(self) -> tuple[WrittenFile, ...]:
        (data, *videos), places = self._files.commit()
        made = self._episodes
        names = made[0].statistics if made else {}
        facts = RangeFacts(
            keys=[str(one.key) for one in made],
            lengths=np.array([one.length for one in made], np.int64),
            tasks=list(self._tasks),
            frame_tasks=np.concatenate([one.frame_tasks for one in made] or [np.empty(0, np.int32)]),
            statistics={name: np.stack([one.statistics[name] for one in made]) for name in names},
            histograms=self._histograms,
            samples={name: np.array([one.samples[name] for one in made], np.int64) for name in self._histograms},
            columns=self._columns(made),
            places=places,
        )
        kept = facts.write(storage.join(self._output.directory, self._facts), data.shard.first_key)
        return (data, WrittenFile(self._facts, kept, len(made), role="temporary"), *videos)

    def abort(self) -> None:
        self._files.abort()

    def _columns(self, episodes: list[_Prepared]) -> pa.Table:
        import pyarrow as pa

        made = {}
        for name, field in self._map.columns.items():
            parts = [one.metadata[name] for one in episodes]
            made[name] = pa.concat_arrays(parts) if parts else to_arrow(field, _column(field, []), 0)
        return pa.table(made) if made else pa.table({"episode_key": [str(one.key) for one in episodes]})


class _Prepared:
    """One episode, with all that can be wrong with it found.

    Attributes:
      key, length: of the episode.
      frame_tasks: which text each frame has, int32 (T,).
      statistics: by feature (`statistics.STATISTICS`, D).
      histograms, samples: by image feature.
      metadata: of the episode, an array of one value for each column of meta/episodes.
      pixels: by feature, the frames of videos.
    """

    def __init__(self, output: LerobotOutput, episode: Episode):
        mapped, steps = output.features, episode.steps
        self.key, self.length = episode.key, len(episode)
        self.metadata = {
            name: to_arrow(field, _column(field, [episode.metadata[field.path]]), 1)
            for name, field in mapped.columns.items()
        }
        self.columns: dict[str, Any] = {}
        numbers: dict[str, Array] = {}
        self.statistics: dict[str, Array] = {}
        self.histograms: dict[str, Array] = {}
        self.samples: dict[str, int] = {}
        self.pixels: dict[str, Iterable[Array]] = {}
        for feature in mapped.features:
            if feature.kind == "number":
                numbers[feature.name] = tables.numbers_of(feature, steps)
                self.columns[feature.name] = tables.numbers_array(feature, numbers[feature.name])
            elif feature.kind == "text":
                self.columns[feature.name] = tables.texts_array(
                    feature, tables.texts(steps[feature.path], feature.path)
                )
            else:
                _check_size(feature, steps[feature.path])
                self._sample(feature, steps[feature.path], output.image_samples)
                if feature in output.videos:
                    images = tables.images_of(feature, steps[feature.path])
                    self.pixels[feature.name] = Pixels(images, feature)
                else:
                    self.columns[feature.name] = tables.images_array(feature, steps[feature.path])
        places = np.arange(self.length)
        numbers["timestamp"] = (places / output.fps).astype(np.float32)
        numbers["frame_index"] = places
        self.statistics |= statistics.episode_statistics(numbers)
        self.columns |= {name: tables.pa_array(numbers[name]) for name in ("timestamp", "frame_index")}
        self.texts = self._task_texts(mapped.task, episode)

    def _sample(self, feature: Feature, column: Column, samples: int) -> None:
        places = statistics.sample_places(self.length, samples)
        some = column[places]
        if isinstance(some, EncodedImages):
            some = some[[image != ZERO_IMAGE for image in some]]
        histogram = statistics.histogram_of(some, feature.shape[-1], feature.path) if len(some) else None
        if histogram is None:
            histogram = np.zeros((feature.shape[-1], statistics.LEVELS), np.int64)
            histogram[:, 0] = 1
        self.histograms[feature.name] = histogram
        self.samples[feature.name] = max(1, len(some))
        self.statistics[feature.name] = statistics.image_statistics(histogram)

    def _task_texts(self, task: str | None, episode: Episode) -> list[str]:
        if task is None:
            return [""]
        if task in episode.metadata:
            return tables.texts(objects([episode.metadata[task]]), task)
        return tables.texts(episode.steps[task], task)

    def table(self, schema: pa.Schema, tasks: dict[str, int], episode: int, first: int) -> pa.Table:
        """The frames, numbered as the `episode`th of the range, whose frames begin at `first`; adds to the tasks."""
        import pyarrow as pa

        numbers = [tasks.setdefault(text, len(tasks)) for text in self.texts]
        repeats = self.length // len(numbers)
        self.frame_tasks = np.repeat(np.array(numbers, np.int32), repeats)
        own = {
            "index": first + np.arange(self.length),
            "episode_index": np.full(self.length, episode),
            "task_index": self.frame_tasks.astype(np.int64),
        }
        self.columns |= {name: tables.pa_array(MARKS[name] + values) for name, values in own.items()}
        return pa.Table.from_arrays([self.columns[name] for name in schema.names], schema=schema)

    def release(self) -> None:
        """Forgets the frames."""
        self.columns, self.texts, self.pixels = {}, [], {}
        self.histograms = {}


def _check_size(feature: Feature, column: Column) -> None:
    """Raises BadEpisode for an image of another size, where the schema leaves that open."""
    if feature.is_sized and isinstance(column, EncodedImages):
        there = column.data != ZERO_IMAGE
        images = EncodedImages(column.data[there], feature.shape, column.dtype, column.encoding)
        found = check_images(images, sys.maxsize, feature.path)
        if found:
            raise BadEpisode(*found)


def _column(field: Any, values: list[Any]) -> Column:
    if field.encoding in ("png", "jpeg"):
        return EncodedImages(objects(values), field.shape, field.dtype)
    if field.dtype == "string" or None in field.shape:
        return objects(values)
    return np.array(values, field.numpy_dtype).reshape(len(values), *field.closed_shape)
