"""Map the features of a LeRobot dataset to episode fields: the inverse of `features`.

    observation.images.top     observation/images/top
    observation.state          observation/state
    action                     action
    next.reward                reward; 0 if there is none
    next.done                  is_terminal, on the last frame
    the frame's task           language_instruction

Datasets written by rlds-beam get their original fields (`meta/rlds_beam.json`). `is_first`, `is_last`, and `discount`
are added if missing; the discount is 1, but 0 at a terminal step.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from rlds_beam.encoding.checked_json import ANY, TEXT, Kind, Maybe, check_json
from rlds_beam.encoding.tfds.features import DTYPES
from rlds_beam.episodes.representations import Representation
from rlds_beam.episodes.schema import FLAGS, MAX_NAME, Field, Schema, by_path, is_name, text_field
from rlds_beam.errors import UsageError
from rlds_beam.formats.arrays.leaves import field_from_json
from rlds_beam.formats.lerobot import layout
from rlds_beam.formats.lerobot.features import INDEX_FEATURES, default_names, depth_of_feature, depth_shape
from rlds_beam.formats.lerobot.language import COLUMNS as LANGUAGE
from rlds_beam.formats.lerobot.language import EPISODE_PATH, PERSISTENT
from rlds_beam.formats.lerobot.metadata import Meta
from rlds_beam.images.depth import Depth
from rlds_beam.text import count, printable, shorten

TASK = "language_instruction"
REWARD, DISCOUNT = Field("reward", "float32"), Field("discount", "float32")


@dataclasses.dataclass(frozen=True)
class FeatureFields:
    """A feature and its fields: several, if it is joined vectors.

    Attributes:
      name: the name of the feature.
      kind: `number`, `text`, `language`, `image`, `video` or `depth` (a video).
      shape: LeRobot's shape of a frame.
      fields: the fields that it becomes.
      depth: the scale of a depth video.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    fields: tuple[Field, ...]
    depth: Depth | None = None


@dataclasses.dataclass(frozen=True)
class EpisodeFields:
    """The fields of a dataset's episodes.

    Attributes:
      features: the features that are read.
      task: the path of the instruction; None if the data had none.
      task_of_episode: whether the instruction is one value for the episode.
      columns: the episode field of each column of meta/episodes.
      made: the fields that have no feature.
      left_out: the features that are not read, with the reasons.
    """

    features: tuple[FeatureFields, ...]
    task: str | None
    task_of_episode: bool
    columns: Mapping[str, Field]
    made: tuple[str, ...]
    left_out: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def schema(self) -> Schema:
        of_episode = [feature for feature in self.features if feature.name == PERSISTENT and feature.kind == "language"]
        of_steps = [feature for feature in self.features if feature not in of_episode]
        steps = by_path((field for feature in of_steps for field in feature.fields), layout.INFO)
        steps |= {path: Field(path, "bool", feature="Scalar") for path in self.made if path in FLAGS}
        steps |= {field.path: field for field in (REWARD, DISCOUNT) if field.path in self.made}
        languages = [field for feature in of_episode for field in feature.fields]
        metadata = by_path([*self.columns.values(), *languages], layout.INFO)
        if self.task is not None:
            task = [text_field(self.task)]
            if self.task_of_episode:
                metadata = by_path([*metadata.values(), *task], layout.INFO)
            else:
                steps = by_path([*steps.values(), *task], layout.INFO)
        return Schema(steps, metadata)

    def without(self, paths: Collection[str], why: str) -> EpisodeFields:
        """A copy without the images and videos at these paths."""
        features = tuple(
            feature
            for feature in self.features
            if feature.kind not in ("image", "video", "depth") or feature.fields[0].path not in paths
        )
        gone = [field.path for feature in self.features if feature not in features for field in feature.fields]
        left_out = {**self.left_out, **dict.fromkeys(gone, why)}
        return dataclasses.replace(self, features=features, left_out=left_out)


