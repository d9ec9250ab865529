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


class FieldRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Maps a dataset of a file to a step field: the key `fields`."""

    source: str = msgspec.field(name="from")
    optional: bool | None = None
    times: str = ""
    window: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    raw_shapes: tuple[tuple[int, ...], ...] = ()
    names: tuple[str, ...] = ()
    per_robot: bool = False
    names_if: dict[str, str] = {}
    absolute_if: dict[str, str] = {}

    def __post_init__(self) -> None:
        if _ROWS.fullmatch(self.source) is None:
            raise ValueError(f"{self.source} is no dataset; rows are given as in name[:-1]")
        for pattern in (*self.names_if.values(), *self.absolute_if.values()):
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern} is no regular expression: {error}") from None

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
    """One place of a text or a fact: the keys `text` and `facts`."""

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
    """A layout of files. The attributes are the keys of the YAML, which `docs/how_to/hdf5.md` documents."""

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
            is_complete = rule.window and rule.times and self.times and not self.has_several
            if (rule.window or rule.times) and not is_complete:
                raise ValueError(f"{path}: window needs times, also of the steps, and a file or group for each episode")
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
