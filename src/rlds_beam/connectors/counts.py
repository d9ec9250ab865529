"""The episodes and steps that each connector received and returned; workers add them up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from rlds_beam.checking.verdicts import merge_counts, sums
from rlds_beam.encoding.metadata import Count
from rlds_beam.text import count


class Connected(msgspec.Struct, frozen=True):
    """The episodes and steps that one connector received and returned, and the number of keys in its list, if any."""

    name: str
    episodes_in: Count = 0
    episodes_out: Count = 0
    steps_in: Count = 0
    steps_out: Count = 0
    listed: Count = 0

    def __str__(self) -> str:
        changes = [
            count(after, noun) if before == after else f"{before:,} -> {count(after, noun)}"
            for before, after, noun in (
                (self.episodes_in, self.episodes_out, "episode"),
                (self.steps_in, self.steps_out, "step"),
            )
        ]
        listed = f"; its list has {count(self.listed, 'key')}" if self.listed else ""
        return f"{self.name}: {', '.join(changes)}{listed}"


def merge_connected(parts: Iterable[tuple[Connected, ...]]) -> tuple[Connected, ...]:
    """Adds the counts, connector by connector. A part may lack the last ones if no episodes reached them."""
    total: list[Connected] = []
    for part in parts:
        added = [
            msgspec.structs.replace(one, **sums(one, other) | {"listed": one.listed})
            for one, other in zip(total, part, strict=False)
        ]
        total = [*added, *total[len(added) :], *part[len(added) :]]
    return tuple(total)


def imbalance(episodes: int, steps: int, connected: tuple[Connected, ...]) -> str | None:
    """Checks that each connector received what the one before returned, and the first one all accepted episodes.

    Returns:
      A sentence about the first mismatch; None if the counts add up.
    """
    for counts in connected:
        if (counts.episodes_in, counts.steps_in) != (episodes, steps):
            return (
                f"{counts.name} received {count(counts.episodes_in, 'episode')} with {count(counts.steps_in, 'step')}"
                f", expected {count(episodes, 'episode')} with {count(steps, 'step')}"
            )
        episodes, steps = counts.episodes_out, counts.steps_out
    return None


class Dropped(msgspec.Struct, frozen=True):
    """The episodes and records that one connector dropped.

    Attributes:
      records: the records without output because it dropped the last of their episodes. Every record is written,
        rejected, or dropped by one connector.
      episodes: the episodes that it dropped; more than `records` if other episodes of a record were kept.
    """

    records: Count = 0
    episodes: Count = 0

    def add(self, other: Dropped) -> Dropped:
        """Returns the sum."""
        return Dropped(**sums(self, other))


def merge_dropped(parts: Iterable[Mapping[str, Dropped]]) -> dict[str, Dropped]:
    """Adds the counts by connector, sorted by name."""
    return dict(sorted(merge_counts(parts).items()))


def summary_lines(connected: Iterable[Connected], dropped: Mapping[str, Dropped]) -> list[str]:
    """The lines about connectors for a summary."""
    lines = [f"connector {counts}" for counts in connected]
    for name, lost in dropped.items():
        of_kept = f" ({count(lost.episodes, 'episode')}, some from records that were kept)"
        lines.append(f"dropped   {count(lost.records, 'record')} by {name}{of_kept * (lost.episodes != lost.records)}")
    return lines
