"""The YAML of `--topics`: which topic becomes which step field, when a step is, and where episodes begin and end."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, Literal

from rlds_beam import storage
from rlds_beam.encoding.checked_json import parse_yaml
from rlds_beam.encoding.tfds.features import DTYPES
from rlds_beam.errors import UsageError
from rlds_beam.text import did_you_mean, shorten

NS = 1_000_000_000
_KEYS = ("reference", "rate", "time", "max_age_s", "fps", "end", "fields", "episodes")
_FIELD_KEYS = ("topic", "field", "names", "names_field", "dtype", "max_age_s", "value")
_EPISODE_KEYS = ("topic", "service", "field", "start", "stop", "discard", "gap_s")
_ROOTS = ("observation", "action", "reward", "language_instruction", "info")
_MAX_NAME = 255
"""Maximum characters of a name; of a topic's in ROS 2."""
_MADE = ("is_first", "is_last", "is_terminal", "discount", "timestamp_ns")


@dataclasses.dataclass(frozen=True)
class TopicField:
    """A step field.

    Attributes:
      path: its path, `observation/state`.
      topic: the topic; empty for a constant.
      fields: the paths in the message whose numbers are concatenated; empty for an image.
      names: the names to select, in this order, if a list of names goes with the numbers.
      names_field: the path of these names in the message.
      dtype: the dtype to cast to; empty keeps the message's.
      max_age: the most nanoseconds that a message may be older than its step; None is any age.
      value: the constant text.
    """

    path: str
    topic: str = ""
    fields: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    names_field: str = "name"
    dtype: str = ""
    max_age: int | None = None
    value: str = ""


@dataclasses.dataclass(frozen=True)
class Boundaries:
    """The messages at which the episodes of a bag begin and end.

    Attributes:
      kind: the whole bag is one, `gaps` between messages, or `markers`.
      topic: the topic whose gaps or messages count; empty is the reference topic.
      service: whether the topic holds events of a service.
      field: the path of a marker's value.
      start, stop, discard: the values that begin an episode, end it, and mark it as useless.
      gap: the nanoseconds of a gap.
    """

    kind: Literal["bag", "gaps", "markers"] = "bag"
    topic: str = ""
    service: bool = False
    field: str = "data"
    start: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()
    discard: tuple[str, ...] = ()
    gap: int = 0


