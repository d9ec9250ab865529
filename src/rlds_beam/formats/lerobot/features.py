"""The features of a LeRobot dataset, and the episode fields that each holds.

RLDS                                LeRobot
observation/image_0   (png, jpeg)   observation.images.image_0
observation/state                   observation.state
action                              action
reward                              next.reward
is_last                             next.done
language_instruction                the task of the frame (meta/tasks)
language_events (text)              language_events (also episode_metadata/language_persistent)
any other field of the steps        its path, with dots: observation.gripper
any field of the episode            a column of meta/episodes

The size of images that the schema does not give is that of the first ones, which all others must then have.
`fields` is the inverse.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import shlex
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlds_beam.connectors.cleaning.language import TASK_FIELDS
from rlds_beam.connectors.pipeline import ConnectorRunner
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.representations import Representation
from rlds_beam.episodes.schema import FLAGS, MIN_IMAGE_PIXELS, Field, Schema, by_path, text_field
from rlds_beam.errors import BadEpisode, UsageError
from rlds_beam.formats.arrays.array_episodes import field_json
from rlds_beam.formats.lerobot import layout
from rlds_beam.formats.lerobot.language import COLUMNS, EPISODE_PATH, PERSISTENT
from rlds_beam.images.encoded_images import ZERO_IMAGE, EncodedImages
from rlds_beam.images.headers import UndecodableImageError, read_image_header
from rlds_beam.images.video_frames import UNITS, Depth
from rlds_beam.reading.base import Source
from rlds_beam.reading.plan import plan_ranges
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.text import did_you_mean
from rlds_beam.typing import Array

REWARD, DISCOUNT = Field("reward", "float32"), Field("discount", "float32")

INDEX_FEATURES = ("timestamp", "frame_index", "episode_index", "index", "task_index")
"""The features that every LeRobot dataset has."""

_MAX_NAMES = 64
"""Maximum length of a vector; a longer one is an embedding."""

DEPTH_KEYS = {"low": "depth_min", "high": "depth_max", "shift": "shift", "log": "use_log"}
"""The keys in a feature's `info`, after `video.`."""


def default_names(field: Field) -> list[str]:
    """The names of a vector's values, or of a single value, if nobody named them: `state_0`, `state_1`, ..."""
    leaf = field.path.rpartition("/")[2]
    return [f"{leaf}_{i}" for i in range(math.prod(field.closed_shape))] if field.shape else [leaf]


@dataclasses.dataclass(frozen=True)
class LerobotFeature:
    """A column of a LeRobot dataset.

    Attributes:
      name: LeRobot's name: `observation.state`.
      fields: the fields that it holds: one field of the steps, or several vectors to join.
      kind: `number`, `text`, `language` or `image`; in a dataset that is read also `video` or `depth`, a depth video.
      dtype: LeRobot's dtype: a NumPy name, `string`, `language`, `image` or `video`.
      shape: the shape of a frame: () for a single value, (height, width, channels) for an image.
      depth: the scale of a depth video.
    """

    name: str
    fields: tuple[Field, ...]
    kind: str
    dtype: str
    shape: tuple[int, ...]
    depth: Depth | None = None

    @property
    def path(self) -> str:
        return self.fields[0].path

    @property
    def size(self) -> int:
        """Number of values in a frame."""
        return math.prod(self.shape)

    def describe(self) -> str:
        """A readable line: `observation.state: float32(7) of observation/state`."""
        shape = ", ".join(map(str, self.shape))
        return f"{self.name}: {self.dtype}({shape}) of {' + '.join(field.path for field in self.fields)}"

    @property
    def is_persistent(self) -> bool:
        """Whether it is a value of the episode that LeRobot repeats in each frame."""
        return self.kind == "language" and self.name == PERSISTENT

    @property
    def is_video(self) -> bool:
        """Whether it can be a video: color images with 8 bits per channel, or depth."""
        (field, *_) = self.fields
        if self.depth is not None:
            return True
        return self.kind == "image" and field.dtype == "uint8" and self.shape[-1] == 3

    @property
    def levels(self) -> Array:
        """The value of each level of an image's histogram: 0 to 1, or depth in its unit."""
        return np.linspace(0, 1, 256) if self.depth is None else self.depth.values.astype(np.float64)

    @property
    def is_sized(self) -> bool:
        """Whether it is images whose size is unknown in the schema, so that each must be checked against the shape."""
        return self.kind == "image" and None in self.fields[0].shape[:2]

    def info(self) -> dict[str, Any]:
        """The entry in `info.json`; the shape of a single value is [1] there."""
        info = {"dtype": self.dtype, "shape": list(self.shape) or [1], "names": self._names()}
        if not any(field.representation for field in self.fields):
            return info
        known = Representation.join([value for field in self.fields for value in field.dimensions])
        return {**info, **({"representation": known.to_json()} if known else {})}  # LeRobot ignores this key

    def _names(self) -> list[str] | None:
        if self.kind == "image":
            return ["height", "width", "channels"]
        if len(self.shape) != 1 or self.size > _MAX_NAMES:
            return None
        names: list[str] = []
        for field in self.fields:
            names += field.names or default_names(field)
        return names

    def to_json(self) -> dict[str, Any]:
        """The original fields, to read them back."""
        fields = [field_json(field) for field in self.fields]
        size = {"shape": list(self.shape)} if self.is_sized else {}
        return {"fields": fields, "kind": self.kind, **size}


