"""Accepted episodes that connectors dropped, counted by connector."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable, Mapping
from typing import Any

from rlds_beam.text import count


@dataclasses.dataclass(frozen=True)
class Dropped:
    """What one connector dropped.

    Attributes:
      records: that gave no output, because it dropped the last of their episodes. Records are written, rejected, or
        dropped by one connector.
      episodes: that it dropped; more than records where other episodes of the same record were kept.
    """

    records: int = 0
    episodes: int = 0

    def add(self, other: Dropped) -> Dropped:
        """The sum."""
        return Dropped(self.records + other.records, self.episodes + other.episodes)


def merge_dropped(parts: Iterable[Mapping[str, Dropped]]) -> dict[str, Dropped]:
    """The sum by connector, in the order of their names."""
    found: dict[str, Dropped] = {}
    for part in parts:
        for name, dropped in part.items():
            found[name] = found.get(name, Dropped()).add(dropped)
    return dict(sorted(found.items()))


def dropped_from_json(content: Mapping[str, Mapping[str, Any]]) -> dict[str, Dropped]:
    """Reads `{name: dataclasses.asdict(dropped)}` back."""
    return {
        str(name): Dropped(**{key: operator.index(number) for key, number in numbers.items()})
        for name, numbers in sorted(content.items())
    }


def dropped_lines(dropped: Mapping[str, Dropped]) -> list[str]:
    """For a summary."""
    lines = []
    for name, found in dropped.items():
        episodes = (
            "" if found.episodes == found.records else f" ({count(found.episodes, 'episode')} of these and others)"
        )
        lines.append(f"dropped   {count(found.records, 'record')} by {name}{episodes}")
    return lines
