"""Counts that workers add up: dataclasses of numbers with a method `add`, by name."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TypeVar

Counts = TypeVar("Counts", bound="Addable")


class Addable(Protocol):
    """Counts of one thing."""

    def add(self: Counts, other: Counts, /) -> Counts: ...


def merged(parts: Iterable[Mapping[str, Counts]]) -> dict[str, Counts]:
    """The sum by name, in the order in which the names come first."""
    total: dict[str, Counts] = {}
    for part in parts:
        for name, counts in part.items():
            total[name] = total[name].add(counts) if name in total else counts
    return total


def numbers_of(kind: type[Any]) -> tuple[str, ...]:
    """The fields of a dataclass that are numbers."""
    return tuple(field.name for field in dataclasses.fields(kind) if field.default == 0)


def sums(one: Any, *others: Any) -> dict[str, int]:
    """The sum of each number of dataclasses of one kind."""
    return {name: sum(getattr(each, name) for each in (one, *others)) for name in numbers_of(type(one))}


def numbers_from_json(kind: type[Any], content: Mapping[str, Any]) -> dict[str, int]:
    """The numbers of a dataclass, read back from JSON."""
    return {name: operator.index(content[name]) for name in numbers_of(kind)}
