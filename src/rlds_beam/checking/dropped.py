"""Counts accepted episodes that connectors dropped, by connector."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from rlds_beam.checking.totals import merged, numbers_from_json, sums
from rlds_beam.text import count


@dataclasses.dataclass(frozen=True)
class Dropped:
    """What one connector dropped.

    Attributes:
      records: the records without output because it dropped the last of their episodes. Every record is written,
        rejected, or dropped by one connector.
      episodes: the episodes that it dropped; more than `records` if other episodes of a record were kept.
    """

    records: int = 0
    episodes: int = 0

    def add(self, other: Dropped) -> Dropped:
        """Returns the sum."""
        return Dropped(**sums(self, other))


def merge_dropped(parts: Iterable[Mapping[str, Dropped]]) -> dict[str, Dropped]:
    """Adds the counts by connector, sorted by name."""
    return dict(sorted(merged(parts).items()))


def dropped_from_json(content: Mapping[str, Mapping[str, Any]]) -> dict[str, Dropped]:
    """Reads `{name: dataclasses.asdict(dropped)}`."""
    return {str(name): Dropped(**numbers_from_json(Dropped, one)) for name, one in sorted(content.items())}


def dropped_lines(dropped: Mapping[str, Dropped]) -> list[str]:
    """The lines for a summary."""
    lines = []
    for name, counts in dropped.items():
        episodes = (
            ""
            if counts.episodes == counts.records
            else f" ({count(counts.episodes, 'episode')}, some from records that were kept)"
        )
        lines.append(f"dropped   {count(counts.records, 'record')} by {name}{episodes}")
    return lines
