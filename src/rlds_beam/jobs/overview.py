"""The card of a dataset: what its users ask first, from its metadata and the episodes that a survey reads."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlds_beam import storage
from rlds_beam.checking.rates import contradicting_rate
from rlds_beam.connectors.cleaning.language import TASK_FIELDS
from rlds_beam.episodes.columns import is_numeric
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.episodes.schema import Field, Schema
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.images.headers import UndecodableImageError, read_image_header
from rlds_beam.images.resizing import EditedImages
from rlds_beam.images.video_frames import VideoFrames
from rlds_beam.processing.report import Report
from rlds_beam.reading.base import Source
from rlds_beam.text import printable
from rlds_beam.typing import Array

_MAX_TASKS = 10_000
"""Different task texts that are counted."""
_MAX_FILES = 2_000
"""Videos and other companion files whose sizes are added up."""
_EPISODE_NAMES = 3


@dataclasses.dataclass(frozen=True)
class Camera:
    """A camera.

    Attributes:
      path: its field.
      height, width: the size in pixels; None if unknown.
      coding: how it is stored: `av1 video`, `jpeg`, `pixels`; with several, the share of each in the images read.
    """

    path: str
    height: int | None
    width: int | None
    coding: str


@dataclasses.dataclass(frozen=True)
class Values:
    """A numeric field of the observation or the action.

    Attributes:
      field: the field.
      low, high: the range of each value, by the episodes read; empty if none was.
      stated: whether the range is that of the dataset's own statistics, which cover all episodes.
    """

    field: Field
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    stated: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Overview:
    """The main facts about a dataset.

    Attributes:
      episodes: the number of episodes; None if unknown.
      steps: the number of steps; an estimate unless `complete`.
      complete: whether all episodes were read: otherwise tasks and ranges are those of a sample.
      steps_read: the number of steps of the episodes read.
      fps: steps per second, if known.
      names: the names of the first episodes in the files, if they have names.
      tasks: the number of episodes with each task text, among those read.
      cameras, values: the fields of the observation and the action.
      bytes: bytes on disk, with videos.
      gives_task: whether `--task` or `--task_file` is given.
      videos: the number of other files, for example videos, and their bytes; the bytes are None if they are too many.
      other_rates: the rates in Hz of fields of timestamps that contradict `fps`.
    """

    episodes: int | None
    steps: int
    complete: bool
    steps_read: int
    fps: float | None
    names: tuple[str, ...]
    tasks: Mapping[str, int]
    cameras: tuple[Camera, ...]
    values: tuple[Values, ...]
    bytes: int
    videos: tuple[int, int | None]
    gives_task: bool = False
    other_rates: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def seconds(self) -> float | None:
        """The length of the recordings in seconds; None if the rate is not known."""
        return self.steps / self.fps if self.fps else None

    @property
    def actions(self) -> list[Values]:
        return [value for value in self.values if value.field.path.split("/")[0] == "action"]

    @property
    def states(self) -> list[Values]:
        return [value for value in self.values if value.field.path.split("/")[0] == "observation"]

    def missing(self) -> dict[str, list[str]]:
        """What LeRobot's policies need and the data lacks, by policy; empty lists if nothing.

        ACT can do without a state, the others need `observation.state`.
        """
        learners = ("ACT", "diffusion policy", "pi0", "SmolVLA", "GR00T")
        if not self.cameras:
            return {learner: ["no images"] for learner in learners}
        lacks = [] if self.actions else ["no action"]
        lacks += [] if self.fps else ["no rate, give --fps"]
        state = self._missing_state()
        task = [] if self.gives_task or any(self.tasks) else ["no task text, give --task"]
        modality = ["no modality.json, give --lerobot_version=2.1 --modality=auto"]
        needs: tuple[list[str], ...] = ([], state, [*state, *task], [*state, *task], [*state, *task, *modality])
        return {learner: [*lacks, *more] for learner, more in zip(learners, needs, strict=True)}

    def _missing_state(self) -> list[str]:
        paths = [value.field.path for value in self.states]
        if "observation/state" in paths:
            return []
        known = "+".join(paths[:3]) if len(paths) <= 3 else f"{paths[0]}+{paths[1]}+..."
        return [f"no observation/state, give --map=observation.state={known}" if paths else "no state"]

    def to_json(self) -> dict[str, Any]:
        """The card as JSON."""
        ranges = {
            value.field.path: {
                **value.field.to_json(),
                "min": _without_nan(value.low),
                "max": _without_nan(value.high),
                **({"by_statistics": True} if value.stated else {}),
            }
            for value in self.values
        }
        return {
            "episodes": self.episodes,
            "steps": self.steps,
            "seconds": self.seconds,
            "fps": self.fps,
            "complete": self.complete,
            "steps_read": self.steps_read,
            "episode_names": list(self.names),
            "tasks": dict(self.tasks),
            "cameras": [dataclasses.asdict(camera) for camera in self.cameras],
            "values": ranges,
            "bytes": self.bytes,
            "other_files": self.videos[0],
            "other_bytes": self.videos[1],
            "missing": self.missing(),
            **({"other_rates": dict(self.other_rates)} if self.other_rates else {}),
        }


def _without_nan(numbers: Sequence[float]) -> list[float | None]:
    """Numbers for JSON, which has no NaN."""
    return [None if math.isnan(number) else number for number in numbers]


_CODINGS = {b"\xff\xd8": "jpeg", b"\x89P": "png"}
"""The first bytes of an image -> its coding."""


class OverviewBuilder:
    """Gathers what a card says of the episodes that are read."""

    def __init__(self, schema: Schema, fps: float | None):
        self._schema, self._fps = schema, fps
        self._other_rates: dict[str, float] = {}
        self._task = next((p for p in TASK_FIELDS if p in schema.steps or p in schema.metadata), None)
        self._tasks: Counter[str] = Counter()
        self._names: list[str] = []
        self._sizes: dict[str, tuple[int, int]] = {}
        self._codings: dict[str, Counter[str]] = {}
        self._low: dict[str, Array] = {}
        self._high: dict[str, Array] = {}
        self._paths = [field.path for field in schema.steps.values() if _is_vector(field)]
        self._unsized = [f.path for f in schema.steps.values() if f.holds_images and None in f.shape[:2]]
        self.steps = 0

    def add(self, episode: Episode) -> None:
        """Adds an episode as read; one with faults may have no steps."""
        if not episode.steps:
            return
        self.steps += len(episode)
        if len(self._names) < _EPISODE_NAMES and (name := _episode_name(episode)):
            self._names.append(name)
        text = None if self._task is None else _find_task(episode, self._task)
        if text is not None and (text in self._tasks or len(self._tasks) < _MAX_TASKS):
            self._tasks[text] += 1
        for path in self._unsized:
            if path not in self._sizes and (size := _image_size(episode.steps.get(path))):
                self._sizes[path] = size
        for path, column in episode.steps.items():
            if isinstance(column, EncodedImages) and not isinstance(column, (EditedImages, VideoFrames)):
                self._codings.setdefault(path, Counter()).update(_CODINGS.get(image[:2], "other") for image in column)
        for path in self._paths:
            self._add_range(path, episode.steps.get(path))
        if self._fps is not None:
            for path, column in episode.steps.items():
                if (rate := contradicting_rate(path, column, self._fps)) is not None:
                    self._other_rates.setdefault(path, rate)

    def _add_range(self, path: str, column: Column | None) -> None:
        if column is None or not is_numeric(column) or not len(column):
            return
        rows = np.asarray(column)
        rows = rows.astype(np.float32) if rows.dtype.name == "bfloat16" else rows
        with np.errstate(all="ignore"):
            low, high = np.atleast_1d(np.fmin.reduce(rows, axis=0)), np.atleast_1d(np.fmax.reduce(rows, axis=0))
        if path in self._low and self._low[path].shape != low.shape:
            return
        self._low[path] = np.fmin(self._low.get(path, low), low)
        self._high[path] = np.fmax(self._high.get(path, high), high)

    def finish(self, source: Source, report: Report, *, complete: bool, scale: float) -> Overview:
        """The card.

        Args:
          report: counts the episodes read.
          complete: whether all episodes were read.
          scale: the ratio of the dataset to the episodes read.
        """
        fields = self._schema.steps
        episodes = source.episodes if source.episodes is not None else report.records if complete else None
        ranges = {path: (_numbers(self._low[path]), _numbers(self._high[path]), False) for path in self._low}
        if not complete:
            stated = {path: _check_stated(own, ranges.get(path)) for path, own in source.stated_ranges().items()}
            ranges |= {path: known for path, known in stated.items() if known is not None}
        files, size = _companions(source)
        return Overview(
            episodes=episodes,
            steps=round(self.steps * scale),
            complete=complete,
            steps_read=self.steps,
            fps=source.fps,
            names=tuple(self._names),
            tasks=dict(self._tasks.most_common()),
            cameras=tuple(self._camera(field, source) for _, field in sorted(fields.items()) if field.holds_images),
            values=tuple(Values(fields[path], *ranges.get(path, ((), ()))) for path in self._paths),
            bytes=source.size + (size or 0),
            videos=(files, size),
            other_rates=self._other_rates,
        )

    def _camera(self, field: Field, source: Source) -> Camera:
        height, width = self._sizes.get(field.path, field.shape[:2])
        coding, counted = field.encoding.replace("none", "pixels"), self._codings.get(field.path, Counter())
        if len(counted) == 1:
            (coding,) = counted
        elif counted:
            shares = [f"{number / counted.total():.0%}" for number in counted.values()]
            coding = ", ".join(f"{share} {name}" for share, name in zip(shares, counted, strict=True))
        if field.path in source.videos:
            coding = f"{printable(source.videos[field.path].get('video.codec', ''), 40)} video".lstrip()
        return Camera(field.path, height, width, coding)


_Range = tuple[tuple[float, ...], tuple[float, ...], bool]


def _check_stated(stated: tuple[Sequence[float], Sequence[float]], read: _Range | None) -> _Range | None:
    """The range that statistics state; None if the values that were read contradict it."""
    low, high = (np.array(numbers) for numbers in stated)
    if read is None or len(read[0]) != len(low):
        return None
    margin = 1e-6 * (1 + np.maximum(np.abs(low), np.abs(high)))  # statistics may be of another precision
    beyond = (np.array(read[0]) < low - margin) | (np.array(read[1]) > high + margin)
    return None if beyond.any() else (tuple(low.tolist()), tuple(high.tolist()), True)


def _is_vector(field: Field) -> bool:
    """Whether a field is numbers of the observation or the action."""
    of = field.path.split("/")[0] in ("observation", "action")
    return of and field.dtype not in ("string", "bool") and len(field.shape) <= 1 and not field.holds_images


def _episode_name(episode: Episode) -> str:
    """The name of an episode in its file: `demo_3` of `demos.hdf5`, or `episode_0.hdf5`."""
    file, group = (episode.metadata.get(name) for name in ("file", "group"))
    texts = [printable(text, 100) for text in (group, file) if isinstance(text, (bytes, str)) and text]
    return f"{texts[0].rpartition('/')[2]} of {texts[1]}" if len(texts) == 2 else "".join(texts)


def _find_task(episode: Episode, path: str) -> str | None:
    value = episode.metadata.get(path)
    if value is None and path in episode.steps and len(episode):
        value = np.asarray(episode.steps[path]).reshape(-1)[0]
    return printable(value, 500) if isinstance(value, (bytes, str)) else None


def _image_size(column: Column | None) -> tuple[int, int] | None:
    """The size of the first image of a column."""
    if isinstance(column, EncodedImages) and len(column):
        with contextlib.suppress(UndecodableImageError):
            header = read_image_header(column.image(0))
            return header.height, header.width
    return None


def _numbers(values: Array) -> tuple[float, ...]:
    return tuple(float(value) if math.isfinite(value) else math.nan for value in values.tolist())


def _companions(source: Source) -> tuple[int, int | None]:
    """The number of other files of a dataset, and their bytes if they are not too many."""
    files = {file for split in source.splits for shard in split.shards for file in source.companions(shard)}
    if len(files) > _MAX_FILES:
        return len(files), None
    return len(files), sum(_count_bytes(files))


def _count_bytes(files: set[str]) -> Iterator[int]:
    for file in files:
        with contextlib.suppress(OSError):  # a missing video is said elsewhere
            yield storage.size(file)
