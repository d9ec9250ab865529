"""Builds the index of a dataset's steps: reads, checks, and connects every episode once, and notes where images are.

The index is kept in the user's cache directory. Its name is a digest of everything that it depends on: the input files
(their names, sizes, and times), the rules, and the connectors. If one of these changes, another index is built.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import glob
import hashlib
import json
import os
import pickle
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import google_crc32c
import numpy as np

from rlds_beam import platforms, storage, worker_status
from rlds_beam._version import __version__
from rlds_beam.checking.duplicates import mark_duplicate
from rlds_beam.checking.rules import CheckOptions
from rlds_beam.checking.validation import screen_batches
from rlds_beam.checking.verdicts import count_verdict
from rlds_beam.connectors.base import Batch
from rlds_beam.connectors.pipeline import ConnectorRunner
from rlds_beam.datasets.image_index import Place, VideoWriter, frame_places, stored_images
from rlds_beam.datasets.step_index import (
    BLOB,
    PLACE,
    VERSION,
    IncompleteIndexError,
    IndexedColumn,
    IndexWriter,
    Located,
    StepIndex,
)
from rlds_beam.encoding.example.row_decoder import objects
from rlds_beam.encoding.tfrecord.file import TFRecordFormat
from rlds_beam.encoding.tfrecord.framing import HEADER
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.schema import Field
from rlds_beam.errors import DiskError, UsageError
from rlds_beam.images.encoded_images import EncodedImages, StoredImages
from rlds_beam.images.resizing import EditedImages
from rlds_beam.images.video_frames import VideoFrames
from rlds_beam.processing.job import Stage, Totals, process_here, run_stages
from rlds_beam.processing.ranges import check_and_connect, find_duplicates, fit_connectors
from rlds_beam.reading.base import Shard, Source, WorkRange
from rlds_beam.reading.last_steps import find_last_steps
from rlds_beam.reading.plan import plan_ranges
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.terminal.job_progress import Kind, Progress
from rlds_beam.text import format_size
from rlds_beam.typing import Array

CACHE = "RLDS_BEAM_CACHE"
"""The environment variable with the directory of the cache; by default `~/.cache/rlds-beam`."""

Process = Callable[[Stage, Totals], Iterator[Any]]
"""Processes the ranges of a stage, in order (`processing.job.process_here`)."""

_LARGE = 1 << 30
"""Input bytes from which the user is told that an index is being built."""


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The inputs of an index.

    Attributes:
      source: the dataset.
      check: the rules.
      connecting: the connectors; those that must be fitted are fitted to the dataset first.
    """

    source: Source
    check: CheckOptions
    connecting: ConnectorRunner

    def digest(self) -> str:
        """The digest of everything that the index depends on."""
        source, files = self.source, []
        for split in source.splits:
            files.append([split.name, split.start, split.stop])
            for shard in split.shards:
                paths = (shard.path, *source.companions(shard))
                for path in paths:
                    stamp = storage.stamp(path) if storage.scheme(path) is None else storage.checksum(path)
                    files.append([shard.index, path, stamp])
        content = [
            VERSION,
            __version__,
            sys.byteorder,
            source.dataset,
            type(source).__qualname__,
            source.plan(),
            files,
            source.last_action,
            repr(source.schema),
            dataclasses.asdict(self.check),
            self.connecting.configuration.plan(),
        ]
        return hashlib.sha256(json.dumps(content, default=str).encode()).hexdigest()[:32]


def open_index(recipe: Recipe, process: Process = process_here) -> StepIndex:
    """The index of a dataset, which is built if there is none. Processes that need the same index wait for one of them.

    Args:
      recipe: what to index.
      process: processes the ranges of a stage; by default in this process.

    Raises:
      UsageError: an episode breaks a rule whose policy is `fail`, the connectors left nothing, or the cache cannot be
        written.
    """
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    cache = os.path.join(os.environ.get(CACHE) or os.path.join(home, "rlds-beam"), "steps")
    directory = os.path.join(cache, recipe.digest())
    with contextlib.suppress(IncompleteIndexError):
        return StepIndex(directory)
    try:
        os.makedirs(cache, exist_ok=True)
        with platforms.locked(f"{directory}.lock", wait=True) as is_alone:
            with contextlib.suppress(IncompleteIndexError):  # another process built it meanwhile
                return StepIndex(directory)
            if is_alone:
                for unfinished in glob.glob(f"{glob.escape(directory)}.*.new"):  # of a build that was killed
                    shutil.rmtree(unfinished, ignore_errors=True)
            _build(recipe, directory, process)
    except OSError as error:
        disk = DiskError.from_errno(error.errno or 0, directory)
        detail = str(disk or f"cannot write to {directory}: {error.strerror or error}")
        raise UsageError(f"{detail}. Set {CACHE} to a directory for the index of {recipe.source.dataset}") from error
    return StepIndex(directory)