@dataclasses.dataclass(frozen=True)
class FeatureMap:
    """The features of a dataset, and the fields of its episodes.

    Attributes:
      features: the features of the frames, without `INDEX_FEATURES`; images first if they are written.
      task: the step or episode field with the instruction; None if there is none.
      columns: the episode field of each column of meta/episodes, by name.
      left_out: the fields that are not written, or the features that are not read, with the reasons.
      task_of_episode: whether the task is a field of the episode.
    """

    features: tuple[LerobotFeature, ...]
    task: str | None
    columns: Mapping[str, Field]
    left_out: Mapping[str, str]
    task_of_episode: bool = False

    @property
    def images(self) -> tuple[LerobotFeature, ...]:
        return tuple(feature for feature in self.features if feature.kind == "image")

    @property
    def numbers(self) -> tuple[LerobotFeature, ...]:
        return tuple(feature for feature in self.features if feature.kind == "number")

    @property
    def missing(self) -> tuple[str, ...]:
        """The fields of RLDS's steps that no feature holds, the flags first."""
        there = {field.path for feature in self.features for field in feature.fields}
        return tuple(path for path in (*FLAGS, REWARD.path, DISCOUNT.path) if path not in there)

    @property
    def schema(self) -> Schema:
        """The schema of the episodes of a dataset that is read."""
        of_episode = [feature for feature in self.features if feature.is_persistent]
        steps = [field for feature in self.features if feature not in of_episode for field in feature.fields]
        steps += [Field(path, "bool", feature="Scalar") for path in self.missing if path in FLAGS]
        steps += [field for field in (REWARD, DISCOUNT) if field.path in self.missing]
        metadata = [*self.columns.values(), *(field for feature in of_episode for field in feature.fields)]
        if self.task is not None:
            (metadata if self.task_of_episode else steps).append(text_field(self.task))
        return Schema(by_path(steps, layout.INFO), by_path(metadata, layout.INFO))

    def without(self, paths: Collection[str], why: str) -> FeatureMap:
        """A copy without the images and videos at these paths."""
        gone = [f for f in self.features if f.kind in ("image", "video", "depth") and f.path in paths]
        left_out = {**self.left_out, **{feature.path: why for feature in gone}}
        features = tuple(feature for feature in self.features if feature not in gone)
        return dataclasses.replace(self, features=features, left_out=left_out)

    def to_json(self) -> dict[str, Any]:
        """JSON for the plan and `meta/rlds_beam.json`."""
        return {
            "features": {f.name: f.to_json() for f in self.features},
            "task": self.task,
            "task_of_episode": self.task_of_episode,
            "episode_columns": {name: field_json(field) for name, field in self.columns.items()},
        }

    def describe(self) -> list[str]:
        """A readable line for each feature."""
        lines = [feature.describe() for feature in self.features]
        lines.append(f"task: text of {self.task}" if self.task else "task: none (an empty text)")
        return [*lines, *(f"meta/episodes {name}: {field}" for name, field in self.columns.items())]


