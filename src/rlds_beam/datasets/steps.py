"""The steps and the episodes of an indexed dataset as rows."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlds_beam.checking.validation import validate_episode
from rlds_beam.datasets.base import STEPS, Indices, episode_fields, join_episodes
from rlds_beam.datasets.image_index import IndexedVideos, PlaceReader
from rlds_beam.datasets.index_builder import Recipe
from rlds_beam.datasets.step_index import BLOB, FIRST_VIDEO, StepIndex
from rlds_beam.encoding.example.row_decoder import objects
from rlds_beam.episodes.episode import SOURCE_DATASET, Column
from rlds_beam.episodes.schema import Field
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.images.resizing import EditedImages
from rlds_beam.images.video_frames import VideoFrames
from rlds_beam.reading.base import Segment
from rlds_beam.reading.last_steps import is_action
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.typing import Array

Edited = Mapping[str, Sequence[EditedImages]]
"""For each column of edited images, an empty one with each of its pending edits."""


class IndexedSteps:
    """Steps as rows (`base.Rows`): numbers from the index, images from the files of the dataset.

    Episode-level fields are columns as well, unless a field of the steps has the same path.

    Attributes:
      index: the index.
      edited: see `edited_images`.
    """

    def __init__(self, index: StepIndex, edited: Edited):
        self.index, self.edited = index, edited
        self._reader = PlaceReader(index.files)
        self._videos = IndexedVideos(index, self._reader)

    def __len__(self) -> int:
        return len(self.index)

    @functools.cached_property
    def fields(self) -> Mapping[str, Field]:
        return {path: column.field for path, column in self.index.columns.items()}

    @property
    def starts(self) -> Array:
        """The index of each episode's first step, then the number of steps: int64 [E + 1]."""
        return self.index.starts

    @functools.cached_property
    def ended(self) -> Array:
        """Whether the last step of each episode is marked as the last, bool [E]; if there are no marks, all are."""
        some = np.flatnonzero(np.diff(self.starts))
        ended = np.zeros(self.index.episodes, bool)
        ended[some] = self.column("is_last", self.starts[some + 1] - 1) if "is_last" in self.index.columns else True
        return ended

    @functools.cached_property
    def void(self) -> Array:
        """Whether the last step of each episode has no action, bool [E]."""
        void = self.index.last_steps.action == "void" and any(is_action(path) for path in self.index.columns)
        names = self.index.content.get("void_datasets")
        if names is None or SOURCE_DATASET not in self.index.columns:
            return self.ended & void
        of_episodes = np.asarray(self.column(SOURCE_DATASET, slice(None)))
        return self.ended & void & np.isin(of_episodes, np.array([name.encode() for name in names], object))

    def read(self, indices: Indices, wanted: Sequence[str]) -> dict[str, Column]:
        episodes: Indices | None = None
        columns: dict[str, Column] = {}
        for path in wanted:
            rows = indices
            if self.index.columns[path].per_episode:
                if episodes is None:
                    episodes = np.searchsorted(self.starts, indices, side="right") - 1
                rows = episodes
            columns[path] = self.column(path, rows)
        return columns

    @property
    def is_remote(self) -> bool:
        """Whether images are read from a bucket."""
        return self._reader.is_remote

    def prefetch(self, indices: Indices, path: str) -> None:
        """See `base.prefetch`."""
        column = self.index.columns[path]
        if self.is_remote and column.kind == "images" and not column.per_episode:
            places = self.index.maps(path)[0][indices]
            framed = places["file"] < BLOB
            self._reader.prefetch(places[~framed])
            frames = places[framed]
            numbers = FIRST_VIDEO - frames["file"].astype(np.int64)
            for number in np.unique(numbers).tolist():  # the packets from the key frame on
                video = self._videos[number]
                for start, stop, _ in video.runs(np.unique(frames["offset"][numbers == number])):
                    self._reader.prefetch(video.packets["place"][start:stop])

    def column(self, path: str, rows: Indices | slice) -> Column:
        """The values of a column in these rows, which are episodes for an episode-level field."""
        column, parts = self.index.columns[path], self.index.maps(path)
        field = column.field
        if column.kind == "values":
            return np.array(parts[0][rows])
        if column.kind == "text":
            codes, ends, text = parts[0][rows], parts[1], parts[2]
            unique, inverse = np.unique(codes, return_inverse=True)
            starts = np.where(unique > 0, ends[np.maximum(unique - 1, 0)], 0)
            spans = zip(starts.tolist(), ends[unique].tolist(), strict=True)
            return objects([bytes(text[start:stop]) for start, stop in spans])[inverse].reshape(codes.shape)
        places = parts[0][rows]
        if column.kind == "images":
            return self._edit(path, self._images(field, places), places["edit"])
        data = self._reader.read(places)
        shapes = parts[1][rows]
        values = (np.frombuffer(item, field.numpy_dtype) for item in data)
        return objects([value.reshape(shape) for value, shape in zip(values, shapes, strict=True)])

    def _images(self, field: Field, places: Array) -> EncodedImages:
        """The images at these places; frames of videos are decoded later."""
        framed = places["file"] < BLOB
        if not framed.any():
            data = objects(self._reader.read(places))
            return EncodedImages(data, field.shape, field.dtype, field.encoding)
        frames = VideoFrames(
            self._videos,
            FIRST_VIDEO - places["file"].astype(np.int64),
            places["offset"],
            field.path,
            field.shape,
            field.dtype,
            field.encoding,
            scale=self._videos.scale(field.path),
        )
        if framed.all():
            return frames
        data = np.empty(len(places), object)
        data[~framed] = objects(self._reader.read(places[~framed]))
        data[framed] = frames[framed].data
        return frames.with_data(data)

    def _edit(self, path: str, images: EncodedImages, edits: Array) -> EncodedImages:
        """The images with their pending edits."""
        if path not in self.edited or not edits.any():
            return images
        data = np.empty(len(images), object)
        for number in np.unique(edits).tolist():
            rows = np.flatnonzero(edits == number)
            part = images[rows]
            if number:
                edited = self.edited[path][number - 1]
                part = edited.with_source(edited.source.with_data(part.data))
            if len(rows) == len(images):
                return part
            data[rows] = part.data
        return images.with_data(data)


