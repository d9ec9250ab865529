"""Read `meta/` of a LeRobot dataset, v3.0 or v2.1."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import io
import itertools
import json
import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, NotRequired, TypedDict

import msgspec
import numpy as np

from rlds_beam import storage
from rlds_beam.encoding.metadata import Count, convert, parse_json, parsing
from rlds_beam.encoding.parquet_files import UNREADABLE, restore_footer, verified_parquet
from rlds_beam.episodes.episode import EPISODE_KEY
from rlds_beam.errors import UsageError
from rlds_beam.formats.lerobot import layout
from rlds_beam.formats.lerobot.layout import V3, V21, fill_template
from rlds_beam.images.videos import Video
from rlds_beam.output.append import interrupted_plan
from rlds_beam.text import shorten

_Seconds = Annotated[float, msgspec.Meta(ge=0, lt=1e12)]
_MAX_LOST = 1_000_000  # episodes of a recording that was cut which are rejected one by one


class _Feature(TypedDict):
    dtype: str
    shape: list[Count]


class _Info(TypedDict):
    """What we need of `meta/info.json`."""

    codebase_version: str
    fps: Annotated[float, msgspec.Meta(gt=0, le=1_000_000)]
    total_episodes: Count
    data_path: str
    features: dict[str, _Feature]
    robot_type: NotRequired[str | None]
    video_path: NotRequired[str | None]
    chunks_size: NotRequired[Annotated[int, msgspec.Meta(gt=0)]]
    splits: NotRequired[dict[str, str] | None]


class _Task(TypedDict):
    task_index: Count
    task: str


class _Episode(TypedDict):
    episode_index: Count
    length: Count


@dataclasses.dataclass(frozen=True)
class EpisodeVideo:
    """The video of an episode and camera: the file, and the start and end in seconds (None if meta/ does not say)."""

    file: str
    start: float
    stop: float | None = None


@dataclasses.dataclass(frozen=True)
class EpisodeRow:
    """An episode's entry in meta/.

    Attributes:
      index: the `episode_index`.
      length: the number of frames.
      file: the data file, relative to the root.
      videos: the videos by feature.
      columns: further columns.
      key: the key of the episode in the dataset from which it was converted, if we wrote it.
      fault: why it cannot be read, if its recording was cut.
    """

    index: int
    length: int
    file: str
    videos: Mapping[str, EpisodeVideo]
    columns: Mapping[str, Any]
    key: str | None = None
    fault: str = ""


@dataclasses.dataclass(frozen=True)
class Meta:
    """A dataset's metadata.

    root: the directory.
    info: the content of `info.json`.
    fields: the content of `rlds_beam.json`, if rlds-beam wrote the dataset.
    """

    root: str
    info: Mapping[str, Any]
    fields: Mapping[str, Any] | None

    @staticmethod
    def open(root: str) -> Meta:
        """Reads the metadata. Raises UsageError if there is no readable LeRobot dataset."""
        path = storage.join(root, layout.INFO)
        if not storage.exists(path):
            raise UsageError(f"{root} has no {layout.INFO}, so it is not a LeRobot dataset")
        info = parse_json(storage.read_small(path), path)
        stored = info.get("storage_format") if isinstance(info, dict) else None
        if stored not in (None, "parquet", "lerobot"):
            raise UsageError(
                f"{path}: storage_format is {shorten(repr(stored), 80)}, which rlds-beam does not read: use the "
                "dataset with Parquet files (folders data and meta), from which it was made"
            )
        convert(info, _Info, path)
        if info["codebase_version"] not in (V3, V21):
            raise UsageError(
                f"{path}: the dataset has version {info['codebase_version']}; {V21} and {V3} are supported "
                "(LeRobot converts older ones)"
            )
        fields = storage.join(root, layout.FIELDS)
        return Meta(root, info, parse_json(storage.read_small(fields), fields) if storage.exists(fields) else None)

    @property
    def version(self) -> str:
        return str(self.info["codebase_version"])

    @property
    def video_keys(self) -> list[str]:
        return [name for name, feature in self.info["features"].items() if feature["dtype"] == "video"]

    def path(self, name: str) -> str:
        return storage.join(self.root, *name.split("/"))

    def _file(self, template: str, values: Mapping[str, Any]) -> str:
        """The path of a file in the dataset, from a template of info.json."""
        return fill_template(self.info.get(template), values, f"{self.path(layout.INFO)}: {template}")

    @functools.cached_property
    def tasks(self) -> Mapping[int, str]:
        """The text of each task by its number."""
        if self.version == V21:
            path = self.path(layout.TASKS_JSONL)
            convert(lines := self._lines(layout.TASKS_JSONL), list[_Task], path)
            return {line["task_index"]: line["task"] for line in lines}
        path = self.path(layout.TASKS)
        if not storage.exists(path):
            return {}
        table = _read_table(path)
        names = [name for name in table.column_names if name != "task_index"]
        if len(names) != 1 or table.num_columns != 2:
            raise UsageError(f"{path}: expected the columns task_index and task")
        numbers, texts = table["task_index"].to_pylist(), table[names[0]].to_pylist()
        convert(numbers, list[Count], f"{path}: task_index")
        convert(texts, list[str], f"{path}: {names[0]}")
        return dict(zip(numbers, texts, strict=True))

    @functools.cached_property
    def episodes(self) -> list[EpisodeRow]:
        """The episodes in order."""
        return self._recover() if self.episodes_in_meta is None else self.episodes_in_meta

    @functools.cached_property
    def episodes_in_meta(self) -> list[EpisodeRow] | None:
        """The episodes in meta/; None if a recording was cut before all were there."""
        total = self.info["total_episodes"]
        try:
            with parsing(self.path("meta")):
                rows = self._episodes_v21() if self.version == V21 else self._episodes_v3()
                rows.sort(key=lambda row: row.index)
                if len(rows) > total and interrupted_plan(self.root) is not None:
                    rows = rows[:total]
                if len(rows) != total:
                    raise ValueError(f"some of its files are missing: info.json says {total} episodes, not {len(rows)}")
        except UsageError as error:
            if self.fields is None and isinstance(error.__cause__, ValueError):
                return None  # LeRobot writes the footer when a recording ends
            raise
        for row in rows:
            convert([row.index, row.length], list[Count], f"{self.path('meta')}: an episode's index and length")
            convert(row.key, str | None, f"{self.path('meta')}: {EPISODE_KEY}")
            convert(
                [video.start for video in row.videos.values()], list[_Seconds], f"{self.path('meta')}: from_timestamp"
            )
        return rows

    def _recover(self) -> list[EpisodeRow]:
        """The whole episodes of a recording that was cut, and those after them, which have a fault."""
        rows, end, fault = list[EpisodeRow](), self.info["total_episodes"], f"{self.path('data')} has no files"
        cameras = {key: self._recorded_frames(key) for key in self.video_keys}
        for path in storage.glob("data/*/*.parquet", self.root):
            file, fault = path[len(self.root.rstrip("/")) + 1 :], f"{path} ends before it"
            try:
                with storage.open_read(path) as opened:
                    table = self.open_data(opened).read(columns=["episode_index"], use_threads=False)
                counts = np.unique(table["episode_index"].to_numpy(), return_counts=True)
                for index, length in np.stack(counts, axis=1).tolist():
                    frames = {key: [*itertools.islice(camera, length)] for key, camera in cameras.items()}
                    if index != len(rows) or any(own[0].file != own[-1].file for own in frames.values()):
                        raise ValueError(f"episode {index} does not continue the one before, or is in two videos")
                    rows.append(EpisodeRow(index, length, file, {key: own[0] for key, own in frames.items()}, {}))
            except UNREADABLE as error:
                end, fault = max(end, len(rows) + 1), f"{path}: {shorten(error, 400)}"
                break
        if not rows or end > len(rows) + _MAX_LOST:
            raise UsageError(f"{self.root}: the recording was cut and has {len(rows):,} of {end:,} episodes; {fault}")
        return rows + [EpisodeRow(index, 0, rows[-1].file, {}, {}, fault=fault) for index in range(len(rows), end)]

    def _recorded_frames(self, key: str) -> Iterator[EpisodeVideo]:
        """The frames of a camera, in order. Raises ValueError at a video that cannot be read."""
        for number in itertools.count():
            place = layout.place(number) | layout.place_of_episode(number)  # of v3.0 and v2.1
            file = self._file("video_path", {**place, "video_key": key})
            try:
                times = Video.probe(self.path(file)).times.tolist()
            except (EOFError, RuntimeError, *UNREADABLE) as error:
                raise ValueError(f"{self.path(file)} cannot be read: {shorten(error)}") from None
            yield from (EpisodeVideo(file, time) for time in times)

    def open_data(self, file: Any) -> Any:
        """Opens a data file as `verified_parquet`; of a recording that was cut, its complete row groups."""
        import pyarrow as pa

        try:
            return verified_parquet(file)
        except UNREADABLE:
            if self.episodes_in_meta is not None:  # another program may write its columns in another order
                raise
            file.seek(0)
        types, sizes = dict[str, pa.DataType](), list[int]()
        for name, about in self.info["features"].items():  # the order and the types of LeRobot
            if about["dtype"] == "image":
                types[name] = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
                sizes += [1, 1]
            elif about["dtype"] != "video":
                types[name] = pa.type_for_alias(about["dtype"])
                for _ in about["shape"] if about["shape"] != [1] else ():
                    types[name] = pa.list_(types[name])
                sizes.append(max(1, math.prod(about["shape"])))
        return verified_parquet(io.BytesIO(restore_footer(file.read(), pa.schema(types.items()), sizes)))

    def _episodes_v3(self) -> list[EpisodeRow]:
        def read(path: str) -> Any:
            return _read_table(path, lambda column: not column.startswith("stats/"))

        rows: list[EpisodeRow] = []
        for table in storage.at_once(read, list(storage.glob("meta/episodes/*/*.parquet", self.root)), self.root):
            names = [n for n in table.column_names if not n.startswith(("data/", "videos/", "meta/"))]
            more = [name for name in names if name not in layout.EPISODE_COLUMNS]
            for row in table.to_pylist():
                place = {name: row[f"data/{name}"] for name in ("chunk_index", "file_index")}
                videos = {key: self._video(key, row) for key in self.video_keys}
                columns, file = {name: row[name] for name in more}, self._file("data_path", place)
                rows.append(
                    EpisodeRow(row["episode_index"], row["length"], file, videos, columns, row.get(EPISODE_KEY))
                )
        return rows

    def _video(self, key: str, row: Mapping[str, Any]) -> EpisodeVideo:
        place = {name: row[f"videos/{key}/{name}"] for name in ("chunk_index", "file_index")}
        stop = row.get(f"videos/{key}/to_timestamp")
        path = self._file("video_path", {**place, "video_key": key})
        return EpisodeVideo(path, row[f"videos/{key}/from_timestamp"], stop if isinstance(stop, float) else None)

    def _episodes_v21(self) -> list[EpisodeRow]:
        rows, size = [], self.info.get("chunks_size", layout.CHUNK)
        lines = self._lines(layout.EPISODES_JSONL)
        convert(lines, list[_Episode], self.path(layout.EPISODES_JSONL))
        for line in lines:
            index = line["episode_index"]
            place = layout.place_of_episode(index, size)
            videos = {
                key: EpisodeVideo(self._file("video_path", {**place, "video_key": key}), 0.0) for key in self.video_keys
            }
            columns = {name: value for name, value in line.items() if name not in layout.EPISODE_COLUMNS}
            file, key = self._file("data_path", place), line.get(EPISODE_KEY)
            rows.append(EpisodeRow(index, line["length"], file, videos, columns, key))
        return rows

    def _lines(self, name: str) -> list[Any]:
        path = self.path(name)
        if not storage.exists(path):
            raise UsageError(f"{path} is missing")
        lines = storage.read_text(path).split("\n")
        return [parse_json(line, f"{path}: line {i}") for i, line in enumerate(lines, 1) if line.strip()]

    def episode_schema(self) -> dict[str, tuple[str, tuple[int | None, ...]]]:
        """The dtype and shape of each further episode column."""
        kinds: dict[str, tuple[str, tuple[int | None, ...]]] = {}
        for row in self.episodes:
            for name, value in row.columns.items():
                kind = _kind(value)
                if kind is not None:
                    kinds[name] = kind if kinds.get(name, kind) == kind else ("", ())
        return {name: kind for name, kind in kinds.items() if kind[0]}

    def digest(self) -> str:
        """The digest of all metadata that episodes depend on, and of the videos' names and sizes."""
        numbers = sorted(self.tasks)
        dense = numbers == [*range(len(numbers))]
        tasks = [self.tasks[i] if dense else [i, self.tasks[i]] for i in numbers]
        content: list[Any] = [self.info, self.fields, tasks, [dataclasses.asdict(row) for row in self.episodes]]
        files = sorted({video.file for row in self.episodes for video in row.videos.values()})
        sizes = storage.at_once(_size, [self.path(file) for file in files], self.root)
        return hashlib.sha256(json.dumps([*content, files, sizes], default=str).encode()).hexdigest()


def _size(path: str) -> int | None:
    return storage.size(path) if storage.exists(path) else None


def _read_table(path: str, wanted: Any = None) -> Any:
    """Reads a Parquet file. Raises UsageError if it is damaged."""
    try:
        with storage.open_read(path) as file:
            content = verified_parquet(io.BytesIO(file.read()))
            names = [name for name in content.schema_arrow.names if wanted is None or wanted(name)]
            return content.read(columns=names, use_threads=False)
    except UNREADABLE as error:
        raise UsageError(f"{path} is damaged: {shorten(error)}") from error


def _kind(value: Any) -> tuple[str, tuple[int | None, ...]] | None:
    """The dtype and shape of a value; None if there is no value."""
    if value is None or isinstance(value, str):
        return None if value is None else ("string", ())
    if isinstance(value, list) and value and all(isinstance(text, str) for text in value):
        return "string", (None,)
    try:
        array = np.asarray(value)
    except ValueError:
        return "", ()
    return (array.dtype.name, array.shape) if array.dtype.kind in "biuf" else ("", ())
