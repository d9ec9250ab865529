"""The YAML of `--topics`: which topic becomes which step field, when a step is, and where episodes begin and end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec

from rlds_beam.encoding.metadata import convert
from rlds_beam.encoding.tfds.features import DTYPES
from rlds_beam.errors import UsageError
from rlds_beam.text import did_you_mean, shorten

NS = 1_000_000_000
OF_EPISODE = "episode_metadata"
"""The group of the fields that have one value for each episode."""
_ROOTS = ("observation", "action", "reward", "language_instruction", "info", OF_EPISODE)
_MADE = ("is_first", "is_last", "is_terminal", "discount", "timestamp_ns")

_Topic = Annotated[str, msgspec.Meta(pattern="[^/ ]$")]
_Positive = Annotated[float, msgspec.Meta(ge=1e-6, le=1e6)]
_Age = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class TopicField(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A step field, or one of the episode.

    Attributes:
      topic: the topic.
      fields: the paths in the message whose numbers are concatenated; empty for an image.
      names: the names to select, in this order, if a list of names goes with the numbers.
      names_field: the path of these names in the message.
      dtype: the dtype to cast to; empty keeps the message's.
      max_age_s: the most seconds that a message may be older than its step; None is any age.
      window: the most messages that a step holds: all since the step before; 0: it holds the latest one.
      frame: the frame whose pose is read, in a topic of static transforms; empty for others.
      path: its path, `observation/state`.
    """

    topic: _Topic
    fields: tuple[str, ...] = msgspec.field(default=(), name="field")
    names: tuple[str, ...] = ()
    names_field: str = "name"
    dtype: str = ""
    max_age_s: _Age | None = None
    window: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    frame: str = ""
    path: str = ""

    @property
    def max_age(self) -> int | None:
        """`max_age_s` in nanoseconds."""
        return None if self.max_age_s is None else round(self.max_age_s * NS)