@dataclasses.dataclass(frozen=True)
class TopicMapping:
    """The content of the file.

    Attributes:
      reference: the topic with a message for each step; empty if there is a rate.
      rate: steps a second; 0 if there is a reference.
      by_stamp: whether a message's time is the stamp in its header, not when it was recorded.
      fps: frames a second, if known.
      terminal: whether an episode ends in a terminal state.
      fields: the step fields.
      boundaries: where episodes begin and end.
    """

    fields: tuple[TopicField, ...]
    reference: str = ""
    rate: float = 0.0
    by_stamp: bool = False
    fps: float | None = None
    terminal: bool = False
    boundaries: Boundaries = Boundaries()

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are read for an episode, without repetition."""
        names = [self.reference, *(field.topic for field in self.fields)]
        return tuple(dict.fromkeys(name for name in names if name))

    def max_age(self, topic: str) -> int | None:
        """The largest age that a field of the topic allows; None is any age."""
        ages = [field.max_age for field in self.fields if field.topic == topic] or [0]
        return None if None in ages else max(age for age in ages if age is not None)

    def to_json(self) -> dict[str, Any]:
        """The mapping as JSON, for a plan."""
        return dataclasses.asdict(self)


NO_MAPPING = TopicMapping(())


def read_mapping(path: str) -> TopicMapping:
    """Reads the file.

    Raises:
      UsageError: it cannot be read, or it is wrong; names the place.
    """
    try:
        text = storage.read_text(path)
    except OSError as error:
        raise UsageError(f"--topics={path}: {error.strerror or error}") from error
    return parse_mapping(parse_yaml(text, f"--topics={path}"), f"--topics={path}")


def parse_mapping(content: Any, where: str) -> TopicMapping:
    """Checks the content of the file. Raises UsageError."""
    content = _table(content, _KEYS, where)
    max_age = _age(content.get("max_age_s", 0.5), f"{where}: max_age_s")
    reference, rate = content.get("reference"), content.get("rate")
    if (reference is None) == (rate is None):
        raise UsageError(
            f"{where}: give either reference (a topic: one step for each message) or rate (steps a second)"
        )
    fields = _table(content.get("fields"), None, f"{where}: fields")
    if not fields:
        raise UsageError(
            f"{where}: fields is empty; write for example observation/state: {{topic: /joint_states, ...}}"
        )
    parsed = tuple(_field(path, entry, max_age, f"{where}: fields: {shorten(path)}") for path, entry in fields.items())
    if not any(field.topic for field in parsed):
        raise UsageError(f"{where}: no field names a topic")
    _check_nesting([field.path for field in parsed], where)
    rate = 0.0 if rate is None else _positive(rate, f"{where}: rate")
    fps = content.get("fps")
    fps = (rate or None) if fps is None else _positive(fps, f"{where}: fps")
    if rate and fps != rate:
        raise UsageError(f"{where}: fps is {fps:g}, but rate is {rate:g}: leave fps out")
    return TopicMapping(
        parsed,
        "" if reference is None else _topic(reference, f"{where}: reference"),
        rate,
        _choice(content.get("time", "log"), ("log", "header"), f"{where}: time") == "header",
        fps,
        _choice(content.get("end", "truncated"), ("truncated", "terminal"), f"{where}: end") == "terminal",
        _boundaries(content.get("episodes"), f"{where}: episodes", bool(reference)),
    )


def _field(path: Any, entry: Any, max_age: int | None, where: str) -> TopicField:
    name = shorten(path)
    if len(str(path)) > _MAX_NAME or name.split("/")[0] not in _ROOTS or not all(name.split("/")):
        hint = did_you_mean(name.split("/")[0], _ROOTS, otherwise=f"it begins with one of {', '.join(_ROOTS)}")
        made = f" ({path} is made by rlds-beam)" if path in _MADE else ""
        raise UsageError(f"{where}: not a step field{made}{hint}")
    entry = _table(entry, _FIELD_KEYS, where)
    if "value" in entry:
        if len(entry) > 1 or not isinstance(entry["value"], str):
            raise UsageError(f"{where}: value is a constant text, and goes with no other key")
        return TopicField(path, value=entry["value"])
    names = _texts(entry.get("names"), f"{where}: names")
    dtype = entry.get("dtype", "")
    if not isinstance(dtype, str) or (dtype and (dtype not in DTYPES or dtype == "string")):
        raise UsageError(f"{where}: dtype is {shorten(dtype, 40)!r}{did_you_mean(shorten(dtype), DTYPES)}")
    fields = _texts(entry.get("field"), f"{where}: field")
    if names and len(fields) != 1:
        raise UsageError(f"{where}: names selects from one field, for example field: position")
    return TopicField(
        path,
        _topic(entry.get("topic"), f"{where}: topic"),
        fields,
        names,
        _text(entry.get("names_field", "name"), f"{where}: names_field"),
        dtype,
        _age(entry["max_age_s"], f"{where}: max_age_s") if "max_age_s" in entry else max_age,
    )


def _boundaries(content: Any, where: str, has_reference: bool) -> Boundaries:
    if content is None or content == "bag":
        return Boundaries()
    content = _table(content, _EPISODE_KEYS, where)
    if "gap_s" in content:
        if extra := content.keys() - {"gap_s", "topic"}:
            raise UsageError(f"{where}: {sorted(extra)[0]} is for markers, not for gaps")
        if not has_reference and "topic" not in content:
            raise UsageError(f"{where}: with rate, name the topic whose gaps separate episodes")
        topic = _topic(content["topic"], f"{where}: topic") if "topic" in content else ""
        return Boundaries("gaps", topic, gap=round(_positive(content["gap_s"], f"{where}: gap_s") * NS))
    if ("topic" in content) == ("service" in content):
        raise UsageError(f"{where}: name a topic or a service of markers, or gap_s")
    service = "service" in content
    topic = _topic(content["service" if service else "topic"], where)
    if service and not topic.endswith("/_service_event"):
        topic = f"{topic.rstrip('/')}/_service_event"
    start, stop, discard = (_values(content.get(name), f"{where}: {name}") for name in ("start", "stop", "discard"))
    if not start:
        raise UsageError(f"{where}: start is missing: the values that begin an episode, for example start: [true]")
    if both := set(start) & {*stop, *discard} | set(stop) & set(discard):
        raise UsageError(f"{where}: {shorten(repr(min(both)), 40)} has two meanings")
    return Boundaries(
        "markers", topic, service, _text(content.get("field", "data"), f"{where}: field"), start, stop, discard
    )


def _table(content: Any, keys: Collection[str] | None, where: str) -> dict[Any, Any]:
    if not isinstance(content, Mapping):
        raise UsageError(f"{where}: expected keys and values, found {shorten(repr(content), 60)}")
    for key in content:
        if keys is not None and key not in keys:
            hint = did_you_mean(str(key), keys, otherwise=f"known: {', '.join(keys)}")
            raise UsageError(f"{where}: there is no key {shorten(key, 40)}{hint}")
    return dict(content)


def _topic(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.strip() or value.endswith("/") or len(value) > _MAX_NAME:
        found = shorten(repr(value), 60)
        raise UsageError(f"{where}: expected the name of a topic, for example /joint_states; found {found}")
    return value if value.startswith("/") else f"/{value}"


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{where}: expected text, found {shorten(repr(value), 60)}")
    return _texts(value, where)[0]


def _texts(value: Any, where: str) -> tuple[str, ...]:
    values = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(values, list) or not all(isinstance(name, str) and len(name) <= _MAX_NAME for name in values):
        raise UsageError(f"{where}: expected text, or a list of texts; found {shorten(repr(value), 60)}")
    return tuple(values)


def _values(value: Any, where: str) -> tuple[str, ...]:
    """Marker values as text; true and false as in YAML."""
    values = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(value, (bool, int, str)) for value in values):
        raise UsageError(f"{where}: expected values such as true, 1, or start; found {shorten(repr(value), 60)}")
    return tuple(str(value).lower() if isinstance(value, bool) else str(value) for value in values)


def _positive(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1e-6 <= value <= 1e6:
        raise UsageError(f"{where}: expected a number above 0, found {shorten(repr(value), 40)}")
    return float(value)


def _age(value: Any, where: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1e9:
        raise UsageError(f"{where}: expected seconds, or null for any age; found {shorten(repr(value), 40)}")
    nanoseconds: int = round(value * NS)
    return nanoseconds


def _choice(value: Any, choices: tuple[str, ...], where: str) -> str:
    if value not in choices:
        raise UsageError(f"{where}: {shorten(repr(value), 40)}; choose {' or '.join(choices)}")
    return str(value)


def _check_nesting(paths: list[str], where: str) -> None:
    for path in paths:
        if inside := [other for other in paths if other.startswith(f"{path}/")]:
            raise UsageError(f"{where}: {path} cannot be a field, because {inside[0]} is in it")
