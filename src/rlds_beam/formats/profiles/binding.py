"""Binds a profile to the arrays of an episode in an HDF5 or NPZ file: each array becomes a field."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from rlds_beam import storage
from rlds_beam.encoding.metadata import parse_json
from rlds_beam.episodes.representations import DELTA
from rlds_beam.episodes.schema import Field, by_path, text_field
from rlds_beam.errors import RldsBeamError, UsageError
from rlds_beam.formats.arrays.array_episodes import number_field
from rlds_beam.formats.profiles.containers import Container, Leaf, matches
from rlds_beam.formats.profiles.model import RECORDED, RESERVED, FieldRule, Profile, TextRule
from rlds_beam.images.headers import UndecodableImageError, read_image_header, read_pixel_format

_MIN_IMAGE_PIXELS = 16  # pixels of a side


class Bound(NamedTuple):
    """A step field and its array.

    Attributes:
      field: the field.
      name: the array's name.
      rule: the rule of the profile.
      final: the array whose last row is the value of the last step; None if there is none.
      frames: how frames of pixels are encoded.
    """

    field: Field
    name: str
    rule: FieldRule
    final: str | None = None
    frames: str = "png"

    @property
    def encoded(self) -> bool:
        """Whether the rows are, or become, bytes of images."""
        return self.field.holds_image_files

    def has_pixels(self, leaf: Leaf) -> bool:
        """Whether an episode's array holds frames of pixels that become images."""
        field = self.field
        return field.encoding == self.frames and leaf.dtype == field.dtype and leaf.shape[1:] == field.shape


def bind(
    profile: Profile, leaves: Mapping[str, Leaf], first: Callable[[str], Any], where: str
) -> tuple[tuple[Bound, ...], list[str]]:
    """The step fields of an episode, and notes about arrays that were skipped.

    Args:
      profile: the profile.
      leaves: the arrays of the episode by name.
      first: returns the first row of an array.
      where: the episode, for errors.

    Raises:
      UsageError: a dataset is missing, or its values cannot be a field.
    """
    bound: list[Bound] = []
    notes: list[str] = []
    taken = {rule.dataset for rule in profile.fields if not rule.wild} | profile.roles
    for rule in profile.fields:
        found = matches(rule.dataset, leaves)
        if not found and not rule.optional:
            raise UsageError(f"{where}: there is no {rule.dataset}, which profile {profile.name} reads as {rule.path}")
        for name, parts in found:
            if rule.wild and name in taken:
                continue
            taken.add(name)
            fill = iter(parts)
            path = re.sub(r"\*\*|\*", lambda _: next(fill), rule.path)  # noqa: B023
            path = path.replace(profile.strip, "") if profile.strip else path
            why = _unusable(leaves[name]) or ("has the name of another field" if rule.wild and path in RESERVED else "")
            if why and rule.wild:
                notes.append(f"{name} {why}: left out")
            elif why:
                raise UsageError(f"{where}: {name} {why}")
            else:
                field = _field(path, leaves[name], rule, first, name)
                field = field.with_names(_repeat(rule.names, field) if rule.per_robot else rule.names)
                if rule.names and not field.names:
                    notes.append(f"{name} does not have the {len(rule.names)} values that the profile names: not named")
                bound.append(Bound(field, name, rule))
    bound, odd = _of_equal_rows(bound, leaves, 1 if profile.last_step == RECORDED else 0)
    notes += odd
    by_path((binding.field for binding in bound), where)
    for top in ("observation", "action"):
        if not any(binding.field.path.split("/")[0] == top for binding in bound):
            raise UsageError(f"{where}: no array becomes {top} in profile {profile.name}")
    return _with_final(profile, bound, leaves), notes


def _repeat(names: tuple[str, ...], field: Field) -> tuple[str, ...]:
    """The names for a vector of several robots, `robot0_x`; for one robot, as they are."""
    robots, rest = divmod(field.known_size, len(names) or 1)
    if rest or robots < 2:
        return names
    return tuple(f"robot{i}_{name}" for i in range(robots) for name in names)


def _of_equal_rows(bound: list[Bound], leaves: Mapping[str, Leaf], more: int) -> tuple[list[Bound], list[str]]:
    """Leaves out optional arrays without a row for each action (or up to `more` rows), with notes."""
    counts = [len(range(leaves[binding.name].shape[0])[binding.rule.start : binding.rule.stop]) for binding in bound]
    rows = next(
        (n for n, binding in zip(counts, bound, strict=True) if binding.field.path.split("/")[0] == "action"), 0
    )
    fitting = range(rows, rows + more + 1)
    odd = [binding.name for n, binding in zip(counts, bound, strict=True) if n not in fitting and binding.rule.optional]
    kept = [binding for binding in bound if binding.name not in odd]
    return kept, [f"{name} has {leaves[name].shape[0]} rows, not {rows}: left out" for name in odd]


