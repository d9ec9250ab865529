"""What TFDS's metadata cannot say of a dataset: `meaning.json`, next to `features.json`. TFDS ignores it.

{"fps": 30, "robot": "so101_follower", "last_action": "real", "names": {"action": ["shoulder_pan.pos", ...]}}
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlds_beam import storage
from rlds_beam.encoding.checked_json import TEXT, Kind, check_json, parse_json
from rlds_beam.episodes.schema import Schema
from rlds_beam.errors import UsageError
from rlds_beam.reading.base import LastAction

if TYPE_CHECKING:
    from rlds_beam.reading.base import Source

MEANING = "meaning.json"
_RATE = Kind("a number above 0, up to 1,000,000", lambda rate: type(rate) in (int, float) and 0 < rate <= 1_000_000)
_LAST_ACTION = Kind("real or void", lambda action: action in ("real", "void"))
_CONTENT = {"fps?": _RATE, "robot?": TEXT, "last_action?": _LAST_ACTION, "names?": {"*": [TEXT]}}


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
        return cls(source.fps, source.robot, names, source.last_action)

    @classmethod
    def read(cls, directory: str) -> Meaning:
        """Reads a dataset's `meaning.json`. Raises UsageError if it is damaged."""
        path = storage.join(directory, MEANING)
        content = parse_json(storage.read_small(path), path)
        check_json(content, _CONTENT, path)
        names = {field: tuple(names) for field, names in content.get("names", {}).items()}
        return cls(content.get("fps"), content.get("robot"), names, content.get("last_action", "unknown"))

    def name(self, schema: Schema) -> Schema:
        """The schema with the names. Raises UsageError if a field has another number of values."""
        steps = dict(schema.steps)
        for path, names in self.names.items():
            if path in steps:
                steps[path] = steps[path].with_names(names)
                if not steps[path].names:
                    raise UsageError(f"{MEANING}: {path} has {len(names)} names, but is {schema.steps[path]}")
        return dataclasses.replace(schema, steps=steps)

    def to_json(self) -> dict[str, Any]:
        """The content of the file; empty if nothing is known."""
        names = {path: [*names] for path, names in self.names.items()}
        last = None if self.last_action == "unknown" else self.last_action
        content = {"fps": self.fps, "robot": self.robot, "last_action": last, "names": names}
        return {key: value for key, value in content.items() if value}
