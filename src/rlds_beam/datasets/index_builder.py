"""Builds the index of a dataset's steps: reads, checks, and connects every episode once, and notes where images are.

The index is kept in the user's cache directory. Its name is a digest of everything that it depends on: the input files
(their names, sizes, and times), the rules, and the connectors. If one of these changes, another index is built.
"""

from __future__ import annotations

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
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import google_crc32c
import numpy as np

from rlds_beam import platforms, storage, worker_status
from rlds_beam._version import __version__
from rlds_beam.checking.duplicates import mark_duplicate
from rlds_beam.checking.rules import CheckOptions
from rlds_beam.checking.screen import screen_batches
from rlds_beam.checking.verdicts import count_verdict
from rlds_beam.connectors.base import Batch
from rlds_beam.connectors.pipeline import ConnectorRunner
from rlds_beam.datasets.image_index import Place, VideoWriter, frame_places, stored_images
from rlds_beam.datasets.step_index import BLOB, PLACE, VERSION, IndexedColumn, IndexWriter, Located, StepIndex
from rlds_beam.encoding.example.row_decoder import objects
from rlds_beam.encoding.tfrecord.file import TFRecordFormat
from rlds_beam.encoding.tfrecord.framing import HEADER
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.schema import Field, Schema
from rlds_beam.errors import DiskError, UsageError
from rlds_beam.images.encoded_images import EncodedImages, StoredImages
from rlds_beam.images.resizing import EditedImages
from rlds_beam.images.video_frames import VideoFrames
from rlds_beam.processing.job import Stage, Totals, process_here, run_stages
from rlds_beam.processing.ranges import Duplicates, check_and_connect, find_duplicates, fit_connectors
from rlds_beam.reading.base import Shard, Source, WorkRange
from rlds_beam.reading.meaning import LastSteps, find_last_steps
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

    @property
    def schema(self) -> Schema:
        """The schema after the connectors."""
        return self.connecting.schema

    @functools.cached_property
    def last_steps(self) -> LastSteps:
        """What the last steps are; if known when the recipe is pickled, a worker need not look again."""
        return find_last_steps(self.source)

    def digest(self) -> str:
        """The digest of everything that the index depends on."""
        source, files = self.source, []
        for split in source.splits:
            files.append([split.name, split.start, split.stop])
            for shard in split.shards:
                paths = (shard.path, *source.companions(shard))
                files += [[shard.index, path, _version(path)] for path in paths]
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


def _version(path: str) -> Any:
    """The version of a file's content: its stamp, or an object's checksum."""
    return storage.stamp(path) if storage.scheme(path) is None else storage.checksum(path)


