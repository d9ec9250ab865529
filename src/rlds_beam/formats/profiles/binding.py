"""Binds a profile to the arrays of an episode: wildcards become names, and each array a field."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from rlds_beam.episodes.schema import Field, by_path, text_field
from rlds_beam.errors import UsageError
from rlds_beam.formats.arrays.array_episodes import number_field
from rlds_beam.formats.profiles.model import RESERVED, FieldRule, Profile
from rlds_beam.images.headers import UndecodableImageError, read_image_header

_MIN_IMAGE_PIXELS = 16  # pixels of a side


class Leaf(NamedTuple):
    """An array of a file.

    Attributes:
      shape: its shape, with rows.
      dtype: its dtype; object for text and bytes.
      readable: whether its values can be read: not lists of numbers or references.
      chunk: the rows that are compressed together, so that reading one of them reads them all.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    readable: bool = True
    chunk: int = 1


class Bound(NamedTuple):
    """A step field and its array.

    Attributes:
      field: the field.
      name: the array's name.
      rule: the rule of the profile.
      final: the array whose last row is the value of the last step; None if there is none.
    """

    field: Field
    name: str
    rule: FieldRule
    final: str | None = None

    @property
    def encoded(self) -> bool:
        """Whether the rows are, or become, bytes of images."""
        return self.field.encoding in ("png", "jpeg")

    def has_pixels(self, leaf: Leaf) -> bool:
        """Whether an episode's array holds frames of pixels that become PNGs."""
        field = self.field
        return field.encoding == "png" and leaf.dtype == field.dtype and leaf.shape[1:] == field.shape


def matches(pattern: str, names: Collection[str]) -> list[tuple[str, tuple[str, ...]]]:
    """The names that match a pattern, with what its wildcards stand for."""
    parts = re.split(r"(\*\*|\*)", pattern.strip("/"))
    expression = "".join({"*": "([^/]+)", "**": "(.+)"}.get(part, re.escape(part)) for part in parts)
    found = ((name, re.fullmatch(expression, name)) for name in names)
    return [(name, match.groups()) for name, match in found if match]


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
            why = _unusable(leaves[name]) or ("has the name of another field" if rule.wild and path in RESERVED else "")
            if why and rule.wild:
                notes.append(f"{name} {why}: left out")
            elif why:
                raise UsageError(f"{where}: {name} {why}")
            else:
                field = _field(path, leaves[name], rule, first, name).with_names(rule.names)
                if rule.names and not field.names:
                    notes.append(f"{name} does not have the {len(rule.names)} values that the profile names: not named")
                bound.append(Bound(field, name, rule))
    bound, odd = _of_equal_rows(bound, leaves)
    notes += odd
    by_path((binding.field for binding in bound), where)
    for top in ("observation", "action"):
        if not any(binding.field.path.split("/")[0] == top for binding in bound):
            raise UsageError(f"{where}: no array becomes {top} in profile {profile.name}")
    return _with_final(profile, bound, leaves), notes


def _of_equal_rows(bound: list[Bound], leaves: Mapping[str, Leaf]) -> tuple[list[Bound], list[str]]:
    """Leaves out optional arrays without a row for each action, with notes."""
    counts = [len(range(leaves[binding.name].shape[0])[binding.rule.start : binding.rule.stop]) for binding in bound]
    rows = next((n for n, one in zip(counts, bound, strict=True) if one.field.path.split("/")[0] == "action"), 0)
    odd = [one.name for n, one in zip(counts, bound, strict=True) if n != rows and one.rule.optional]
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
    except UndecodableImageError:
        return Field(path, dtype, (None, None, channels), encoding, "Image")
    return Field(path, dtype, (header.height, header.width, channels), encoding, "Image")