class IndexedEpisodes:
    """The episodes of `IndexedSteps` as rows (`base.Rows`); fields as in `EpisodeRows`."""

    def __init__(self, steps: IndexedSteps):
        self._steps = steps

    def __len__(self) -> int:
        return self._steps.index.episodes

    @functools.cached_property
    def fields(self) -> Mapping[str, Field]:
        columns = self._steps.index.columns.values()
        steps = (column.field for column in columns if not column.per_episode)
        return episode_fields(steps, (column.field for column in columns if column.per_episode))

    def read(self, indices: Indices, wanted: Sequence[str]) -> dict[str, Column]:
        return {path: self._column(path, indices) for path in wanted}

    def _column(self, path: str, indices: Indices) -> Column:
        if not path.startswith(STEPS):
            return self._steps.column(path, indices)
        starts = self._steps.starts
        spans = [slice(int(starts[i]), int(starts[i + 1])) for i in indices.tolist()]
        columns = [self._steps.column(path.removeprefix(STEPS), span) for span in spans]
        return join_episodes(self.fields[path], columns)


def edited_images(recipe: Recipe, index: StepIndex) -> Edited:
    """Runs the connectors on the records that show the pending edits of images.

    Raises:
      RldsBeamError: a record cannot be read again.
    """
    if not index.edits:
        return {}
    source, connecting = recipe.source, recipe.connecting.fit(index.content["fitted"])
    reader, shards = EpisodeReader(source), {(s.name, shard.index): shard for s in source.splits for shard in s.shards}

    def edit_again(path: str, record: Mapping[str, Any]) -> EditedImages:
        split, position, part = record["split"], record["position"], record["part"]
        (episode,) = reader.read(split, Segment(shards[split, record["shard"]], position, position + 1))
        batch = connecting.connect(validate_episode(episode, recipe.check).episodes, episode)
        column = batch.episodes[part].steps[path]
        assert isinstance(column, EditedImages)
        return column.with_source(column.source.with_data(objects([])))

    return {path: [edit_again(path, record) for record in records] for path, records in index.edits.items()}
