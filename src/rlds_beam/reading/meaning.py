"""What the numbers of a dataset mean, as JSON: for RLDS in `meaning.json`, next to `features.json`; in other formats in
the attribute, manifest, or metadata that describes their fields.

{"fps": 30, "robot": "so101_follower", "last_action": "real", "names": {"action": ["shoulder_pan.pos", ...]}}
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlds_beam import storage
from rlds_beam.encoding.checked_json import TEXT, Kind, check_json, parse_json
from rlds_beam.episodes.schema import MAX_NAME, Schema, is_name
from rlds_beam.errors import UsageError
from rlds_beam.reading.base import LastAction

if TYPE_CHECKING:
    from rlds_beam.reading.base import Source

MEANING = "meaning.json"
KEY = "meaning"
"""The key in the JSON of other formats."""
_RATE = Kind("a number above 0, up to 1,000,000", lambda rate: type(rate) in (int, float) and 0 < rate <= 1_000_000)
_ROBOT = Kind(f"printable text of 1 to {MAX_NAME} characters", lambda text: isinstance(text, str) and _is_robot(text))
_LAST_ACTION = Kind("real or void", lambda action: action in ("real", "void"))
_CONTENT = {"fps?": _RATE, "robot?": _ROBOT, "last_action?": _LAST_ACTION, "names?": {"*": [TEXT]}}


def _is_robot(text: str) -> bool:
    return bool(text) and is_name(text)


@dataclasses.dataclass(frozen=True)
class Meaning:
    """What the numbers of a dataset mean.

    Attributes:
      fps: steps per second.
      robot: the name of the robot.
      names: the names of the values of step fields, by path.
      last_action: see `Source`.
    """

    fps: float | None = None
    robot: str | None = None
    names: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    last_action: LastAction = "unknown"

    @classmethod
    def of(cls, schema: Schema, source: Source) -> Meaning:
        """What is known of the episodes of a source, written with this schema."""
        names = {path: field.names for path, field in schema.steps.items() if field.names}
        return dataclasses.replace(cls.of_dataset(source), names=names)

    @classmethod
    def of_dataset(cls, source: Source) -> Meaning:
        """What is known of a dataset, for formats that store the names with the fields."""
        robot = source.robot if source.robot and _is_robot(source.robot) else None
        return cls(source.fps, robot, last_action=source.last_action)

    @classmethod
    def read(cls, directory: str) -> Meaning:
        """Reads a dataset's `meaning.json`. Raises UsageError if it is damaged."""
        path = storage.join(directory, MEANING)
        return cls.from_json(parse_json(storage.read_small(path), path), path)

    @classmethod
    def from_json(cls, content: Any, where: str) -> Meaning:
        """The inverse of `to_json`. Raises UsageError, naming the file (`where`), if it is damaged."""
        check_json(content, _CONTENT, where)
        names = {field: tuple(names) for field, names in content.get("names", {}).items()}
        return cls(content.get("fps"), content.get("robot"), names, content.get("last_action", "unknown"))

    def name(self, schema: Schema) -> Schema:
        """The schema with the names. Raises UsageError if a field has another number of values."""
        steps = dict(schema.steps)
        for path, names in self.names.items():
            if path in steps:
                steps[path] = steps[path].with_names(names)
                if not steps[path].names:
                    raise UsageError(
                        f"{MEANING}: {path} has {len(names):,} names, but is {schema.steps[path]}: expected a "
                        f"printable name of up to {MAX_NAME} characters for each value"
                    )
        return dataclasses.replace(schema, steps=steps)

    def entry(self) -> dict[str, Any]:
        """The entry of a larger JSON object; empty if nothing is known."""
        return {KEY: content} if (content := self.to_json()) else {}

    def to_json(self) -> dict[str, Any]:
        """The content of the file; empty if nothing is known."""
        names = {path: [*names] for path, names in self.names.items()}
        last = None if self.last_action == "unknown" else self.last_action
        content = {"fps": self.fps, "robot": self.robot, "last_action": last, "names": names}
        return {key: value for key, value in content.items() if value}