def depth_of_feature(feature: Mapping[str, Any]) -> Depth | None:
    """The scale in a feature's entry in info.json; None if it is not a depth map. Raises UsageError."""
    parts = [feature.get(name) or {} for name in ("info", "video_info")]
    if not all(isinstance(part, dict) for part in parts):
        return None
    info, older = parts
    if not (info.get("is_depth_map") or info.get("video.is_depth_map") or older.get("video.is_depth_map")):
        return None
    given = {name: info.get(f"video.{key}") for name, key in DEPTH_KEYS.items()}
    made = {name: value for name, value in given.items() if value is not None}
    unit = info.get("depth_unit") or "mm"
    if unit not in UNITS:
        raise UsageError(f"depth_unit is {str(unit)[:40]!r}, expected {' or '.join(UNITS)}")
    return Depth(**made, unit=unit)


def depth_shape(shape: Sequence[int | None]) -> tuple[int, int, int] | None:
    """The (height, width, 1) of a depth map; None if it has another shape."""
    sizes = tuple(shape) if len(shape) == 3 else (*shape, 1)
    if len(sizes) != 3 or sizes[2] != 1 or sizes[0] is None or sizes[1] is None:
        return None
    return (sizes[0], sizes[1], 1)


RESERVED = (*INDEX_FEATURES, "task")
"""Names that no feature can have: `task` is the text that LeRobot adds to each frame."""

_WIDER = {"float16": "float32", "bfloat16": "float32"}
_DTYPES = {"bool", "float32", "float64", "string", *(f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64))}


def map_features(
    schema: Schema,
    entries: Sequence[str] = (),
    sizes: Mapping[str, tuple[int, int]] | None = None,
    *,
    languages: bool = False,
    depth: Mapping[str, Depth] | None = None,
) -> FeatureMap:
    """Maps a dataset's fields to features.

    Args:
      schema: the schema of its episodes.
      entries: the entries of `--map`.
      sizes: height and width, by path, of images whose size is not in the schema.
      depth: the scale, by path, of the fields that become depth videos.
      languages: whether there are language columns; otherwise they are texts.

    Raises:
      UsageError: LeRobot cannot hold a field, two features have one name, or an entry names an unknown field.
    """
    named, task, dropped = _parse(entries, schema)
    left_out = dict.fromkeys(dropped, "excluded by --map")
    if task is None:
        known = {**schema.steps, **schema.metadata}
        task = next((p for p in TASK_FIELDS if p in known and _is_text(known[p]) and p not in dropped), None)
    used = {path for paths in named.values() for path in paths}
    rest = [f for p, f in schema.steps.items() if p not in used and p not in dropped and p != task]
    empty = [field for field in rest if 0 in field.shape]
    left_out |= {field.path: "it has no values" for field in empty}
    rest = [field for field in rest if field not in empty]
    taken = list(named)
    for field in rest:
        name = _conventional(field, rest, named, field.path in (depth or {}))
        if name in taken:
            other = next((p for n, p in named.items() if n == name), ("another field",))
            raise UsageError(
                f"--to=lerobot: {field.path} and {'+'.join(other)} would both become the feature {name}: rename one "
                f"(--map=NAME={shlex.quote(field.path)}), or leave it out (--map=-{shlex.quote(field.path)})"
            )
        taken.append(name)
        named[name] = (field.path,)
    known_sizes, scales = sizes or {}, depth or {}
    features = [
        _depth(name, schema.steps[paths[0]], scales[paths[0]], known_sizes)
        if paths[0] in scales and len(paths) == 1
        else _feature(name, [schema.steps[path] for path in paths], known_sizes)
        for name, paths in named.items()
    ]
    features.sort(key=lambda feature: feature.kind != "image")
    if languages:
        features = [_as_language(feature) for feature in features]
        if EPISODE_PATH in schema.metadata and EPISODE_PATH not in dropped and PERSISTENT not in named:
            features.append(_as_language(_feature(PERSISTENT, [schema.metadata[EPISODE_PATH]], {})))
            dropped.add(EPISODE_PATH)
    columns = _columns([f for p, f in schema.metadata.items() if p not in dropped and p != task])
    return FeatureMap(tuple(features), task, columns, left_out, task in schema.metadata)


