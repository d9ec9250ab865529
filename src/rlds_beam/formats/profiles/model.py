"""A profile: where a file's episodes are, and which array is which field. `docs/how_to/hdf5.md` documents its keys."""

from __future__ import annotations

import functools
import re
from importlib import resources
from typing import Annotated, Literal

import msgspec

from rlds_beam import storage
from rlds_beam.encoding.metadata import convert, parse_yaml
from rlds_beam.errors import UsageError

TO_OBSERVATION, RECORDED = "to_observation", "recorded"

_ROWS = re.compile(r"[^\[\]]+(\[(-?\d+)?:(-?\d+)?\])?")
Fact = Literal["name", "fps", "robot", "step_seconds", "decimation", "environment"]


class Condition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """That an attribute of the file contains a regular expression."""

    attribute: str
    contains: str

    def __post_init__(self) -> None:
        try:
            re.compile(self.contains)
        except re.error as error:
            raise ValueError(f"{self.contains} is no regular expression: {error}") from None


class FieldRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Maps a dataset of a file to a step field. The attributes are the keys of the YAML.

    Attributes:
      source: the key `from`: the path in the episode's group, and rows as in Python (`a/b[:-1]`); `*` matches one name,
        `**` one or more. `obs/a+b` joins the vectors `obs/a` and `obs/b`; `b?` may be missing. `a|b` is the first that
        the file has.
      optional: whether an episode, and a dataset, may lack it; by default if it has wildcards.
      times: the dataset with the times of the rows, if these are the samples of a signal that is faster than the steps.
      window: the most samples of a step.
      raw_shapes: the possible shapes of a frame if rows are bytes without an encoding.
      names: the names of the values of a row; differences are named `delta_x`.
      per_robot: whether a row of several robots has these values for each: `robot0_delta_x`, ..., `robot1_delta_x`.
      names_if: an attribute, and a regular expression that must be in it for the names to hold; None if they always do.
      absolute_if: the same for values that are not differences, so that their names lose `delta_`; None if they never
        are.
    """

    source: str = msgspec.field(name="from")
    optional: bool | None = None
    times: str = ""
    window: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    raw_shapes: tuple[tuple[int, ...], ...] = ()
    names: tuple[str, ...] = ()
    per_robot: bool = False
    names_if: Condition | None = None
    absolute_if: Condition | None = None

    def __post_init__(self) -> None:
        if _ROWS.fullmatch(self.source) is None:
            raise ValueError(f"{self.source} is no dataset; rows are given as in name[:-1]")
        if bool(self.times) != bool(self.window):
            raise ValueError("times and window go together")

    @property
    def dataset(self) -> str:
        """The path, without rows."""
        return self.source.partition("[")[0].strip("/")

    @property
    def rows(self) -> slice:
        start, _, stop = self.source.partition("[")[2].rstrip("]").partition(":")
        return slice(int(start) if start else None, int(stop) if stop else None)

    @property
    def wild(self) -> bool:
        return "*" in self.source

    @property
    def may_lack(self) -> bool:
        return self.wild if self.optional is None else self.optional


class TextRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One place of a text. Of the task's, the first that an episode has is used.

    Attributes:
      source: the key `from`: an attribute or a dataset.
      file: instead, a file next to the data.
      json: if the text is in JSON: the path in it, `/` for the whole; a list stands for its first text.
    """

    source: str = msgspec.field(default="", name="from")
    file: str = ""
    json: str | None = None

    def __post_init__(self) -> None:
        if bool(self.source) == bool(self.file):
            raise ValueError("a text or a fact needs either from or file")


