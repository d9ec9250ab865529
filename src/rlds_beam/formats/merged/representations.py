"""Compares how datasets represent the values of a field, and proposes connectors that make it the same."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from rlds_beam.episodes.representations import Dimension, Representation
from rlds_beam.episodes.schema import Field


class RepresentationsDifferError(ValueError):
    """Values of one field that are known to be represented differently."""


def propose_conversions(path: str, own: Representation | None, wanted: Representation | None) -> list[str]:
    """The connectors, as YAML, that convert a field from one representation to another; none if either is unknown."""
    if own is None or wanted is None:
        return []
    entries = []
    frames = {own.frame, wanted.frame} - {None}
    references = {own.relative_to, wanted.relative_to}
    if not references & {None, "unknown"} and (len(references) > 1 or len(frames) > 1):
        for name, known in (("AbsoluteActions", own), ("RelativeActions", wanted)):
            entries.append(f"{name}: {{{_arguments(path, own, known)}}}")
    pairs = zip(own.rotations, wanted.rotations, strict=False)
    changes = [(start, old, new) for (start, old), (_, new) in pairs if old != new]
    together = len({(old, new) for _, old, new in changes}) == 1
    for part in [changes] if together else [[change] for change in reversed(changes)]:  # the last first: others move
        _, old, new = part[0]
        starts = [start for start, *_ in part]
        entries.append(f"ConvertRotation: {{field: {path}, from: {old}, to: {new}, at: {_at(starts)}}}")
    return entries


def _arguments(path: str, own: Representation, known: Representation) -> str:
    """The arguments of a connector for an action with the rotations of `own` and the reference of `known`."""
    arguments: dict[str, Any] = {"to": known.relative_to, "absolute": [*own.absolute] or None}
    if own.rotations:
        rotation = own.rotations[0][1]
        starts = [start for start, name in own.rotations if name == rotation]
        arguments |= {"rotation": rotation, "at": _at(starts), "frame": known.frame}
        if known.frame == "hand":  # x, y, z are usually before the rotation
            arguments["position"] = _at([max(start - 3, 0) for start in starts])
    arguments["action"] = None if path == "action" else path
    return ", ".join(f"{name}: {value}" for name, value in arguments.items() if value is not None)


def _at(starts: Sequence[int]) -> int | list[int]:
    return starts[0] if len(starts) == 1 else [*starts]


def merge_representations(fields: Sequence[Field], places: Sequence[tuple[int, ...] | None]) -> Representation | None:
    """What all datasets that have a value say of it.

    Args:
      fields: the field of each dataset.
      places: for each value of the result, the index of the dataset's value, or -1; None if they stay.

    Raises:
      RepresentationsDifferError: two of them contradict each other.
    """
    rows: list[list[Dimension | None]] = []
    for field, place in zip(fields, places, strict=True):
        values = field.dimensions
        rows.append([*values] if place is None else [None if i < 0 else values[i] for i in place])
    if not any(value and value != Dimension() for row in rows for value in row):
        return None
    arranged = [Representation.join([value or Dimension() for value in row]) for row in rows]
    turned = [known.rotations for known in arranged if known is not None and known.rotations]
    if any(len(one) == len(other) and one != other for one, other in itertools.combinations(turned, 2)):
        raise RepresentationsDifferError
    return Representation.join([_merge([value for value in values if value]) for values in zip(*rows, strict=True)])


def _merge(values: Sequence[Dimension]) -> Dimension:
    for one, other in itertools.combinations(values, 2):
        turned = one.rotation is not None and other.rotation is not None
        if (turned and one[:2] != other[:2]) or not _same_reference(one, other):
            raise RepresentationsDifferError
    merged = values[0]
    if len({value[:2] for value in values}) > 1:
        merged = merged.straighten()
    if len({value.relative_to for value in values}) > 1:
        merged = merged._replace(relative_to="unknown")
    return merged if len({value.frame for value in values}) == 1 else merged._replace(frame=None)


def _same_reference(one: Dimension, other: Dimension) -> bool:
    """Whether two values may both be differences, or both none: what is not said to be a difference is absolute."""
    if one.relative_to is None or other.relative_to is None:
        return one.relative_to == other.relative_to
    return one.relative_to == other.relative_to or "unknown" in (one.relative_to, other.relative_to)
