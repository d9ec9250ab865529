"""What a dataset's numbers mean, and `meaning.json`, which says it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec

from rlds_beam import storage
from rlds_beam.encoding.metadata import convert, parse_json
from rlds_beam.episodes.representations import Representation
from rlds_beam.episodes.schema import MAX_NAME, Field, Schema, is_name
from rlds_beam.errors import UsageError

LastAction = Literal["real", "void", "unknown"]
"""Whether the last step of an episode has the action taken at its observation, or, as RLDS defines it, none."""

MEANING = "meaning.json"
KEY = "meaning"
"""The key in the JSON of other formats."""
MAX_RATE = 1_000_000
"""The highest rate, in steps per second."""


class _Content(TypedDict):
    """The content of `meaning.json`."""

    fps: NotRequired[Annotated[float, msgspec.Meta(gt=0, le=MAX_RATE)]]
    robot: NotRequired[Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME)]]
    last_action: NotRequired[Literal["real", "void"]]
    names: NotRequired[dict[str, list[str]]]
    representation: NotRequired[dict[str, dict[str, Any]]]


@dataclasses.dataclass(frozen=True)
class Meaning:
    """The meaning of a dataset's numbers.

    Attributes:
      fps: steps per second, if the dataset says so.
      robot: the name of the robot, if the dataset says so.
      names: the names of the values of step fields, by path. None in `Source.meaning`: its schema has them.
      last_action: whether the actions of last steps are `real` or `void`; if `unknown`, `last_steps.find_last_steps`
        looks at some.
      representations: the representations of the values of step fields, by path, as `names`.
      assumes_robot: whether the layout or the name of the dataset suggests the robot, and the data does not say it.
      rates: the known rates in Hz of merged datasets that do not agree on one; `fps` is then None.
      void_datasets: the datasets (`SOURCE_DATASET`) with void last actions, if these are only some of merged ones, and
        `last_action` is void; None otherwise.
    """

    fps: float | None = None
    robot: str | None = None
    names: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    last_action: LastAction = "unknown"
    representations: Mapping[str, Representation] = dataclasses.field(default_factory=dict)
    assumes_robot: bool = False
    rates: tuple[float, ...] = ()
    void_datasets: tuple[str, ...] | None = None

    def of_fields(self, schema: Schema | None = None) -> Meaning:
        """The meaning with the names and the representations of these fields, instead of those that it has."""
        schema = schema or Schema({})
        return dataclasses.replace(self, names=schema.names, representations=schema.representations)

    @classmethod
    def read(cls, directory: str) -> Meaning:
        """Reads a dataset's `meaning.json`. Raises UsageError if it is damaged."""
        path = storage.join(directory, MEANING)
        return cls.from_json(parse_json(storage.read_small(path), path), path)

    @classmethod
    def from_json(cls, content: Any, where: str) -> Meaning:
        """The inverse of `to_json`. Raises UsageError, naming the file (`where`), if it is damaged."""
        convert(content, _Content, where)
        if "robot" in content and not is_name(content["robot"]):
            raise UsageError(f"{where}: the name of the robot is not printable text")
        names = {field: tuple(names) for field, names in content.get("names", {}).items()}
        parts = {path: Representation.from_json(part) for path, part in content.get("representation", {}).items()}
        known = {path: part for path, part in parts.items() if part is not None}
        if len(known) < len(parts):
            raise UsageError(f"{where}: unknown representation of {', '.join(sorted(parts.keys() - known.keys()))}")
        return cls(content.get("fps"), content.get("robot"), names, content.get("last_action", "unknown"), known)

    def name_field(self, field: Field) -> Field:
        """The field with its names and its representation, if they fit."""
        named = field.with_names(self.names.get(field.path, ()))
        return named.with_representation(self.representations.get(field.path))

    def name(self, schema: Schema) -> Schema:
        """The schema with the names and the representations. Raises UsageError if they do not fit a field."""
        steps = dict(schema.steps)
        for path, names in self.names.items():
            if path in steps:
                steps[path] = steps[path].with_names(names)
                if not steps[path].names:
                    raise UsageError(
                        f"{MEANING}: {path} has {len(names):,} names, but is {schema.steps[path]}: expected a "
                        f"printable name of up to {MAX_NAME} characters for each value"
                    )
        for path, representation in self.representations.items():
            if path in steps:
                steps[path] = steps[path].with_representation(representation)
                if steps[path].representation is None:
                    raise UsageError(f"{MEANING}: {schema.steps[path]} cannot be represented as {representation}")
        return dataclasses.replace(schema, steps=steps)

    def entry(self) -> dict[str, Any]:
        """The entry of a larger JSON object; empty if nothing is known."""
        return {KEY: content} if (content := self.to_json()) else {}

    def to_json(self) -> dict[str, Any]:
        """The content of the file; empty if nothing is known."""
        names = {path: [*names] for path, names in self.names.items()}
        last = None if self.last_action == "unknown" else self.last_action
        represented = {path: known.to_json() for path, known in self.representations.items()}
        robot = self.robot if self.robot and is_name(self.robot) else None
        facts: dict[str, Any] = {"fps": self.fps, "robot": robot, "last_action": last}
        content = {**facts, "names": names, "representation": represented}
        return {key: value for key, value in content.items() if value}


UNKNOWN = Meaning()
"""The meaning of a dataset that says nothing."""
