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
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from msgspec import Meta as Limits

from rlds_beam.encoding.metadata import convert
from rlds_beam.encoding.tfds.features import DTYPES
from rlds_beam.episodes.representations import Representation
from rlds_beam.episodes.schema import MAX_NAME, Field, is_name, text_field
from rlds_beam.errors import UsageError
from rlds_beam.formats.arrays.array_episodes import field_from_json
from rlds_beam.formats.lerobot import layout
from rlds_beam.formats.lerobot.features import (
    INDEX_FEATURES,
    FeatureMap,
    LerobotFeature,
    default_names,
    depth_of_feature,
    depth_shape,
)
from rlds_beam.formats.lerobot.language import COLUMNS as LANGUAGE
from rlds_beam.formats.lerobot.language import EPISODE_PATH, PERSISTENT
from rlds_beam.formats.lerobot.metadata import Meta
from rlds_beam.images.video_frames import Depth
from rlds_beam.text import count, printable, shorten

TASK = "language_instruction"


def episode_fields(meta: Meta) -> FeatureMap:
    """Maps a dataset's features to the fields of its episodes. Raises UsageError if a feature cannot be read."""
    known = meta.fields or {}
    where = meta.path(layout.FIELDS)
    if meta.fields is not None:
        convert(known, _Known, where)
    described = known.get("features", {})
    left_out = {
        name: "depth in meters stored as images, which rlds-beam does not read"
        for name, info in meta.info["features"].items()
        if info["dtype"] == "image" and (depth := _depth(name, info)) is not None and depth.unit == "m"
    }
    left_out |= {
        name: f"LeRobot's type {shorten(info['dtype'], 40)}, which rlds-beam does not know"
        for name, info in meta.info["features"].items()
        if (name not in LANGUAGE if info["dtype"] == "language" else info["dtype"] not in (*_KINDS, *DTYPES))
        and name not in INDEX_FEATURES
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
            fields = _with_meaning(fields, info)
        features.append(LerobotFeature(name, fields, kind, info["dtype"], shape, depth))
    task = known["task"] if meta.fields else TASK
    columns = {name: field_from_json(field, where) for name, field in known.get("episode_columns", {}).items()}
    for name, (dtype, axes) in () if meta.fields else meta.episode_schema().items():
        path = f"episode_metadata/{name.replace('/', '.')}"
        columns[name] = text_field(path, axes) if dtype == "string" else Field(path, dtype, axes)
    return FeatureMap(tuple(features), task, columns, left_out, bool(known.get("task_of_episode")))


_KINDS = {"image": "image", "video": "video", "string": "text", "language": "language"}


class _Described(TypedDict):
    fields: Annotated[list[Any], Limits(min_length=1)]


class _Known(TypedDict):
    """The content of `meta/rlds_beam.json`."""

    task: str | None
    features: NotRequired[dict[str, _Described]]
    episode_columns: NotRequired[dict[str, Any]]
    last_action: NotRequired[Literal["void"]]


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


def _with_meaning(fields: tuple[Field, ...], info: Mapping[str, Any]) -> tuple[Field, ...]:
    """The fields of a vector with the names and the representation of its values in `info.json`, if they fit."""
    sizes = [field.known_size for field in fields]
    stops = [0, *itertools.accumulate(sizes)]
    names, known = _read_names(info), Representation.from_json(info.get("representation"))
    if len(names) == stops[-1] and all(map(is_name, names)):
        own = [names[start:stop] for start, stop in itertools.pairwise(stops)]
        fields = tuple(f if n == default_names(f) else f.with_names(n) for f, n in zip(fields, own, strict=True))
    if known is not None and known.fits(stops[-1]):
        values = known.split(stops[-1], "")
        parts = [Representation.join(values[start:stop]) for start, stop in itertools.pairwise(stops)]
        fields = tuple(field.with_representation(part) for field, part in zip(fields, parts, strict=True))
    return fields


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
