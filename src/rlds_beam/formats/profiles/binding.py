"""Binds a profile to the arrays of the first episode: each array becomes a field."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np

from rlds_beam.episodes.representations import DELTA
from rlds_beam.episodes.schema import FLAGS, Field, by_path, text_field
from rlds_beam.errors import UsageError
from rlds_beam.formats.arrays.array_episodes import FLAG_FIELDS, as_images, image_field, number_field
from rlds_beam.formats.profiles.containers import Container, Leaf, matches
from rlds_beam.formats.profiles.facts import holds
from rlds_beam.formats.profiles.model import RECORDED, RESERVED, FieldRule, Profile
from rlds_beam.typing import Array

_MIN_IMAGE_PIXELS = 8  # pixels of a side


class Bound(NamedTuple):
    """A step field and its array.

    Attributes:
      field: the field.
      name: the array's name, or that of joined arrays (`obs/a+b`).
      rule: the rule of the profile.
      parts: the arrays that are joined; usually one.
      final: the arrays whose last rows are the value of the last step; None if there are none.
      frames: how frames of pixels are encoded.
    """

    field: Field
    name: str
    rule: FieldRule
    parts: tuple[str, ...]
    final: tuple[str, ...] | None = None
    frames: str = "png"

    @property
    def encoded(self) -> bool:
        """Whether the rows are, or become, bytes of images."""
        return self.field.holds_image_files

    def has_pixels(self, leaf: Leaf) -> bool:
        """Whether an episode's array holds frames of pixels that become images."""
        field = self.field
        return field.encoding == self.frames and leaf.dtype == field.dtype and leaf.shape[1:] == field.shape


def read_joined(container: Container, parts: Iterable[str], rows: slice | None = None) -> Array:
    """The rows of an array, or of several side by side."""
    arrays = [container.read(part, rows) for part in parts]
    if len(arrays) == 1:
        return arrays[0]
    return np.concatenate([array.reshape(len(array), -1) for array in arrays], axis=1)


def bind(profile: Profile, first: Container, raw_images: str) -> tuple[tuple[Bound, ...], list[str]]:
    """The step fields of an episode, and notes about arrays that were skipped.

    Args:
      profile: the profile.
      first: the episode.
      raw_images: how to keep frames of pixels.

    Raises:
      UsageError: a dataset is missing, or its values cannot be a field.
    """
    bound: list[Bound] = []
    notes: list[str] = []
    taken = {rule.dataset for rule in profile.fields.values() if not rule.wild} | profile.roles
    taken |= {name for names in taken for name in names.split("|")}
    for pattern, rule in profile.fields.items():
        rule = _with_true_names(rule, first)
        found = _find_arrays(rule.dataset, first.leaves)
        if not found and not rule.may_lack:
            raise UsageError(f"{first}: there is no {rule.dataset}, which profile {profile.name} reads as {pattern}")
        for name, wildcards, parts in found:
            if rule.wild and name in taken:
                continue
            taken.add(name)
            fill = iter(wildcards)
            path = re.sub(r"\*\*|\*", lambda _: next(fill), pattern)  # noqa: B023
            path = path.replace(profile.strip, "") if profile.strip else path
            leaf = _join(parts, first.leaves)
            why = _unusable(leaf)
            if rule.wild and path in (*RESERVED, *FLAGS):
                why = "has the name of another field"
            if why and rule.wild:
                notes.append(f"{name} {why}: left out")
            elif why:
                raise UsageError(f"{first}: {name} {why}")
            else:
                field = _field(path, leaf, rule, first, parts)
                field = field.with_names(_repeat(rule.names, field) if rule.per_robot else rule.names)
                if rule.names and not field.names:
                    notes.append(f"{name} does not have the {len(rule.names)} values that the profile names: not named")
                if leaf.dtype.kind == "f" and _has_image_shape(leaf.shape[1:]):
                    notes.append(f"{name} holds images of {leaf.dtype.name} (read as an array)")
                image = as_images(field, raw_images)
                bound.append(Bound(image, name, rule, parts, None, "png" if image == field else image.encoding))
    bound = _leave_out_odd(bound, first.leaves, 1 if profile.last_step == RECORDED else 0, notes)
    by_path((binding.field for binding in bound), str(first))
    if not any(of_action(binding.field.path) for binding in bound):
        if not profile.episode_ends:
            raise UsageError(f"{first}: no array becomes action in profile {profile.name}")
        notes.append("no action (see NextStateAsAction)")
    if not any(binding.field.path.split("/")[0] == "observation" for binding in bound):
        raise UsageError(f"{first}: no array becomes observation in profile {profile.name}")
    return _with_final(profile, bound, first.leaves), notes


def of_action(path: str) -> bool:
    """Whether a field is the action, or a part of it."""
    return path.split("/")[0] == "action"


def _find_arrays(dataset: str, leaves: Mapping[str, Leaf]) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """The name of each array of a rule, what its wildcards stand for, and the arrays that are joined."""
    if "+" in dataset:
        group, _, last = dataset.rpartition("/")
        parts = [f"{group}/{part}".lstrip("/") for part in last.split("+")]
        found = tuple(part.rstrip("?") for part in parts if not part.endswith("?") or part.rstrip("?") in leaves)
        own = [leaves[part] for part in found if part in leaves]
        fits = all(not leaf.trouble and len(leaf.shape) in (1, 2) and leaf.dtype.kind in "biuf" for leaf in own)
        joins = len(own) == len(found) and fits and len({leaf.shape[0] for leaf in own}) == 1
        return [(dataset, (), found)] if joins else []
    for name in dataset.split("|"):
        if found_names := matches(name, leaves):
            return [(name, wildcards, (name,)) for name, wildcards in found_names]
    return []


