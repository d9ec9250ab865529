"""What a profile is applied to: an episode's arrays and attributes in a file, HDF5 or NPZ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from rlds_beam import storage
from rlds_beam.encoding.checked_json import parse_json
from rlds_beam.errors import RldsBeamError
from rlds_beam.formats.profiles.binding import Leaf, matches
from rlds_beam.formats.profiles.model import FieldRule, Profile, TextRule
from rlds_beam.typing import Array


class Container(Protocol):
    """The arrays of an episode, in an open file.

    Attributes:
      path: the file.
      group: the episode's group in it; empty if the file is one episode.
      ended: whether the episode has its end, which the last rows of a file may lack.
      leaves: the arrays by name.
    """

    path: str
    group: str

    @property
    def ended(self) -> bool: ...

    @property
    def leaves(self) -> Mapping[str, Leaf]: ...

    def read(self, name: str, rows: slice | None = None) -> Array:
        """An array, or some rows. Values of varying length, and text, are an object array of bytes."""

    def attribute(self, place: str) -> Any:
        """An attribute (`@name` of the episode, `/data@name` of another group). Raises KeyError if there is none."""

    def has(self, name: str) -> bool:
        """Whether there is an array or group of this name, or an attribute `@name`."""


def where(container: Container) -> str:
    """The episode's file and group, for messages."""
    return f"{container.path}: {container.group}" if container.group else container.path


def fits(profile: Profile, container: Container) -> str | None:
    """What a profile recognizes in an episode; None if it does not fit, or recognizes nothing."""
    if not (profile.has or profile.any_of) or any(map(container.has, profile.lacks)):
        return None
    found = [name for name in profile.any_of if container.has(name)][:1]
    if not all(map(container.has, profile.has)) or (profile.any_of and not found):
        return None
    return ", ".join((*profile.has, *found))


def text_of(profile: Profile, container: Container) -> bytes | None:
    """The task's text: that of the first place which has one; None if there is none."""
    for rule in profile.text:
        text = _text(rule, container)
        if text is not None and (found := _within(text, rule, container)):
            return found
    return None


def is_named(rule: FieldRule, container: Container) -> bool:
    """Whether the names of a field hold for the data."""
    if rule.names_if is None:
        return True
    place, part = rule.names_if
    return part.encode() in (_text(TextRule("attribute", place), container) or b"")


def fact_of(profile: Profile, container: Container, name: str) -> Any:
    """A fact about the dataset that the profile finds in an episode: JSON; None if there is none."""
    rule = profile.facts.get(name)
    text = None if rule is None else _text(rule, container)
    try:
        return None if rule is None or text is None else _json_within(text, rule, container)
    except ValueError:
        return None


def text_files(profile: Profile, path: str) -> list[str]:
    """The files next to the data that may hold its text, if they exist."""
    found = (_files(rule, path) for rule in profile.text if rule.kind == "file")
    return [*dict.fromkeys(file for files in found for file in files)]


def _files(rule: TextRule, path: str) -> list[str]:
    directory, name = storage.split(path)
    stem = name.rpartition(".")[0]
    parts = rule.place.split("/")
    while parts and parts[0] == "..":
        directory, parts = storage.split(directory.rstrip("/"))[0], parts[1:]
    below = "/".join(parts)
    if "*" in below:
        return storage.files_below(directory, below)[:1]
    file = storage.join(directory, *(part.replace("{name}", stem) for part in parts))
    return [file] if storage.exists(file) else []


def _text(rule: TextRule, container: Container) -> bytes | None:
    if rule.kind == "file_name":
        stem = storage.split(container.path)[1].rpartition(".")[0]
        found = matches(rule.place, [stem])
        return found[0][1][0].replace("_", " ").encode() if found else None
    if rule.kind == "file":
        files = _files(rule, container.path)
        return storage.read_small(files[0]) if files else None
    try:
        value = container.attribute(rule.place) if rule.kind == "attribute" else container.read(rule.place)
    except KeyError:
        return None
    value = value.reshape(-1)[0] if isinstance(value, np.ndarray) and value.size else value
    return value if isinstance(value, bytes) else None


def _within(text: bytes, rule: TextRule, container: Container) -> bytes | None:
    if rule.json is None:
        return text
    content = _json_within(text, rule, container)
    while isinstance(content, list):
        content = content[0] if content else None
    return content.encode() if isinstance(content, str) else None


def _json_within(text: bytes, rule: TextRule, container: Container) -> Any:
    """The value in a JSON text. Raises ValueError if it is not valid."""
    try:
        content = parse_json(text, f"{where(container)}: {rule.place}")
    except RldsBeamError as error:
        raise ValueError(str(error)) from None
    for key in filter(None, (rule.json or "").split("/")):
        content = content.get(key) if isinstance(content, dict) else None
    return content