def _build(recipe: Recipe, directory: str, process: Process) -> None:
    cache, name = os.path.split(directory)
    unfinished = tempfile.mkdtemp(".new", f"{name}.", cache)
    try:
        _Builder(recipe, unfinished, process).build()
        if recipe.digest() != name:
            raise UsageError(f"{recipe.source.dataset} changed while it was open: open it again")
        shutil.rmtree(directory, ignore_errors=True)
        os.rename(unfinished, directory)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


class _Builder:
    def __init__(self, recipe: Recipe, directory: str, process: Process):
        self._recipe, self._process = recipe, process
        self._notes: list[str] = []
        self._rejected: Counter[str] = Counter()
        schema = recipe.connecting.schema  # after the connectors
        steps, metadata = (self._select_fields(fields) for fields in (schema.steps, schema.metadata))
        metadata = [field for field in metadata if field.path not in schema.steps]
        self._writer = IndexWriter(directory, steps, metadata)
        self._files = list(dict.fromkeys(shard.path for split in recipe.source.splits for shard in split.shards))
        self._videos = VideoWriter(self._files)
        self._edits: dict[str, dict[str, tuple[int, Any]]] = {}  # by column and digest: number, first record

    def _select_fields(self, fields: Mapping[str, Field]) -> list[Field]:
        kept = []
        for field in fields.values():
            if None in field.shape and (field.dtype == "string" or not field.fast):
                self._notes.append(f"{field.path} is left out: its shape varies in a way that steps cannot have")
            else:
                kept.append(field)
        return kept

    def build(self) -> None:
        recipe, source, connecting = self._recipe, self._recipe.source, self._recipe.connecting
        large = source.size > _LARGE
        if large:
            Progress("index").say(f"indexing the steps of {source.dataset} ({format_size(source.size)}), once")
        kind: Kind = "auto" if large else "none"
        with Progress("index", kind).show():
            ranges = plan_ranges(source)
            stages: list[Stage] = []
            if recipe.check.policy("duplicate_episode") != "accept":
                stages += find_duplicates(source)
            if connecting.unfitted:
                ignored = connecting.ignored_values()
                stages += fit_connectors(EpisodeReader(source), recipe.check, connecting, ignored, ranges)
        with Progress("index", kind, ranges=len(ranges)).show():
            totals = run_stages(stages, self._process)
            numbers = {path: i for i, path in enumerate(self._files)}
            self._add(self._process(ReadParts(ranges, recipe, self._writer.columns, numbers), totals))
        self._writer.finish(
            files=self._files,
            fitted=totals.get("fitted", ()),
            edits={path: [record for _, record in records.values()] for path, records in self._edits.items()},
            notes=self._notes,
            rejected=self._rejected,
            last_steps=dataclasses.asdict(find_last_steps(source)),
            void_datasets=source.meaning.void_datasets,
            videos=self._videos.videos,
            scales=self._videos.scales,
        )

    def _add(self, parts: Iterable[_Part]) -> None:
        """Writes the episodes of parts, and numbers their videos and edits in the order of the episodes."""
        try:
            for part in parts:
                for length, values in part.episodes:
                    for column, value in zip(self._writer.columns, values, strict=True):
                        path = column.field.path
                        if isinstance(value, Located) and value.videos:
                            self._videos.number(value, path, part.videos)
                        if isinstance(value, Located) and value.edits is not None:
                            records = self._edits.setdefault(path, {})
                            entry = records.setdefault(value.edits["edits"], (len(records) + 1, value.edits))
                            value.places["edit"] = entry[0]
                    self._writer.add(length, values)
                self._rejected += part.rejected
                self._videos.write(self._writer)
        finally:
            self._writer.close()


class _Part:
    """The episodes of a range: their lengths, and the values of their columns; and the episodes that were left out."""

    def __init__(self) -> None:
        self.episodes: list[tuple[int, list[Any]]] = []
        self.rejected: Counter[str] = Counter()
        self.videos: dict[str, tuple[Any, ...]] = {}
        """The arguments of each `Video` by its path: a pickled `Video` would read its file again."""