def episode_fields(meta: Meta) -> EpisodeFields:
    """Maps a dataset's features to the fields of its episodes. Raises UsageError if a feature cannot be read."""
    known = meta.fields or {}
    where = meta.path(layout.FIELDS)
    if meta.fields is not None:
        check_json(known, _KNOWN, where)
    described = known.get("features", {})
    left_out = {
        name: "depth in meters stored as images, which rlds-beam does not read"
        for name, info in meta.info["features"].items()
        if info["dtype"] == "image" and (depth := _depth(name, info)) is not None and depth.unit == "m"
    }
    left_out |= {
        name: f"LeRobot's type {shorten(info['dtype'], 40)}, which rlds-beam does not know"
        for name, info in meta.info["features"].items()
        if not _is_known(name, info["dtype"]) and name not in INDEX_FEATURES
    }
    names = [name for name in meta.info["features"] if name not in (*INDEX_FEATURES, *left_out)]
    paths = _paths(name for name in names if name not in described)
    features = []
    for name in names:
        info = meta.info["features"][name]
        kind = _KINDS.get(info["dtype"], "number")
        depth = _depth(name, info) if kind == "video" else None
        kind = "depth" if depth is not None else kind
        shape = tuple(info["shape"]) if kind in _IMAGES or info["shape"] != [1] else ()
        if name in described:
            fields = tuple(field_from_json(field, where) for field in described[name]["fields"])
            if kind in ("video", "depth"):
                fields = tuple(_of_video(field, depth) for field in fields)
        elif depth is not None:
            sizes = depth_shape((*shape[1:], 1) if len(shape) == 3 and shape[0] == 1 else shape)
            if sizes is None:
                raise UsageError(f"info.json: {name} is depth of shape {list(shape)}, expected (height, width, 1)")
            png = Field(paths[name], "uint16", sizes, "png", "Image")
            fields = (png if depth.unit == "mm" else Field(paths[name], "float32", sizes),)
        else:
            fields = (_conventional(name, paths[name], kind, shape, info),)
        if kind == "number":
            fields = _with_representation(_with_names(fields, _read_names(info)), info.get("representation"))
        features.append(FeatureFields(name, kind, shape, fields, depth))
    there = {field.path for feature in features for field in feature.fields}
    missing = tuple(path for path in (*FLAGS, "reward", "discount") if path not in there)
    task = known["task"] if meta.fields else TASK
    columns = {name: field_from_json(field, where) for name, field in known.get("episode_columns", {}).items()}
    for name, (dtype, axes) in () if meta.fields else meta.episode_schema().items():
        path = f"episode_metadata/{name.replace('/', '.')}"
        columns[name] = text_field(path, axes) if dtype == "string" else Field(path, dtype, axes)
    return EpisodeFields(tuple(features), task, bool(known.get("task_of_episode")), columns, missing, left_out)


_KINDS = {"image": "image", "video": "video", "string": "text", "language": "language"}


def _is_known(name: str, dtype: str) -> bool:
    if dtype == "language":
        return name in LANGUAGE
    return dtype in _KINDS or dtype in DTYPES


_FIELDS = Kind("a list of fields", lambda fields: isinstance(fields, list) and bool(fields))
_KNOWN = {
    "features?": {"*": {"fields": (_FIELDS, [ANY]), "*": ANY}},
    "task": Maybe(TEXT),
    "task_of_episode?": ANY,
    "episode_columns?": {"*": ANY},
    "last_action?": Kind("void", lambda action: action == "void"),
}


def name_notes(meta: Meta) -> Iterator[str]:
    """Says that the robot, or some values of a feature, have names that cannot be shown, and are left out."""
    if not is_name(meta.info.get("robot_type") or ""):
        yield "robot_type cannot be shown: the robot is left out"
    for feature, info in meta.info["features"].items():
        names = _read_names(info) if _KINDS.get(info["dtype"], "number") == "number" else []
        if unusable := sum(not is_name(name) for name in names):
            yield (
                f"{printable(feature, 100)}: {unusable:,} of {count(len(names), 'name')} cannot be shown (expected "
                f"printable text of up to {MAX_NAME} characters): its values are not named"
            )


