"""Counts what each connector did to the accepted episodes, and which listed keys were found; workers add them up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from rlds_beam.checking.verdicts import merge_counts, sums
from rlds_beam.encoding.metadata import Count
from rlds_beam.text import count, some


class Connected(msgspec.Struct, frozen=True):
    """The counts of one connector.

    Attributes:
      name: the connector's name, also used by `dropped` in the report.
      arguments: the arguments that differ from the defaults, as text.
      episodes_in, episodes_out: the episodes that it received and returned.
      steps_in, steps_out: their steps.
      dropped: the episodes that it dropped.
      changed: the episodes that it returned with other values, fields, or steps.
      fields: the names of the fields that it changed, added, or removed, if the steps stayed the same.
      columns: the names of the columns that it added.
      listed: the keys of its list of episodes, and those found; None if it has no list.
    """

    name: str
    arguments: str = ""
    episodes_in: Count = 0
    episodes_out: Count = 0
    steps_in: Count = 0
    steps_out: Count = 0
    dropped: Count = 0
    changed: Count = 0
    fields: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    listed: Listed | None = None

    def add(self, other: Connected) -> Connected:
        """The sum of two counts of the same connector."""
        if self.name != other.name:
            raise ValueError(f"cannot add counts of {self.name} and {other.name}")
        unions = {name: _union(getattr(self, name), getattr(other, name)) for name in _SETS}
        total: dict[str, Any] = {**sums(self, other), **unions}
        if self.listed is not None and other.listed is not None:
            total["listed"] = self.listed.add(other.listed)
        return msgspec.structs.replace(self, **total)

    @property
    def title(self) -> str:
        """`MinimumLength(transitions=10)`."""
        return f"{self.name}({self.arguments})" if self.arguments else self.name

    def __str__(self) -> str:
        episodes = _change(self.episodes_in, self.episodes_out, "episode")
        parts = [f"{episodes} ({self.dropped:,} dropped)" if self.dropped else episodes]
        if self.steps_in != self.steps_out:
            parts.append(_change(self.steps_in, self.steps_out, "step"))
        if self.changed:
            fields = f" in {some(self.fields)}" if self.fields else ""
            parts.append(f"{self.changed:,} changed{fields}")
        elif not self.columns and not self.dropped:
            parts.append("none changed")
        if self.columns:
            parts.append(f"columns {some(self.columns)} added")
        return f"{self.title}: {', '.join(parts)}"


_SETS = ("fields", "columns")


def _union(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    return one if one == other else tuple(sorted({*one, *other}))


def _change(before: int, after: int, noun: str) -> str:
    return count(after, noun) if before == after else f"{before:,} -> {count(after, noun)}"


def merge_connected(parts: Iterable[tuple[Connected, ...]]) -> tuple[Connected, ...]:
    """Adds the counts, connector by connector. A part may lack the last ones if no episodes reached them."""
    total: list[Connected] = []
    for part in parts:
        total[: len(part)] = [total[i].add(counts) if i < len(total) else counts for i, counts in enumerate(part)]
    return tuple(total)


def connected_lines(connected: Iterable[Connected]) -> list[str]:
    """The lines for a summary; connectors that only add columns are left out."""
    lines = [f"connector {counts}" for counts in connected if counts.changed or counts.dropped or not counts.columns]
    return [*lines, *listed_lines((counts.name, counts.listed) for counts in connected if counts.listed is not None)]


def imbalance(episodes: int, steps: int, connected: tuple[Connected, ...]) -> str | None:
    """Checks that each connector received what the one before returned, and the first one all accepted episodes.

    Returns:
      A sentence about the first mismatch; None if the counts add up.
    """
    for counts in connected:
        if (counts.episodes_in, counts.steps_in) != (episodes, steps):
            return (
                f"{counts.title} received {count(counts.episodes_in, 'episode')} with {count(counts.steps_in, 'step')}"
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


class Run(NamedTuple):
    """Adjacent keys of the sorted list that were all found.

    Attributes:
      start, stop: their positions in the list, [start, stop).
      next: the key at `stop`; empty at the end of the list.
    """

    start: int
    stop: int
    next: str


class Listed(msgspec.Struct, frozen=True):
    """The keys of a list, and those that a record had which was read.

    Attributes:
      keys: the number of keys.
      first: the first key of the sorted list; empty if it has none.
      found: the keys found, in order; adjacent ones are one run.
    """

    keys: int = 0
    first: str = ""
    found: tuple[Run, ...] = ()

    def add(self, other: Listed) -> Listed:
        """Returns the union of what was found; order does not matter."""
        if not other.found or self.found == other.found:
            return self
        found: list[Run] = []
        for run in sorted((*self.found, *other.found)):
            if found and run.start <= found[-1].stop:
                if run.stop > found[-1].stop:
                    found[-1] = Run(found[-1].start, run.stop, run.next)
            else:
                found.append(run)
        return msgspec.structs.replace(self, found=tuple(found))

    @property
    def missing(self) -> int:
        """The number of keys that no record had."""
        return self.keys - sum(run.stop - run.start for run in self.found)

    @property
    def example(self) -> str:
        """The first key that no record had; empty if all were found."""
        return self.found[0].next if self.found and self.found[0].start == 0 else self.first


def listed_lines(listed: Iterable[tuple[str, Listed]]) -> list[str]:
    """The lines of a summary about keys that were not found.

    Args:
      listed: the name of each connector that has a list, and its counts.
    """
    return [
        f"not found {entry.missing:,} of {count(entry.keys, 'key')} of {name}: no record read has them, for example "
        f"{entry.example}"
        for name, entry in listed
        if entry.missing
    ]