def _parse(entries: Iterable[str], schema: Schema) -> tuple[dict[str, tuple[str, ...]], str | None, set[str]]:
    """The paths of each feature, the field of the task, and the fields to leave out."""
    named: dict[str, tuple[str, ...]] = {}
    task, dropped = None, set()
    every = {**schema.steps, **schema.metadata}
    for entry in entries:
        name, equals, text = entry.partition("=")
        paths = tuple(text.split("+")) if equals else (entry[1:],)
        if not (equals or entry.startswith("-")):
            raise UsageError(f"--map={entry}: expected NAME=PATH, NAME=PATH+PATH, or -PATH")
        for path in paths:
            known = every if not equals or name == "task" else schema.steps
            if path not in known:
                hint = did_you_mean(path, known, otherwise=f"there are {', '.join(known)}")
                raise UsageError(f"--map={entry}: there is no field {path}{hint}")
        if not equals:
            dropped.add(paths[0])
        elif name == "task":
            if len(paths) > 1 or not _is_text(every[paths[0]]):
                raise UsageError(f"--map={entry}: the task must be one text field")
            task = paths[0]
        elif name in named or name in RESERVED or not name or "/" in name:
            why = "it is named twice" if name in named else "LeRobot reserves this name"
            raise UsageError(f"--map={entry}: {why}")
        else:
            named[name] = paths
    return named, task, dropped


def _is_text(field: Field) -> bool:
    return field.dtype == "string" and field.shape == () and not field.holds_image_files


def _conventional(field: Field, fields: Sequence[Field], named: Container[str], camera: bool = False) -> str:
    """The default name of a field.

    Args:
      fields: all fields.
      named: the names already taken.
      camera: whether the field is a depth map, also if it is an array.
    """
    path = field.path
    if path == "reward":
        return "next.reward"
    if path == "is_last":
        return "next.done"
    parts = path.split("/")
    if (camera or field.holds_images) and parts[0] == "observation":
        rest = parts[1:] if len(parts) < 3 or parts[1] not in ("image", "images") else parts[2:]
        return ".".join(["observation", "images", *rest]) if rest else "observation.image"
    if path == "observation":
        return "observation.state"
    if parts[0] == "action" and sum(other.path.split("/")[0] == "action" for other in fields) == 1:
        return "action"
    vectors = [
        f.path
        for f in fields
        if f.path.startswith("observation/") and len(f.shape) == 1 and f.dtype.startswith(("float", "bfloat"))
    ]
    if vectors == [path] and "observation.state" not in named:
        return "observation.state"
    name = ".".join(parts)
    return f"rlds.{name}" if name in RESERVED else name


def _feature(name: str, fields: Sequence[Field], sizes: Mapping[str, tuple[int, int]]) -> LerobotFeature:
    """The feature of these fields. Raises UsageError if LeRobot cannot hold them."""
    (first, *more) = fields
    if more:
        for field in fields:
            if len(field.shape) > 1 or None in field.shape or field.dtype == "string" or field.holds_images:
                raise UsageError(f"--map={name}=...: {field} is not a numeric vector, so it cannot be joined")
        dtype = np.result_type(*(_dtype(field, "leave it out") for field in fields))
        size = sum(math.prod(field.closed_shape) for field in fields)
        return LerobotFeature(name, tuple(fields), "number", dtype.name, (size,))
    drop = f"leave it out: --map=-{first.path}"
    if first.holds_images:
        shape = first.shape if first.shape[-1] is not None else (*first.shape[:-1], 3)
        if first.path in sizes:
            shape = (*sizes[first.path], shape[-1])
        if len(shape) != 3 or None in shape:
            raise UsageError(
                f"--to=lerobot: {first} has images of unknown size, or several a step; LeRobot needs one image of "
                f"a fixed size: resize them with a connector, or {drop}"
            )
        return LerobotFeature(name, (first,), "image", "image", tuple(d or 0 for d in shape))
    if None in first.shape:
        raise UsageError(
            f"--to=lerobot: {first} varies in shape from step to step, which LeRobot cannot hold: pad it with a "
            f"connector, or {drop}"
        )
    text = first.dtype == "string"
    if len(first.shape) > (1 if text else 5):
        raise UsageError(f"--to=lerobot: {first} has more dimensions than LeRobot supports: {drop}")
    return LerobotFeature(name, (first,), "text" if text else "number", _dtype(first, drop), first.closed_shape)


