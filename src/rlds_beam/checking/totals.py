"""Adds up the counts of workers: mappings from names to dataclasses with an `add` method."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TypeVar

Counts = TypeVar("Counts", bound="Addable")


class Addable(Protocol):
    """Counts that can be added."""

    def add(self: Counts, other: Counts, /) -> Counts: ...


def merged(parts: Iterable[Mapping[str, Counts]]) -> dict[str, Counts]:
    """Adds the counts by name, in order of first appearance."""
    total: dict[str, Counts] = {}
    for part in parts:
        for name, counts in part.items():
            total[name] = total[name].add(counts) if name in total else counts
    return total


def numbers_of(kind: type[Any]) -> tuple[str, ...]:
    """The numeric fields of a dataclass."""
    return tuple(field.name for field in dataclasses.fields(kind) if field.default == 0)


def sums(one: Any, *others: Any) -> dict[str, int]:
    """The sum of each numeric field of dataclasses of one type."""
    return {name: sum(getattr(each, name) for each in (one, *others)) for name in numbers_of(type(one))}


def numbers_from_json(kind: type[Any], content: Mapping[str, Any]) -> dict[str, int]:
    """Reads the numeric fields of a dataclass from JSON."""
    return {name: operator.index(content[name]) for name in numbers_of(kind)}