@dataclasses.dataclass(frozen=True)
class ReadParts(Stage):
    """Reads, checks, and connects the episodes of every range, for the index. Its parts are written in order.

    Attributes:
      all_ranges: the ranges.
      recipe: what to index.
      columns: the columns of the index.
      numbers: the number of each file.
    """

    all_ranges: Sequence[WorkRange]
    recipe: Recipe
    columns: Sequence[IndexedColumn]
    numbers: Mapping[str, int]
    name = "index"

    def ranges(self, totals: Totals) -> Sequence[WorkRange]:
        return self.all_ranges

    def process(self, work: WorkRange, totals: Totals) -> _Part:
        source, connecting = self.recipe.source, self.recipe.connecting.fit(totals.get("fitted", ()))
        part, reader, ignored = _Part(), EpisodeReader(source), connecting.ignored_values()
        for segment in work.segments:
            for episode in screen_batches(reader.batches(work.split, segment)):
                episode = mark_duplicate(episode, totals.get("duplicates", {}))
                made: list[tuple[int, list[Any]]] = []

                def write(batch: Batch, made: Any = made, shard: Shard = segment.shard) -> None:
                    assert batch.read is not None
                    read = batch.read
                    stored = functools.cache(functools.partial(stored_images, source, shard, read))
                    for i, episode in enumerate(batch.episodes):
                        locate = functools.partial(self._locate, read, i, shard, stored, part.videos)
                        made.append((len(episode), self._values(episode, locate)))

                verdict = check_and_connect(episode, self.recipe.check, connecting, ignored, write).verdict
                count_verdict(verdict)
                if verdict.rejected is not None:
                    part.rejected[verdict.rejected.rule] += 1
                part.episodes += made
        worker_status.count(ranges=1)
        return part

    def _values(self, episode: Episode, locate: Callable[[EncodedImages], Located]) -> list[Any]:
        """The values of the columns, as `IndexWriter.add` takes them."""
        values: list[Any] = []
        for column in self.columns:
            path, field = column.field.path, column.field
            found: Any = [episode.metadata[path]] if column.per_episode else episode.steps[path]
            if column.kind == "values":
                values.append(np.asarray(found, field.numpy_dtype))
            elif column.kind == "text":
                values.append([bytes(text) for text in np.ravel(found)])
            elif column.kind == "images":
                values.append(locate(EncodedImages(objects(found), field.shape) if column.per_episode else found))
            else:
                arrays = [np.asarray(value, field.numpy_dtype) for value in found]
                blobs = {i: array.tobytes() for i, array in enumerate(arrays)}
                shapes = np.array([array.shape for array in arrays], np.int64).reshape(len(arrays), len(field.shape))
                values.append(Located(_places(blobs, len(arrays)), blobs, shapes))
        return values

    def _locate(
        self,
        read: Episode,
        number: int,
        shard: Shard,
        stored: Callable[[], Mapping[bytes, Place]],
        videos: dict[str, tuple[Any, ...]],
        images: EncodedImages,
    ) -> Located:
        """The places of the images of an episode.

        Args:
          read: the record as read, of `shard`.
          number: the number of the episode among those made from it.
          stored: finds the places of the record's images in the files of the dataset, if they hold them as they are.
          videos: see `_Part`.
          images: the images.
        """
        edits: dict[str, Any] | None = None
        if isinstance(images, EditedImages):
            # A record from which the pending edits can be made again.
            digest, key = hashlib.sha256(pickle.dumps(images.edits)).hexdigest()[:32], read.key
            edits = {"split": key.split, "shard": key.shard, "position": key.position, "part": number, "edits": digest}
            images = images.source
        if isinstance(images, VideoFrames):
            for video in images.videos:
                facts = video.path, video.codec, video.format, video.size, video.base, video.packets
                videos.setdefault(video.path, facts)
            names = [video.path for video in images.videos]
            return Located(frame_places(images), videos=names, scale=images.scale, edits=edits)
        files = self.recipe.source.files
        has_offsets = isinstance(files, TFRecordFormat) and files.is_splittable(shard.path)  # as positions of records
        if isinstance(images, StoredImages) and images.record is read.payload and has_offsets:
            places = np.zeros(len(images), PLACE)
            places["offset"] = images.starts + (read.key.position + HEADER.size)
            places["size"], places["file"] = images.stops - images.starts, self.numbers[shard.path]
            places["crc"] = [google_crc32c.value(image) for image in images.data]
            return Located(places, edits=edits)
        places, blobs = _places(dict(enumerate(images)), len(images)), dict[int, bytes]()
        for row, image in enumerate(images):
            if image in stored():
                file, places["offset"][row] = stored()[image]
                places["file"][row] = self.numbers[file]
            else:
                blobs[row] = image
        return Located(places, blobs, edits=edits)


def _places(blobs: Mapping[int, bytes], count: int) -> Array:
    places = np.zeros(count, PLACE)
    for row, data in blobs.items():
        places[row] = (0, len(data), google_crc32c.value(data), BLOB, 0)
    return places