def _depth(name: str, field: Field, depth: Depth, sizes: Mapping[str, tuple[int, int]]) -> LerobotFeature:
    """The feature of a depth video. Raises UsageError if the field is no depth."""
    shape = depth_shape((*sizes[field.path], *field.shape[2:]) if field.path in sizes else field.shape)
    if shape is None or field.dtype not in UNITS.values() or (field.encoding not in ("none", "png")):
        raise UsageError(
            f"--depth={field.path}: {field} is no depth: expected uint16 (millimeters) or float32 (meters) of shape "
            "(height, width) or (height, width, 1)"
        )
    if min(shape[:2]) < MIN_IMAGE_PIXELS:
        raise UsageError(
            f"--depth={field.path}: {field} is too small for a video, at least {MIN_IMAGE_PIXELS} pixels wide"
        )
    return LerobotFeature(name, (field,), "image", "image", shape, dataclasses.replace(depth, unit=_UNIT[field.dtype]))


_UNIT = {dtype: unit for unit, dtype in UNITS.items()}


def _as_language(feature: LerobotFeature) -> LerobotFeature:
    """The feature as a language column if LeRobot reads one by this name."""
    if feature.name not in COLUMNS or feature.kind != "text" or feature.shape:
        return feature
    return dataclasses.replace(feature, kind="language", dtype="language")


def _dtype(field: Field, instead: str) -> str:
    dtype = _WIDER.get(field.dtype, field.dtype)
    if dtype not in _DTYPES:
        raise UsageError(f"--to=lerobot: {field}: LeRobot does not support {field.dtype}: {instead}")
    return dtype


def _columns(fields: Iterable[Field]) -> dict[str, Field]:
    """The columns of meta/episodes: `file_path` for `episode_metadata/file_path`, if no other field is named so."""
    columns: dict[str, Field] = {}
    for field in fields:
        name = field.path.removeprefix("episode_metadata/")
        known = name in layout.EPISODE_COLUMNS or name in columns
        if known or name.split("/")[0] in ("data", "videos", "meta", "stats"):
            name = f"rlds/{field.path}"
        columns[name] = field
    return columns


Sizes = dict[str, tuple[int, int]]
"""Height and width by path."""

_EPISODES = 8
"""Maximum number of episodes to read, to find one with images."""


def image_sizes(source: Source, connecting: ConnectorRunner, schema: Schema, entries: Sequence[str]) -> Sizes:
    """The sizes of images whose size is not in the schema, if the first episodes have such images.

    Args:
      source: the dataset to read.
      connecting: runs the connectors on its episodes.
      schema: the schema after the connectors.
      entries: the entries of `--map`; fields that they leave out are ignored.
    """
    wanted = {
        path
        for path, field in schema.steps.items()
        if field.holds_image_files and len(field.shape) == 3 and None in field.shape[:2] and f"-{path}" not in entries
    }
    sizes: Sizes = {}
    for episode in _episodes(source, connecting) if wanted else ():
        for path in wanted - sizes.keys():
            column = episode.steps.get(path)
            if isinstance(column, EncodedImages) and (size := _image_size(column)):
                sizes[path] = size
        if wanted <= sizes.keys():
            break
    return sizes


def _image_size(images: EncodedImages) -> tuple[int, int] | None:
    """The size of the first valid image."""
    for image in images:
        with contextlib.suppress(UndecodableImageError):
            if image != ZERO_IMAGE:
                header = read_image_header(image)
                return header.height, header.width
    return None


def _episodes(source: Source, connecting: ConnectorRunner) -> Iterator[Episode]:
    """The first valid episodes, as returned by the connectors."""
    reader, connecting = EpisodeReader(source), connecting.as_probed() if connecting.connectors else connecting
    segments = ((work.split, segment) for work in plan_ranges(source) for segment in work.segments)
    read = (episode for split, segment in segments for episode in reader.read(split, segment))
    for episode in itertools.islice((e for e in read if not e.faults), _EPISODES):
        with contextlib.suppress(BadEpisode):
            yield from connecting.connect((episode,)).episodes