def _read_names(info: Mapping[str, Any]) -> list[Any]:
    """LeRobot's `names` of a feature: a list, or older, a dict with one (`{"motors": [...]}`); empty for none."""
    names = info.get("names")
    if isinstance(names, dict) and len(names) == 1:
        (names,) = names.values()
    return names if isinstance(names, list) else []


def _with_names(fields: tuple[Field, ...], names: list[Any]) -> tuple[Field, ...]:
    """The fields of a vector with LeRobot's `names`."""
    sizes = [field.known_size for field in fields]
    if len(names) != sum(sizes) or not all(map(is_name, names)):
        return fields
    stops = list(itertools.accumulate(sizes))
    own = [names[stop - size : stop] for size, stop in zip(sizes, stops, strict=True)]
    return tuple(
        field if part == default_names(field) else field.with_names(part)
        for field, part in zip(fields, own, strict=True)
    )


def _with_representation(fields: tuple[Field, ...], content: Any) -> tuple[Field, ...]:
    """The fields of a vector with the representation in `info.json`, if it has one that fits."""
    known, stops = Representation.from_json(content), list(itertools.accumulate(f.known_size for f in fields))
    if known is None or not known.fits(stops[-1]):
        return fields
    values = known.split(stops[-1], "")
    parts = (values[stop - field.known_size : stop] for field, stop in zip(fields, stops, strict=True))
    return tuple(f.with_representation(Representation.join(part)) for f, part in zip(fields, parts, strict=True))


_IMAGES = ("image", "video", "depth")
_LOSSLESS = ("none", "png")


def _depth(name: str, info: Mapping[str, Any]) -> Depth | None:
    """The scale of a depth video; None for another video. Raises UsageError."""
    try:
        return depth_of_feature(info)
    except UsageError as error:
        raise UsageError(f"info.json: {name}: {error}") from None


def _of_video(field: Field, depth: Depth | None = None) -> Field:
    """The field of images read from a video: frames that were JPEGs are re-encoded as PNGs."""
    if depth is not None and field.dtype == depth.dtype and depth_shape(field.shape) and field.encoding in _LOSSLESS:
        return field
    if field.dtype != "uint8" or len(field.shape) != 3 or field.encoding not in ("none", "png", "jpeg"):
        raise UsageError(f"meta/rlds_beam.json: {field} cannot be stored as a video")
    return field if field.encoding == "none" else dataclasses.replace(field, encoding="png", feature="Image")


def _paths(names: Iterable[str]) -> dict[str, str]:
    """The path of each name: `observation/state`. Dots stay if another name is a prefix, since that is a value."""
    every = list(names)
    known = {"next.reward": "reward", "next.done": "is_terminal"}
    known = {name: path for name, path in known.items() if path not in every}
    paths = {}
    for name in every:
        through = any(name.startswith(f"{other}.") for other in every)
        paths[name] = known.get(name) or (name if through else name.replace(".", "/"))
    return paths


def _conventional(name: str, path: str, kind: str, shape: tuple[int, ...], info: Mapping[str, Any]) -> Field:
    if kind in ("image", "video"):
        if len(shape) != 3:
            raise UsageError(f"info.json: {name} has the shape {list(shape)}, but images have three dimensions")
        names = info.get("names")
        if isinstance(names, list) and names and str(names[0]).startswith("channel"):
            shape = (*shape[1:], shape[0])
        depth = _depth(name, info)
        dtype = "uint8" if depth is None else depth.dtype
        return Field(path, dtype, shape, "png", "Image")
    if kind == "language":
        return text_field(EPISODE_PATH if name == PERSISTENT else path)
    if kind == "text":
        return text_field(path, shape)
    dtype = "bool" if path == "is_terminal" else info["dtype"]
    if dtype not in DTYPES or 0 in shape:
        raise UsageError(f"info.json: {name} is {info['dtype']}{list(shape)}, which cannot be read")
    return Field(path, dtype, shape)