def _with_final(profile: Profile, bound: list[Bound], leaves: Mapping[str, Leaf]) -> tuple[Bound, ...]:
    """Adds the arrays of the last observation, if there are some for all observations."""
    with_final = []
    for binding in bound:
        group = next((group for group in profile.final if f"{binding.name}/".startswith(f"{group}/")), None)
        name = None if group is None else profile.final[group] + binding.name[len(group) :]
        with_final.append(binding._replace(final=name if name in leaves else None))
    observations = [binding for binding in with_final if binding.field.path.startswith("observation")]
    return tuple(with_final if all(observation.final for observation in observations) else bound)


def _unusable(leaf: Leaf) -> str:
    if not leaf.readable:
        return "holds lists of numbers or references"
    if not leaf.shape:
        return "has no rows"
    if 0 in leaf.shape[1:]:
        return f"has the shape {list(leaf.shape)}"
    if leaf.dtype.kind not in "biufOSU":
        return f"holds {leaf.dtype} values"
    return ""


def _field(path: str, leaf: Leaf, rule: FieldRule, first: Callable[[str], Any], name: str) -> Field:
    shape = leaf.shape[1:]
    if rule.images and is_pixels(leaf):
        return Field(path, "uint8", shape, "bytes", "Tensor")
    is_bytes = leaf.dtype.kind in "OS" and not shape
    if rule.images and leaf.shape[0] and (is_bytes or (leaf.dtype == np.uint8 and len(shape) == 1)):
        row = stored_bytes(first(name))
        image = _image_field(path, row.rstrip(b"\0"))
        if image is not None:
            return image
        for raw in rule.raw_shapes:
            if len(row) == math.prod(raw):
                return Field(path, "uint8", raw, "bytes", "Tensor")
    if leaf.dtype.kind in "OSU":
        return text_field(path, shape)
    return number_field(path, leaf.dtype.name, shape)


def is_pixels(leaf: Leaf) -> bool:
    """Whether an array holds frames: uint8 [T, H, W, C]."""
    if leaf.dtype != np.uint8 or len(leaf.shape) != 4:
        return False
    return min(leaf.shape[1:3]) >= _MIN_IMAGE_PIXELS and leaf.shape[3] in (1, 3, 4)


def row_bytes(row: Any) -> bytes:
    """A row of an array as bytes, without the zeros that pad it.

    JPEGs end with FF D9 and PNGs with AE 42 60 82, so no byte of an image is lost.
    """
    return stored_bytes(row).rstrip(b"\0")


def stored_bytes(row: Any) -> bytes:
    """A row of an array as bytes."""
    return row.tobytes() if isinstance(row, np.ndarray) else row.encode() if isinstance(row, str) else bytes(row)


def _image_field(path: str, data: bytes) -> Field | None:
    if not data.startswith((b"\xff\xd8", b"\x89PNG")):
        return None
    encoding, dtype, channels = "jpeg", "uint8", 3
    if data[:2] != b"\xff\xd8":
        encoding, dtype = "png", "uint16" if data[24:25] == b"\x10" else "uint8"
        channels = {0: 1, 4: 2, 6: 4}.get(data[25] if len(data) > 25 else 2, 3)
    try:
        header = read_image_header(data)
        channels = channels if encoding == "png" else read_pixel_format(data).channels
    except UndecodableImageError:
        return Field(path, dtype, (None, None, channels), encoding, "Image")
    return Field(path, dtype, (header.height, header.width, channels), encoding, "Image")


def fits(profile: Profile, container: Container) -> str | None:
    """The fields that a profile recognizes in an episode; None if it does not fit, or recognizes nothing."""
    if not (profile.has or profile.any_of) or any(map(container.has, profile.lacks)):
        return None
    found = [name for name in profile.any_of if container.has(name)][:1]
    if not all(map(container.has, profile.has)) or (profile.any_of and not found):
        return None
    return ", ".join((*profile.has, *found))


def find_text(profile: Profile, container: Container) -> bytes | None:
    """The task's text: that of the first place which has one; None if there is none."""
    for rule in profile.text:
        text = _text(rule, container)
        if text is not None and (found := _within(text, rule, container)):
            return found
    return None


def with_true_names(rule: FieldRule, container: Container) -> FieldRule:
    """The rule with the names that hold for the data: none, or those of values that are not differences."""
    named, absolute = (_holds(condition, container) for condition in (rule.names_if, rule.absolute_if))
    if named is False:
        return dataclasses.replace(rule, names=())
    return dataclasses.replace(rule, names=tuple(n.removeprefix(DELTA) for n in rule.names)) if absolute else rule


def _holds(condition: tuple[str, str] | None, container: Container) -> bool | None:
    """Whether an attribute contains a pattern; None if there is no condition."""
    if condition is None:
        return None
    place, pattern = condition
    return re.search(pattern.encode(), _text(TextRule("attribute", place), container) or b"") is not None


def find_fact(profile: Profile, container: Container, name: str) -> Any:
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
        content = parse_json(text, f"{container}: {rule.place}")
    except RldsBeamError as error:
        raise ValueError(str(error)) from None
    for key in filter(None, (rule.json or "").split("/")):
        content = content.get(key) if isinstance(content, dict) else None
    return content
