"""Steps of accepted episodes that are in no item, and why: nothing is left out without a word."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from rlds_beam.checking.totals import merged, numbers_from_json, sums
from rlds_beam.text import count

REASONS: dict[str, tuple[str, str]] = {
    "too_short": (
        "the episode has fewer frames than an item",
        "--items=sequences with a smaller --sequence_length takes them, --pad_end_of_episodes fills them up",
    ),
    "bypassed": ("the episode is longer than --max_sequence_length", "--bypass_partial_episodes left them out"),
    "between_items": (
        "the steps are after the last item or between two",
        "--stride_length=1 takes all, --pad_end_of_episodes with --tile_end_of_episodes those at the end",
    ),
}
"""What each reason means, and what can be done."""


@dataclasses.dataclass(frozen=True)
class UnusedSteps:
    """What is in no item for one reason.

    Attributes:
      episodes: that gave no item at all.
      steps: of these and of other episodes, that are in no item.
      longest: steps of the longest of these episodes.
    """

    episodes: int = 0
    steps: int = 0
    longest: int = 0

    def add(self, other: UnusedSteps) -> UnusedSteps:
        """The sum."""
        return UnusedSteps(**{**sums(self, other), "longest": max(self.longest, other.longest)})

    def __str__(self) -> str:
        episodes = f"{count(self.episodes, 'episode')} with no item, " if self.episodes else ""
        return f"{episodes}{count(self.steps, 'step')} in no item"


def merge_unused(parts: Iterable[Mapping[str, UnusedSteps]]) -> dict[str, UnusedSteps]:
    """The sum by reason, in the order of `REASONS`."""
    total = merged(parts)
    return {reason: total[reason] for reason in REASONS if reason in total}


def unused_from_json(content: Mapping[str, Mapping[str, Any]]) -> dict[str, UnusedSteps]:
    """Reads `{reason: dataclasses.asdict(unused)}` back."""
    known = [reason for reason in REASONS if reason in content]
    return {reason: UnusedSteps(**numbers_from_json(UnusedSteps, content[reason])) for reason in known}


def unused_lines(unused: Mapping[str, UnusedSteps]) -> list[str]:
    """For a summary."""
    lines = []
    for reason, steps in unused.items():
        meaning, remedy = REASONS[reason]
        lines += [f"unused    {steps} ({reason}: {meaning})", f"    {remedy}"]
    return lines