def find_role(place: str, leaves: Mapping[str, Leaf]) -> str:
    """The array of `reward` or `discount`: of `a|b`, the first that there is."""
    return next((name for name in place.split("|") if name in leaves), place)


def _join(parts: tuple[str, ...], leaves: Mapping[str, Leaf]) -> Leaf:
    own = [leaves[part] for part in parts]
    if len(own) == 1:
        return own[0]
    width = sum(math.prod(leaf.shape[1:]) for leaf in own)
    return Leaf((own[0].shape[0], width), np.result_type(*(leaf.dtype for leaf in own)))


def _with_true_names(rule: FieldRule, container: Container) -> FieldRule:
    """The rule with the names that hold for the data: none, or those of values that are not differences."""
    if rule.names_if is not None and not holds(rule.names_if, container):
        return msgspec.structs.replace(rule, names=())
    if rule.absolute_if is not None and holds(rule.absolute_if, container):
        return msgspec.structs.replace(rule, names=tuple(name.removeprefix(DELTA) for name in rule.names))
    return rule


def _repeat(names: tuple[str, ...], field: Field) -> tuple[str, ...]:
    """The names for a vector of several robots, `robot0_x`; for one robot, as they are."""
    robots, rest = divmod(field.known_size, len(names) or 1)
    if rest or robots < 2:
        return names
    return tuple(f"robot{i}_{name}" for i in range(robots) for name in names)


def _leave_out_odd(bound: list[Bound], leaves: Mapping[str, Leaf], more: int, notes: list[str]) -> list[Bound]:
    """Leaves out optional arrays without a row for each action (or up to `more` rows), with notes."""
    counts = [len(range(leaves[binding.parts[0]].shape[0])[binding.rule.rows]) for binding in bound]
    rows = next((n for n, binding in zip(counts, bound, strict=True) if of_action(binding.field.path)), None)
    kept = []
    for n, binding in zip(counts, bound, strict=True):
        if rows is None or rows <= n <= rows + more or not binding.rule.may_lack:
            kept.append(binding)
        else:
            notes.append(f"{binding.name} has {leaves[binding.parts[0]].shape[0]} rows, not {rows}: left out")
    return kept


def _with_final(profile: Profile, bound: list[Bound], leaves: Mapping[str, Leaf]) -> tuple[Bound, ...]:
    """Adds the arrays of the last observation, if there are some for all observations."""
    with_final = []
    for binding in bound:
        final = None
        group = next((group for group in profile.final if f"{binding.name}/".startswith(f"{group}/")), None)
        if group is not None:
            later = tuple(profile.final[group] + part[len(group) :] for part in binding.parts)
            final = later if all(name in leaves for name in later) else None
        with_final.append(binding._replace(final=final))
    observations = [binding for binding in with_final if binding.field.path.startswith("observation")]
    return tuple(with_final if all(observation.final for observation in observations) else bound)


def _unusable(leaf: Leaf) -> str:
    if leaf.trouble:
        return leaf.trouble
    if not leaf.shape:
        return "has no rows"
    if 0 in leaf.shape[1:]:
        return f"has the shape {list(leaf.shape)}"
    if leaf.dtype.kind not in "biufOSU":
        return f"holds {leaf.dtype} values"
    return ""


def _field(path: str, leaf: Leaf, rule: FieldRule, first: Container, parts: tuple[str, ...]) -> Field:
    shape = leaf.shape[1:]
    if path in FLAGS:
        return FLAG_FIELDS[path]
    if rule.images and leaf.dtype == np.uint8 and _has_image_shape(shape):
        return Field(path, "uint8", shape, "bytes", "Tensor")
    is_bytes = leaf.dtype.kind in "OS" and not shape
    if rule.images and leaf.shape[0] and (is_bytes or (leaf.dtype == np.uint8 and len(shape) == 1)):
        row = stored_bytes(first.read(parts[0], slice(0, 1))[0])
        image = image_field(path, row.rstrip(b"\0"))
        if image is not None:
            return image
        for raw in rule.raw_shapes:
            if len(row) == math.prod(raw):
                return Field(path, "uint8", raw, "bytes", "Tensor")
    if leaf.dtype.kind in "OSU":
        return text_field(path, shape)
    return number_field(path, leaf.dtype.name, shape)


def _has_image_shape(shape: tuple[int, ...]) -> bool:
    """Whether a row is a frame, [H, W, C]."""
    return len(shape) == 3 and min(shape[:2]) >= _MIN_IMAGE_PIXELS and shape[2] in (1, 3, 4)


def row_bytes(row: Any) -> bytes:
    """A row of an array as bytes, without the zeros that pad it.

    JPEGs end with FF D9 and PNGs with AE 42 60 82, so no byte of an image is lost.
    """
    return stored_bytes(row).rstrip(b"\0")


def stored_bytes(row: Any) -> bytes:
    """A row of an array as bytes."""
    return row.tobytes() if isinstance(row, np.ndarray) else row.encode() if isinstance(row, str) else bytes(row)