def cache_directory() -> str:
    """The directory of the cache."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.environ.get(CACHE) or os.path.join(home, "rlds-beam")


def open_index(recipe: Recipe, process: Process = process_here) -> StepIndex:
    """The index of a dataset, which is built if there is none. Processes that need the same index wait for one of them.

    Args:
      recipe: what to index.
      process: processes the ranges of a stage; by default in this process.

    Raises:
      UsageError: an episode breaks a rule whose policy is `fail`, the connectors left nothing, or the cache cannot be
        written.
    """
    directory = os.path.join(cache_directory(), "steps", recipe.digest())
    return StepIndex(directory, functools.partial(_replace, recipe, directory, process))


def _replace(recipe: Recipe, directory: str, process: Process, name: str, stamp: storage.Stamp | None) -> None:
    """See `step_index.Rebuild`."""
    cache = os.path.dirname(directory)
    try:
        os.makedirs(cache, exist_ok=True)
        with platforms.locked(f"{directory}.lock", wait=True) as is_alone:
            if is_alone:
                for unfinished in glob.glob(f"{glob.escape(directory)}.*.new"):  # of a build that was killed
                    shutil.rmtree(unfinished, ignore_errors=True)
            if storage.stamp(os.path.join(directory, name)) == stamp:
                _check_unchanged(recipe, os.path.basename(directory))
                if os.path.lexists(directory):
                    what = f"the index of {recipe.source.dataset} is damaged ({os.path.join(directory, name)})"
                    warnings.warn(f"{what}: it is built again", stacklevel=2)
                _build(recipe, directory, process)
    except OSError as error:
        disk = DiskError.of(error.errno or 0, directory)
        detail = str(disk or f"cannot write to {directory}: {error.strerror or error}")
        raise UsageError(f"{detail}. Set {CACHE} to a directory for the index of {recipe.source.dataset}") from error


def _build(recipe: Recipe, directory: str, process: Process) -> None:
    cache, name = os.path.split(directory)
    unfinished, damaged = (tempfile.mkdtemp(".new", f"{name}.", cache) for _ in range(2))
    try:
        _Builder(recipe, unfinished, process).build(name)
        _check_unchanged(recipe, name)
        if os.path.lexists(directory):
            os.rename(directory, os.path.join(damaged, name))
        os.rename(unfinished, directory)
        storage.sync_one(cache)
    finally:
        for left in (unfinished, damaged):
            shutil.rmtree(left, ignore_errors=True)


def _check_unchanged(recipe: Recipe, digest: str) -> None:
    if recipe.digest() != digest:
        raise UsageError(f"{recipe.source.dataset} changed while it was open: open it again")


class _Part:
    """The episodes of a range: their lengths, and the values of their columns; and the episodes that were left out."""

    def __init__(self) -> None:
        self.episodes: list[tuple[int, list[Any]]] = []
        self.rejected: Counter[str] = Counter()
        self.videos: dict[str, tuple[Any, ...]] = {}
        """The arguments of each `Video` by its path: a pickled `Video` would read its file again."""


class _Builder:
    def __init__(self, recipe: Recipe, directory: str, process: Process):
        self._recipe, self._process = recipe, process
        self._source, self._check, self._connecting = recipe.source, recipe.check, recipe.connecting
        self.notes: list[str] = []
        self.rejected: Counter[str] = Counter()
        steps, metadata = (self._select_fields(fields) for fields in (recipe.schema.steps, recipe.schema.metadata))
        metadata = [field for field in metadata if field.path not in recipe.schema.steps]
        self._writer = IndexWriter(directory, steps, metadata)
        shards = [shard for split in self._source.splits for shard in split.shards]
        self._files = list(dict.fromkeys(shard.path for shard in shards))
        numbers = {path: i for i, path in enumerate(self._files)}
        self._reader = _RangeReader(self._source, self._check, self._connecting, self._writer.columns, numbers)
        self._edits, self._videos = _Edits(), VideoWriter(self._files)

    def _select_fields(self, fields: Mapping[str, Field]) -> list[Field]:
        kept = []
        for field in fields.values():
            if None in field.shape and (field.dtype == "string" or not field.fast):
                self.notes.append(f"{field.path} is left out: its shape varies in a way that steps cannot have")
            else:
                kept.append(field)
        return kept

    def build(self, digest: str) -> None:
        source = self._source
        large = source.size > _LARGE
        if large:
            text = f"indexing the steps of {source.dataset} ({format_size(source.size)}), once"
            Progress("index").say(text)
        kind: Kind = "auto" if large else "none"
        with Progress("index", kind).show():
            ranges = plan_ranges(source)
            stages: list[Stage] = []
            if self._check.policy("duplicate_episode") != "accept":
                stages += find_duplicates(source)
            if self._connecting.unfitted:
                ignored = self._connecting.ignored_values()
                stages += fit_connectors(EpisodeReader(source), self._check, self._connecting, ignored, ranges)
        with Progress("index", kind, ranges=len(ranges)).show():
            totals = run_stages(stages, self._process)
            self._add(self._process(ReadParts(ranges, self._reader), totals))
        self._finish(digest, totals.get("fitted", ()))

    def _add(self, parts: Iterable[_Part]) -> None:
        """Writes the episodes of parts."""
        try:
            for part in parts:
                for length, values in part.episodes:
                    for column, value in zip(self._writer.columns, values, strict=True):
                        if isinstance(value, Located):
                            self._number(value, column.field.path, part.videos)
                    self._writer.add(length, values)
                self.rejected += part.rejected
                self._videos.write(self._writer)
        finally:
            self._writer.close()

    def _number(self, located: Located, path: str, videos: Mapping[str, tuple[Any, ...]]) -> None:
        """Fills in the numbers of videos and edits, in the order in which episodes are written."""
        if located.videos:
            self._videos.number(located, path, videos)
        if located.edits is not None:
            located.places["edit"] = self._edits.number(path, located.edits)

    def _finish(self, digest: str, fitted: Sequence[Any]) -> None:
        """Completes the index."""
        source = self._source
        self._writer.finish(
            recipe=digest,
            dataset=source.dataset,
            files=self._files,
            fitted=fitted,
            edits=self._edits.records,
            notes=self.notes,
            rejected=dict(self.rejected),
            last_steps=dataclasses.asdict(self._recipe.last_steps),
            **({} if source.void_datasets is None else {"void_datasets": [*source.void_datasets]}),
            videos=self._videos.videos,
            scales=self._videos.scales,
        )


@dataclasses.dataclass(frozen=True)
class ReadParts(Stage):
    """Reads, checks, and connects the episodes of every range, for the index. Its parts are written in order."""

    all_ranges: Sequence[WorkRange]
    reader: _RangeReader
    name = "index"

    def ranges(self, totals: Totals) -> Sequence[WorkRange]:
        return self.all_ranges

    def process(self, work: WorkRange, totals: Totals) -> _Part:
        part = self.reader.read(work, totals.get("duplicates", {}), totals.get("fitted", ()))
        worker_status.count(ranges=1)
        return part


@dataclasses.dataclass(frozen=True)
class _RangeReader:
    """Reads, checks, and connects the episodes of a range. Picklable.

    Attributes:
      source, check, connecting: those of the recipe.
      columns: the columns of the index.
      numbers: the number of each file.
    """

    source: Source
    check: CheckOptions
    connecting: ConnectorRunner
    columns: Sequence[IndexedColumn]
    numbers: Mapping[str, int]

    def read(self, work: WorkRange, duplicates: Duplicates, fitted: Sequence[Any]) -> _Part:
        connecting = self.connecting.fit(fitted)
        part, reader, ignored = _Part(), EpisodeReader(self.source), connecting.ignored_values()
        for segment in work.segments:
            path = segment.shard.path
            file = self.numbers[path] if _is_addressable(self.source, path) else None
            for episode, sound in screen_batches(reader.batches(work.split, segment)):
                episode = mark_duplicate(episode, duplicates)
                made: list[tuple[int, list[Any]]] = []

                def write(batch: Batch, made: Any = made, segment: Any = segment, file: int | None = file) -> None:
                    assert batch.read is not None
                    for i, episode in enumerate(batch.episodes):
                        origin = _Origin(batch.read, i, self.source, segment.shard, file, part.videos)
                        made.append((len(episode), self._values(episode, origin)))

                verdict = check_and_connect(episode, self.check, connecting, ignored, write, sound=sound).verdict
                count_verdict(verdict)
                if verdict.rejected is not None:
                    part.rejected[verdict.rejected.rule] += 1
                part.episodes += made
        return part

    def _values(self, episode: Episode, origin: _Origin) -> list[Any]:
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
                images = EncodedImages(objects(found), field.shape) if column.per_episode else found
                values.append(self._locate(images, origin))
            else:
                values.append(_arrays(found, field))
        return values

    def _locate(self, images: EncodedImages, origin: _Origin) -> Located:
        edits, blobs, videos, scale = None, dict[int, bytes](), list[str](), None
        if isinstance(images, EditedImages):
            edits, images = _edit_record(images.edits, origin), images.source
        if isinstance(images, StoredImages) and images.record is origin.read.payload and origin.file is not None:
            places = np.zeros(len(images), PLACE)
            places["offset"] = images.starts + (origin.read.key.position + HEADER.size)
            places["size"], places["file"] = images.stops - images.starts, origin.file
            places["crc"] = [google_crc32c.value(image) for image in images.data]
        elif isinstance(images, VideoFrames):
            places, scale, videos = frame_places(images), images.scale, [video.path for video in images.videos]
            for video in images.videos:
                facts = video.path, video.codec, video.format, video.size, video.base, video.packets
                origin.videos.setdefault(video.path, facts)
        else:
            places = _places(dict(enumerate(images)), len(images))
            for row, image in enumerate(images):
                if image in origin.stored:
                    file, places["offset"][row] = origin.stored[image]
                    places["file"][row] = self.numbers[file]
                else:
                    blobs[row] = image

        return Located(places, blobs, videos=videos, scale=scale, edits=edits)


@dataclasses.dataclass(frozen=True)
class _Origin:
    """The origin of an episode.

    Attributes:
      read: the record as read.
      part: the number of the episode among those made from it.
      source, shard: where the record is.
      file: the number of the shard's file, if the record's position is its offset there.
      videos: see `_Part`.
    """

    read: Episode
    part: int
    source: Source
    shard: Shard
    file: int | None
    videos: dict[str, tuple[Any, ...]]

    @functools.cached_property
    def stored(self) -> Mapping[bytes, Place]:
        """The places of the record's images in the files of the dataset, if they hold them as they are."""
        return stored_images(self.source, self.shard, self.read)


