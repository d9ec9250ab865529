"""The YAML of `--topics`: which topic becomes which step field, when a step is, and where episodes begin and end."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from rlds_beam import storage
from rlds_beam.encoding.checked_json import ANY, TEXT, Kind, Maybe, check_written, parse_yaml
from rlds_beam.encoding.tfds.features import DTYPES
from rlds_beam.errors import UsageError
from rlds_beam.text import did_you_mean, shorten

NS = 1_000_000_000
_ROOTS = ("observation", "action", "reward", "language_instruction", "info")
_MADE = ("is_first", "is_last", "is_terminal", "discount", "timestamp_ns")

_DTYPES = sorted(DTYPES - {"string"})
_SCALARS = {bool, int, str}
_TOPIC = Kind(
    "the name of a topic, for example /joint_states",
    lambda value: isinstance(value, str) and bool(value.strip()) and not value.endswith("/"),
)
_TEXTS = Maybe(Kind("text, or a list of texts", lambda value: all(isinstance(text, str) for text in _as_list(value))))
_VALUES = Maybe(Kind("values such as true, 1, or start", lambda value: {*map(type, _as_list(value))} <= _SCALARS))
_POSITIVE = Kind("a number above 0", lambda value: type(value) in (int, float) and 1e-6 <= value <= 1e6)
_AGE = Maybe(Kind("seconds, or null for any age", lambda value: type(value) in (int, float) and 0 <= value <= 1e9))
_MAPPING = {
    "reference?": Maybe(_TOPIC),
    "rate?": Maybe(_POSITIVE),
    "time?": Kind("log or header", lambda value: value in ("log", "header")),
    "max_age_s?": _AGE,
    "fps?": Maybe(_POSITIVE),
    "end?": Kind("truncated or terminal", lambda value: value in ("truncated", "terminal")),
    "fields": {"*": ANY},
    "episodes?": ANY,
}
_FIELD = {
    "topic?": _TOPIC,
    "field?": _TEXTS,
    "names?": _TEXTS,
    "names_field?": TEXT,
    "dtype?": Kind(f"one of {', '.join(_DTYPES)}", lambda value: value in _DTYPES),
    "max_age_s?": _AGE,
    "value?": TEXT,
}
_EPISODES = {
    "topic?": _TOPIC,
    "field?": TEXT,
    "start?": _VALUES,
    "stop?": _VALUES,
    "discard?": _VALUES,
    "gap_s?": _POSITIVE,
}


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
      field: the path of a marker's value.
      start, stop, discard: the values that begin an episode, end it, and mark it as useless.
      gap: the nanoseconds of a gap.
    """

    kind: Literal["bag", "gaps", "markers"] = "bag"
    topic: str = ""
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


NO_MAPPING = TopicMapping(())


def read_mapping(path: str) -> TopicMapping:
    """Reads the file. Raises UsageError if it cannot be read, or is wrong; names the place."""
    where = f"--topics={path}"
    return parse_mapping(parse_yaml(storage.read_given(path, where), where), where)


def parse_mapping(content: Any, where: str) -> TopicMapping:
    """Checks the content of the file. Raises UsageError."""
    content = check_written(content, _MAPPING, where)
    reference, rate, fps = (content.get(key) for key in ("reference", "rate", "fps"))
    if (reference is None) == (rate is None):
        raise UsageError(
            f"{where}: give either reference (a topic: one step for each message) or rate (steps a second)"
        )
    if not content["fields"]:
        raise UsageError(
            f"{where}: fields is empty; write for example observation/state: {{topic: /joint_states, ...}}"
        )
    max_age = _nanoseconds(content.get("max_age_s", 0.5))
    fields = tuple(
        _field(path, entry, max_age, f"{where}: fields: {shorten(path)}") for path, entry in content["fields"].items()
    )
    if not any(field.topic for field in fields):
        raise UsageError(f"{where}: no field names a topic")
    _check_nesting([field.path for field in fields], where)
    if rate and fps not in (None, rate):
        raise UsageError(f"{where}: fps is {fps:g}, but rate is {rate:g}: leave fps out")
    return TopicMapping(
        fields,
        _topic(reference or ""),
        float(rate or 0),
        content.get("time") == "header",
        float(fps or rate) if fps or rate else None,
        content.get("end") == "terminal",
        _boundaries(content.get("episodes"), f"{where}: episodes", bool(reference)),
    )


def _field(path: Any, entry: Any, max_age: int | None, where: str) -> TopicField:
    name = shorten(path)
    if name.split("/")[0] not in _ROOTS or not all(name.split("/")):
        hint = did_you_mean(name.split("/")[0], _ROOTS, otherwise=f"it begins with one of {', '.join(_ROOTS)}")
        made = f" ({path} is made by rlds-beam)" if path in _MADE else ""
        raise UsageError(f"{where}: not a step field{made}{hint}")
    entry = check_written(entry, _FIELD, where)
    if "value" in entry:
        if len(entry) > 1:
            raise UsageError(f"{where}: value is a constant text, and goes with no other key")
        return TopicField(path, value=entry["value"])
    if "topic" not in entry:
        raise UsageError(f"{where}: there is no topic")
    names, fields = (tuple(_as_list(entry.get(key))) for key in ("names", "field"))
    if names and len(fields) != 1:
        raise UsageError(f"{where}: names selects from one field, for example field: position")
    max_age = _nanoseconds(entry["max_age_s"]) if "max_age_s" in entry else max_age
    names_field, dtype = entry.get("names_field", "name"), entry.get("dtype", "")
    return TopicField(path, _topic(entry["topic"]), fields, names, names_field, dtype, max_age)


def _boundaries(content: Any, where: str, has_reference: bool) -> Boundaries:
    if content is None or content == "bag":
        return Boundaries()
    content = check_written(content, _EPISODES, where)
    topic = _topic(content.get("topic", ""))
    if "gap_s" in content:
        if extra := content.keys() - {"gap_s", "topic"}:
            raise UsageError(f"{where}: {sorted(extra)[0]} is for markers, not for gaps")
        if not has_reference and not topic:
            raise UsageError(f"{where}: with rate, name the topic whose gaps separate episodes")
        return Boundaries("gaps", topic, gap=round(content["gap_s"] * NS))
    if not topic:
        raise UsageError(f"{where}: name a topic of markers, or gap_s")
    start, stop, discard = (tuple(map(_marker, _as_list(content.get(key)))) for key in ("start", "stop", "discard"))
    if not start:
        raise UsageError(f"{where}: start is missing: the values that begin an episode, for example start: [true]")
    if both := set(start) & {*stop, *discard} | set(stop) & set(discard):
        raise UsageError(f"{where}: {shorten(repr(min(both)), 40)} has two meanings")
    return Boundaries("markers", topic, content.get("field", "data"), start, stop, discard)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _topic(name: str) -> str:
    return name if name.startswith("/") or not name else f"/{name}"


def _marker(value: Any) -> str:
    """A marker's value as text; true and false as in YAML."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _nanoseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * NS)


def _check_nesting(paths: list[str], where: str) -> None:
    for path in paths:
        if inside := [other for other in paths if other.startswith(f"{path}/")]:
            raise UsageError(f"{where}: {path} cannot be a field, because {inside[0]} is in it")