class Recognition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What identifies a layout in the first episode.

    A name is a dataset or group; `@name` is an attribute of the episode, `/data@name` of another group.

    Attributes:
      has, any, lacks: all of `has`, one of `any`, none of `lacks`.
    """

    has: tuple[str, ...] = ()
    any: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A layout of files. The attributes are the keys of the YAML; `docs/how_to/hdf5.md` has their details.

    Attributes:
      name, about: its name, and a description.
      files: the pattern of the file names; empty for all.
      episodes: `file` if each file is an episode; otherwise the groups that are, for example `data/demo_*`.
      recognize: what identifies the layout in the first episode.
      fields: the step fields by path; `*` and `**` stand for what they matched in the dataset.
      ends: the datasets whose rows other than 0 are the last of an episode; a file may lack some of them.
      episode_ends: the dataset with the row after the last of each episode.
      final: the group with the next observations by that of the observations; their last row is the last step's.
      last_step: how T rows become steps if there are no next observations.
      actions: whether row t has the action taken at observation t, or the one that led there (row 0 is a dummy).
      terminal: whether episodes end in a terminal state: a constant, an attribute, or the last row of a dataset.
      text: the places of the task's text.
      metadata: the episode's own fields: attributes or datasets, which an episode may lack.
      times: the dataset with the times of the steps, for signals with their own times.
      time_unit: the unit of all times.
      splits: what names the splits: folders, the ends of file names (`maze-val.npz`), or whole file names.
      fps, robot: frames per second, and the name of the robot.
      facts: the places of such facts in the data; an episode may lack them.
      rates: steps per second of environments, by patterns of their names.
      strip: text that is removed from the names of fields.
      note: what to know about the data, and what is not read.
    """

    name: str
    fields: dict[str, FieldRule]
    about: str = ""
    files: str = ""
    episodes: str = "file"
    recognize: Recognition = Recognition()
    ends: tuple[str, ...] = ()
    episode_ends: str = ""
    final: dict[str, str] = {}
    last_step: Literal["kept", "added", "added_if_terminal", "recorded"] = "kept"
    actions: Literal["from_observation", "to_observation"] = "from_observation"
    terminal: bool | str = False
    text: tuple[TextRule, ...] = ()
    metadata: dict[str, str] = {}
    times: str = ""
    time_unit: Literal["s", "ms", "us", "ns"] = "s"
    splits: Literal["", "folders", "names", "files"] = ""
    fps: Annotated[float, msgspec.Meta(gt=0, lt=1e6)] | None = None
    robot: str | None = None
    facts: dict[Fact, TextRule] = {}
    rates: dict[str, float] = {}
    strip: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        for path, rule in self.fields.items():
            if path.count("*") != rule.source.count("*"):
                raise ValueError(f"{path} and {rule.source} have different numbers of *")
        if any(rule.window for rule in self.fields.values()) and (self.has_several or not self.times):
            raise ValueError("window needs the times of the steps (times), in episodes with their own file or group")
        if not self.per_file and self.episodes.count("*") != 1:
            raise ValueError(f"episodes is {self.episodes}, expected file, or groups such as data/demo_*")
        if self.actions == TO_OBSERVATION and (self.final or self.last_step != "kept"):
            raise ValueError(f"final and last_step do not fit actions: {TO_OBSERVATION}")

    @property
    def per_file(self) -> bool:
        """Whether a file is one episode, or several end to end."""
        return self.episodes == "file"

    @property
    def has_several(self) -> bool:
        """Whether a file holds several episodes, end to end."""
        return self.per_file and bool(self.ends or self.episode_ends)


def parse_profile(text: str, where: str) -> Profile:
    """Parses a profile; `where` names it in errors.

    Raises:
      UsageError: it is not valid YAML, or a key or value is wrong.
    """
    content = parse_yaml(text, where)
    if isinstance(content, dict) and isinstance(fields := content.get("fields"), dict):
        rules = {path: {"from": rule} if isinstance(rule, str) else rule for path, rule in fields.items()}
        content = {**content, "fields": rules}
    profile: Profile = convert(content, Profile, where)
    return profile


@functools.cache
def shipped_profiles() -> dict[str, Profile]:
    """The profiles of the package by name, sorted."""
    files = [file for file in resources.files(__package__).iterdir() if file.name.endswith(".yaml")]
    profiles = [parse_profile(file.read_text("utf-8"), file.name) for file in files]
    return {profile.name: profile for profile in sorted(profiles, key=lambda profile: profile.name)}


def find_profile(name: str) -> Profile:
    """A profile of the package by its name, or a user's by its path.

    Raises:
      UsageError: there is none, or the file is not a valid profile.
    """
    known = shipped_profiles()
    if name in known:
        return known[name]
    if not name.endswith((".yaml", ".yml")) or not storage.exists(name):
        raise UsageError(f"--profile={name}: no such profile; choose {', '.join(known)}, or the path of a YAML file")
    return parse_profile(storage.read_text(name), name)