def _edit_record(edits: Any, origin: _Origin) -> dict[str, Any]:
    """A record from which the pending edits of an episode's images can be made again."""
    digest, key = hashlib.sha256(pickle.dumps(edits)).hexdigest()[:32], origin.read.key
    return {"split": key.split, "shard": key.shard, "position": key.position, "part": origin.part, "edits": digest}


class _Edits:
    """The different pending edits of images: the first record of each."""

    def __init__(self) -> None:
        self.records: dict[str, list[dict[str, Any]]] = {}
        self._known: dict[tuple[str, str], int] = {}

    def number(self, path: str, record: dict[str, Any]) -> int:
        """The number of these edits of a column, from 1 on."""
        records, key = self.records.setdefault(path, []), (path, record["edits"])
        if key not in self._known:
            records.append(record)
            self._known[key] = len(records)
        return self._known[key]


def _is_addressable(source: Source, path: str) -> bool:
    """Whether the position of a record is the offset of its bytes in the file."""
    return isinstance(source.files, TFRecordFormat) and source.files.is_splittable(path)


def _arrays(values: Any, field: Field) -> Located:
    """Arrays of any shape, as bytes."""
    arrays = [np.asarray(value, field.numpy_dtype) for value in values]
    blobs = {i: array.tobytes() for i, array in enumerate(arrays)}
    shapes = np.array([array.shape for array in arrays], np.int64).reshape(len(arrays), len(field.shape))
    return Located(_places(blobs, len(arrays)), blobs, shapes)


def _places(blobs: Mapping[int, bytes], count: int) -> Array:
    places = np.zeros(count, PLACE)
    for row, data in blobs.items():
        places[row] = (0, len(data), google_crc32c.value(data), BLOB, 0)
    return places
