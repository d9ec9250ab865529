"""A profile: where a file's episodes are, and which array is which field. `docs/how_to/hdf5.md` documents its keys."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from rlds_beam.encoding.checked_json import TEXT, Kind, check_written
from rlds_beam.encoding.metadata import parse_yaml
from rlds_beam.episodes.schema import FLAGS
from rlds_beam.errors import UsageError
from rlds_beam.text import shorten

TO_OBSERVATION, RECORDED = "to_observation", "recorded"
_LAST_STEPS = ("kept", "added", "added_if_terminal", RECORDED)
RESERVED = (*FLAGS, "discount", "reward", "language_instruction")
"""Step fields with their own keys."""

_ROWS = re.compile(r"(?P<name>[^\[\]]+)(\[(?P<start>-?\d+)?:(?P<stop>-?\d+)?\])?")
_NUMBER = Kind("a number above 0", lambda v: type(v) in (int, float) and 0 < v < 1e6)
_BOOL = Kind("true or false", lambda v: isinstance(v, bool))
_SIZE = Kind("a size from 1 to 65536", lambda v: type(v) is int and 1 <= v <= 65536)
_TERMINAL = Kind("true, false, a dataset, or an @attribute", lambda v: isinstance(v, (bool, str)))
_ORDER = Kind("rgb or bgr", lambda v: v in ("rgb", "bgr"))
_FIELD = Kind("a dataset, or a mapping with the key from", lambda v: isinstance(v, (str, dict)))
_PATTERN = Kind("a regular expression", lambda v: isinstance(v, str) and _compiles(v))
_CONDITION = {"attribute": TEXT, "contains": _PATTERN}
_RULE = {
    "from": TEXT,
    "optional?": _BOOL,
    "images?": _BOOL,
    "raw_shapes?": [[_SIZE]],
    "names?": [TEXT],
    "per_robot?": _BOOL,
    "names_if?": _CONDITION,
    "absolute_if?": _CONDITION,
}
_TEXT_FROM = {"attribute?": TEXT, "dataset?": TEXT, "file?": TEXT, "file_name?": TEXT, "json?": TEXT}
_FACTS = ("name", "fps", "robot", "step_seconds", "decimation", "environment")
_SCHEMA: Mapping[str, Any] = {
    "name": TEXT,
    "about?": TEXT,
    "files?": TEXT,
    "episodes?": TEXT,
    "ends?": [TEXT],
    "recognize?": {"has?": [TEXT], "any?": [TEXT], "lacks?": [TEXT]},
    "fields": {"*": _FIELD},
    "final?": {"*": TEXT},
    "last_step?": Kind(f"one of {', '.join(_LAST_STEPS)}", lambda v: v in _LAST_STEPS),
    "actions?": Kind("from_observation or to_observation", lambda v: v in ("from_observation", TO_OBSERVATION)),
    "reward?": TEXT,
    "discount?": TEXT,
    "terminal?": _TERMINAL,
    "text?": [_TEXT_FROM],
    "metadata?": {"*": TEXT},
    "splits?": TEXT,
    "fps?": _NUMBER,
    "robot?": TEXT,
    "facts?": {f"{name}?": _TEXT_FROM for name in _FACTS},
    "strip?": TEXT,
    "channels?": _ORDER,
    "left_out?": TEXT,
    "note?": TEXT,
}


@dataclasses.dataclass(frozen=True)
class FieldRule:
    """Maps a dataset of a file to a step field.

    Attributes:
      path: the field; `*` and `**` stand for what they matched in `dataset`.
      dataset: the path in the episode's group; `*` matches one name, `**` one or more. `obs/a+b` joins the vectors
        `obs/a` and `obs/b`; `b?` may be missing.
      start, stop: the rows to take, as in Python; None for all.
      optional: whether an episode, and a dataset, may lack it.
      images: False to keep bytes and pixels as they are; images are otherwise found by their dtype, shape, and bytes.
      raw_shapes: the possible shapes of a frame if rows are bytes without an encoding.
      names: the names of the values of a row; differences are named `delta_x`.
      per_robot: whether a row of several robots has these values for each: `robot0_delta_x`, ..., `robot1_delta_x`.
      names_if: an attribute, and a regular expression that must be in it for the names to hold; None if they always do.
      absolute_if: the same for values that are not differences, so that their names lose `delta_`; None if they never
        are.
    """

    path: str
    dataset: str
    start: int | None = None
    stop: int | None = None
    optional: bool = False
    images: bool = True
    raw_shapes: tuple[tuple[int, ...], ...] = ()
    names: tuple[str, ...] = ()
    per_robot: bool = False
    names_if: tuple[str, str] | None = None
    absolute_if: tuple[str, str] | None = None

    @property
    def wild(self) -> bool:
        return "*" in self.dataset


@dataclasses.dataclass(frozen=True)
class TextRule:
    """One place of the task's text; the first that an episode has is used.

    Attributes:
      kind: `attribute`, `dataset`, `file` (a file next to the data), or `file_name`.
      place: the attribute, dataset, or path; or the pattern of the name, whose `*` is the text.
      json: if the text is in JSON: the path in it, `/` for the whole; a list stands for its first text.
    """

    kind: str
    place: str
    json: str | None = None


@dataclasses.dataclass(frozen=True)
class Profile:
    """A layout of files. The attributes are the keys of the YAML.

    Attributes:
      name, about: its name, and a description.
      files: the pattern of the file names; empty for all.
      episodes: `file` if each file is an episode; otherwise the groups that are, for example `data/demo_*`.
      has, any_of, lacks: what identifies the layout in the first episode: all of `has`, one of `any_of`, none of
        `lacks`. A name is a dataset or group; `@name` is an attribute of the episode, `/data@name` of another group.
      fields: the step fields.
      ends: the datasets whose rows other than 0 are the last of an episode; a file may lack some of them. With
        `episodes: file`, the file holds several episodes end to end, which also end where the next observations of
        `final` are not those of the next row. If groups are episodes, one without an end is rejected.
      final: the group (or dataset) with the next observations by that of the observations; the last row of the next
        observations becomes the last step, whose action is void.
      last_step: without next observations, `kept` makes T rows T steps, and the last step keeps its action and reward,
        as most published RLDS datasets of demonstrations do; `added` adds a step with an observation of zeros, so that
        the last action and reward belong to a transition; `added_if_terminal` adds it only to episodes that end in a
        terminal state; `recorded` if the observations have one row more than the actions.
      actions: `from_observation` if row t is the action taken at observation t, as in RLDS; `to_observation` if row t
        holds the action, reward, and discount that led there, and row 0 is a dummy.
      reward, discount: the datasets; empty if there are none.
      terminal: whether episodes end in a terminal state: a dataset, whose last row says so (that of `discount`: if it
        is 0), an attribute, or a constant.
      text: the places of the task's text.
      metadata: episode fields, by name: an `@attribute` or a dataset. An episode may lack it: the field is then zero,
        or empty text.
      splits: `mask` for robomimic's filter keys, `folders` for folders named train, val, or test, `names` for files
        named like `maze-val.npz`; empty for none of these.
      fps: frames per second.
      robot: the name of the robot.
      facts: the places of the dataset's `name`, `fps`, and `robot` in the data; an episode may lack them. Instead of
        `fps`, a simulation may have its own `step_seconds`, of which `decimation` are one step, or gymnasium's
        specification of its `environment`.
      strip: text that is removed from the names of fields.
      channels: the order of the channels of the images.
      left_out, note: what is not read, and what to know about the data.
    """

    name: str
    fields: tuple[FieldRule, ...]
    episodes: str = "file"
    about: str = ""
    files: str = ""
    has: tuple[str, ...] = ()
    any_of: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    final: Mapping[str, str] = dataclasses.field(default_factory=dict)
    last_step: str = "kept"
    actions: str = "from_observation"
    reward: str = ""
    discount: str = ""
    terminal: bool | str = False
    text: tuple[TextRule, ...] = ()
    metadata: Mapping[str, str] = dataclasses.field(default_factory=dict)
    splits: str = ""
    fps: float | None = None
    robot: str | None = None
    facts: Mapping[str, TextRule] = dataclasses.field(default_factory=dict)
    strip: str = ""
    channels: str = "rgb"
    left_out: str = ""
    note: str = ""

    @property
    def per_file(self) -> bool:
        """Whether a file is one episode, or several end to end."""
        return self.episodes == "file"

    @property
    def roles(self) -> set[str]:
        """The datasets with a role, which wildcards do not make fields."""
        places = (*self.ends, self.reward, self.discount, *self.final.values())
        return {place for place in (*places, self.terminal) if isinstance(place, str) and place}


def parse_profile(text: str, where: str) -> Profile:
    """Parses a profile; `where` names it in errors.

    Raises:
      UsageError: it is not valid YAML, or a key or value is wrong.
    """
    content = parse_yaml(text, where)
    check_written(content, _SCHEMA, where)
    fields = tuple(_rule(path, rule, where) for path, rule in content["fields"].items())
    recognized = check_written(content.get("recognize", {}), _SCHEMA["recognize?"], f"{where}: recognize")
    _check_values(content, where)
    if not any(rule.path == "action" or rule.path.startswith("action/") for rule in fields):
        raise UsageError(f"{where}: no field is action, or begins with action/")
    converted = ("fields", "recognize", "ends", "text", "facts")
    return Profile(
        fields=fields,
        has=tuple(recognized.get("has", ())),
        any_of=tuple(recognized.get("any", ())),
        lacks=tuple(recognized.get("lacks", ())),
        ends=tuple(content.get("ends", ())),
        text=tuple(_text_rule(rule, where) for rule in content.get("text", ())),
        facts={name: _text_rule(rule, where) for name, rule in content.get("facts", {}).items()},
        **{name: value for name, value in content.items() if name not in converted},
    )


def _check_values(content: Mapping[str, Any], where: str) -> None:
    episodes = content.get("episodes", "file")
    if episodes != "file" and episodes.count("*") != 1:
        raise UsageError(
            f"{where}: episodes is {shorten(repr(episodes), 80)}, expected file, or groups such as data/demo_*"
        )
    if content.get("splits", "mask") not in ("mask", "folders", "names"):
        splits = shorten(repr(content["splits"]), 80)
        raise UsageError(f"{where}: splits is {splits}, expected mask, folders, or names")
    later = [key for key in ("final", "last_step") if key in content]
    if content.get("actions") == TO_OBSERVATION and later:
        raise UsageError(f"{where}: {later[0]} does not fit actions: {TO_OBSERVATION}, which has the last observation")


def _compiles(pattern: str) -> bool:
    try:
        return bool(re.compile(pattern))
    except re.error:
        return False


def _rule(path: str, rule: Any, where: str) -> FieldRule:
    given = {"from": rule} if isinstance(rule, str) else rule
    where = f"{where}: fields.{shorten(path, 80)}"
    check_written(given, _RULE, where)
    if path in RESERVED:
        raise UsageError(f"{where}: use the keys terminal, reward, discount, and text instead")
    match = _ROWS.fullmatch(given["from"])
    if match is None:
        raise UsageError(f"{where}: {shorten(repr(given['from']), 80)} is no dataset; rows are given as in name[:-1]")
    if path.count("*") != match["name"].count("*"):
        raise UsageError(f"{where} and {shorten(repr(match['name']), 80)} have different numbers of *")
    start, stop = (None if match[key] is None else int(match[key]) for key in ("start", "stop"))
    shapes = tuple(tuple(shape) for shape in given.get("raw_shapes", ()))
    wild = "*" in match["name"]
    conditions = [given.get(key) for key in ("names_if", "absolute_if")]
    return FieldRule(
        path,
        match["name"].strip("/"),
        start,
        stop,
        given.get("optional", wild),
        given.get("images", True),
        shapes,
        tuple(given.get("names", ())),
        given.get("per_robot", False),
        *((condition["attribute"], condition["contains"]) if condition else None for condition in conditions),
    )


def _text_rule(rule: Mapping[str, str], where: str) -> TextRule:
    check_written(rule, _TEXT_FROM, f"{where}: text")
    kinds = [kind for kind in rule if kind != "json"]
    if len(kinds) != 1:
        raise UsageError(f"{where}: text: expected one of attribute, dataset, file, and file_name, found {kinds}")
    return TextRule(kinds[0], rule[kinds[0]], rule.get("json"))
