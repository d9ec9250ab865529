"""The features of a LeRobot dataset, and the episode fields that each holds (`feature_map`)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlds_beam.episodes.representations import Representation
from rlds_beam.episodes.schema import Field
from rlds_beam.errors import UsageError
from rlds_beam.images.depth import UNITS, Depth
from rlds_beam.typing import Array

INDEX_FEATURES = ("timestamp", "frame_index", "episode_index", "index", "task_index")
"""The features that every LeRobot dataset has."""

_MAX_NAMES = 64
"""Maximum length of a vector; a longer one is an embedding."""

DEPTH_KEYS = {"low": "depth_min", "high": "depth_max", "shift": "shift", "log": "use_log"}
"""The keys in a feature's `info`, after `video.`."""


def _field_json(field: Field) -> dict[str, Any]:
    return {"path": field.path, **field.to_json()}


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
      kind: `number`, `text`, `language` or `image`.
      dtype: LeRobot's dtype: a NumPy name, `string`, `language` or `image`.
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
        fields = [_field_json(field) for field in self.fields]
        size = {"shape": list(self.shape)} if self.is_sized else {}
        return {"fields": fields, "kind": self.kind, **size}


@dataclasses.dataclass(frozen=True)
class FeatureMap:
    """The LeRobot feature of each field of a dataset.

    Attributes:
      features: the features of the frames, images first; without `INDEX_FEATURES`.
      task: the step or episode field with the instruction; None if there is none.
      task_of_episode: whether it is a field of the episode.
      columns: the episode field of each column of meta/episodes, by name.
      left_out: the fields that are not written, with the reasons.
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

    def to_json(self) -> dict[str, Any]:
        """JSON for the plan and `meta/rlds_beam.json`."""
        columns = {name: _field_json(field) for name, field in self.columns.items()}
        return {
            "features": {f.name: f.to_json() for f in self.features},
            "task": self.task,
            "task_of_episode": self.task_of_episode,
            "episode_columns": columns,
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