class Boundaries(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The messages at which the episodes of a bag begin and end. Without a topic, a bag is an episode.

    Attributes:
      topic: the topic whose gaps or messages count.
      gap_s: the seconds of a gap; None if the messages are markers.
      field: the path of a marker's value.
      start, stop, discard: the values that begin an episode, end it, and mark it as useless.
    """

    topic: _Topic = ""
    gap_s: _Positive | None = None
    field: str = "data"
    start: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()
    discard: tuple[str, ...] = ()


class TopicMapping(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the file.

    Attributes:
      fields: the step fields.
      reference: the topic with a message for each step; empty if there is a rate.
      rate: steps a second; 0 if there is a reference.
      time: a message's time: when it was recorded (`log`), or the stamp in its header.
      fps: frames a second, if known.
      end: how an episode ends.
      boundaries: where episodes begin and end; `episodes` in the file.
    """

    fields: tuple[TopicField, ...]
    reference: str = ""
    rate: _Positive = 0.0
    time: Literal["log", "header"] = "log"
    fps: _Positive | None = None
    end: Literal["truncated", "terminal"] = "truncated"
    boundaries: Boundaries = msgspec.field(default=Boundaries(), name="episodes")

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics whose messages are aligned with the steps, without repetition."""
        named = (field.topic for field in self.fields if not field.frame)
        return tuple(dict.fromkeys([*filter(None, [self.reference]), *named]))

    def max_age(self, topic: str) -> int | None:
        """The largest age that a field of the topic allows; None is any age."""
        ages = [field.max_age for field in self.fields if field.topic == topic] or [0]
        return None if None in ages else max(age for age in ages if age is not None)


def parse_mapping(content: Any, where: str) -> TopicMapping:
    """Checks the content of the file. Raises UsageError."""
    if isinstance(content, dict) and isinstance(content.get("fields"), dict):
        content = {name: value for name, value in content.items() if value is not None or name == "max_age_s"}
        oldest, episodes = content.pop("max_age_s", 0.5), content.pop("episodes", "bag")
        fields = []
        for path, entry in content["fields"].items():
            given = _entry(entry, "field", "names")
            fields.append({"max_age_s": oldest, **given, "path": path} if isinstance(given, dict) else given)
        content["fields"] = fields
        if "reference" in content:
            content["reference"] = _absolute(content["reference"])
        if "rate" in content:
            content.setdefault("fps", content["rate"])
        if episodes != "bag":
            content["episodes"] = _entry(episodes, "start", "stop", "discard")
            if isinstance(episodes, dict) and "gap_s" in episodes and "reference" in content:
                content["episodes"].setdefault("topic", content["reference"])
    mapping: TopicMapping = convert(content, TopicMapping, where)
    if bool(mapping.reference) == bool(mapping.rate):
        raise UsageError(
            f"{where}: give either reference (a topic: one step for each message) or rate (steps a second)"
        )
    if not mapping.fields:
        raise UsageError(f"{where}: fields is empty; write for example action: {{topic: /leader, field: position}}")
    if mapping.rate and mapping.fps != mapping.rate:
        raise UsageError(f"{where}: fps is {mapping.fps:g}, but rate is {mapping.rate:g}: leave fps out")
    paths = [field.path for field in mapping.fields]
    for field in mapping.fields:
        _check_field(field.path, field, paths, f"{where}: fields: {shorten(field.path)}")
    if mapping.boundaries != Boundaries():
        _check_boundaries(mapping.boundaries, f"{where}: episodes")
    return mapping


def _entry(entry: Any, *names: str) -> Any:
    """An entry of the file with lists of texts for single values; true and false as in YAML."""
    if not isinstance(entry, dict):
        return entry
    given = {**entry, "topic": _absolute(entry["topic"])} if "topic" in entry else {**entry}
    for name in names:
        value = entry.get(name)
        values = value if isinstance(value, list) else [] if value is None else [value]
        given[name] = [str(one).lower() if isinstance(one, bool) else str(one) for one in values]
    return given


def _absolute(topic: Any) -> Any:
    return f"/{topic}" if isinstance(topic, str) and not topic.startswith("/") else topic


def _check_field(path: str, entry: TopicField, others: Iterable[str], where: str) -> None:
    root, *names = path.split("/")
    if root not in _ROOTS or not all(names):
        hint = did_you_mean(root, _ROOTS, otherwise=f"it begins with one of {', '.join(_ROOTS)}")
        made = f" ({path} is made by rlds-beam)" if path in _MADE else ""
        raise UsageError(f"{where}: neither a step field nor one of the episode{made}{hint}")
    if inside := [other for other in others if other.startswith(f"{path}/")]:
        raise UsageError(f"{where} cannot be a field, because {inside[0]} is in it")
    if entry.dtype and entry.dtype not in DTYPES - {"string"}:
        raise UsageError(f"{where}: dtype is {entry.dtype}, not one of {', '.join(sorted(DTYPES - {'string'}))}")
    if entry.frame and (root != OF_EPISODE or entry.fields):
        raise UsageError(f"{where}: frame gives a pose [4, 4] of an episode, without field")
    if entry.window and (root == OF_EPISODE or not entry.fields):
        raise UsageError(f"{where}: window is for fields of the steps that hold numbers")
    if entry.names and len(entry.fields) != 1:
        raise UsageError(f"{where}: names selects from one field, for example field: position")


def _check_boundaries(bounds: Boundaries, where: str) -> None:
    start, stop, discard = map(set, (bounds.start, bounds.stop, bounds.discard))
    if bounds.gap_s is not None:
        if start | stop | discard or not bounds.topic:
            raise UsageError(f"{where}: gap_s goes with the topic whose gaps count, and with no markers")
    elif not bounds.topic or not start:
        raise UsageError(f"{where}: name the topic of markers and the values that begin an episode, start: [true]")
    elif both := start & (stop | discard) | stop & discard:
        raise UsageError(f"{where}: {shorten(repr(min(both)), 40)} has two meanings")
