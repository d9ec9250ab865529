"""The features of a LeRobot dataset, and the fields of an episode that they are made of (`mapping.map_features`)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from rlds_beam.episodes.schema import Field

INDEX_FEATURES = ("timestamp", "frame_index", "episode_index", "index", "task_index")
"""The features that every LeRobot dataset has."""

_MOST_NAMES = 64
"""Of the numbers of a vector; a longer one is an embedding."""


def _field_json(field: Field) -> dict[str, Any]:
    return {"path": field.path, **field.to_json()}


@dataclasses.dataclass(frozen=True)
class LerobotFeature:
    """A column of a LeRobot dataset.

    Attributes:
      name: LeRobot's: `observation.state`.
      fields: what it is made of: one field of the steps, or vectors that are joined.
      kind: `number`, `text` or `image`.
      dtype: LeRobot's: a numpy name, `string` or `image`.
      shape: of a frame, () for a single value; of an image (height, width, channels).
    """

    name: str
    fields: tuple[Field, ...]
    kind: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def path(self) -> str:
        return self.fields[0].path

    @property
    def size(self) -> int:
        """Numbers in a frame."""
        return math.prod(self.shape)

    def describe(self) -> str:
        """For a person: `observation.state: float32(7) of observation/state`."""
        shape = ", ".join(map(str, self.shape))
        return f"{self.name}: {self.dtype}({shape}) of {' + '.join(field.path for field in self.fields)}"

    @property
    def is_video(self) -> bool:
        """Whether it can be a video: of colours, 8 bits each."""
        (field, *_) = self.fields
        return self.kind == "image" and field.dtype == "uint8" and self.shape[-1] == 3

    @property
    def is_sized(self) -> bool:
        """Whether it is images whose size the schema leaves open, and which all have to be of the shape."""
        return self.kind == "image" and None in self.fields[0].shape[:2]

    def info(self) -> dict[str, Any]:
        """The entry in `info.json`; a single value has the shape [1] there."""
        return {"dtype": self.dtype, "shape": list(self.shape) or [1], "names": self._names()}

    def _names(self) -> list[str] | None:
        if self.kind == "image":
            return ["height", "width", "channels"]
        if len(self.shape) != 1 or self.size > _MOST_NAMES:
            return None
        names: list[str] = []
        for field in self.fields:
            leaf, size = field.path.rpartition("/")[2], math.prod(field.closed_shape)
            names += [f"{leaf}_{i}" for i in range(size)] if field.shape else [leaf]
        return names

    def to_json(self) -> dict[str, Any]:
        """What the episodes' fields were, to read them back."""
        fields = [_field_json(field) for field in self.fields]
        size = {"shape": list(self.shape)} if self.is_sized else {}
        return {"fields": fields, "kind": self.kind, **size}


@dataclasses.dataclass(frozen=True)
class FeatureMap:
    """What becomes of all fields of a dataset.

    Attributes:
      features: of the frames, images first; without `INDEX_FEATURES`.
      task: the field of the steps or of the episode that holds the instruction; None where there is none.
      task_of_episode: whether it is a field of the episode.
      columns: of meta/episodes, by name: the field of the episode that each is.
      left_out: fields that are not written, with the reasons.
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
        """For the plan, and for `meta/rlds_beam.json`."""
        columns = {name: _field_json(field) for name, field in self.columns.items()}
        return {
            "features": {f.name: f.to_json() for f in self.features}, "task": self.task,
            "task_of_episode": self.task_of_episode, "episode_columns": columns,
        }  # fmt: skip

    def describe(self) -> list[str]:
        """A line for each feature."""
        lines = [feature.describe() for feature in self.features]
        lines.append(f"task: text of {self.task}" if self.task else "task: none (an empty text)")
        return [*lines, *(f"meta/episodes {name}: {field}" for name, field in self.columns.items())]
