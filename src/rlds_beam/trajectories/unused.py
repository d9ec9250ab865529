"""Counts the steps of accepted episodes that are in no item, by reason."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from rlds_beam.checking.verdicts import merge_counts, numbers_from_json, sums
from rlds_beam.text import count
from rlds_beam.trajectories.items import item_count
from rlds_beam.trajectories.options import ItemOptions

REASONS: dict[str, tuple[str, str]] = {
    "too_short": (
        "the episode has fewer frames than an item",
        "use them with --items=sequences and a smaller --sequence_length, or with --pad_end_of_episodes",
    ),
    "bypassed": ("the episode is longer than --max_sequence_length", "--bypass_partial_episodes skipped them"),
    "no_action": ("the last step of an episode has no action", "keep it with --last_step=keep"),
    "between_items": (
        "the steps are after the last item or between two items",
        "use them with --stride_length=1, or at the end with --pad_end_of_episodes --tile_end_of_episodes",
    ),
}
"""Reason -> its meaning, and advice."""


@dataclasses.dataclass(frozen=True)
class UnusedSteps:
    """The steps that are in no item for one reason.

    Attributes:
      episodes: the number of episodes with no item at all.
      steps: the number of steps in no item, including steps of other episodes.
      longest: the number of steps of the longest of these episodes.
    """

    episodes: int = 0
    steps: int = 0
    longest: int = 0

    def add(self, other: UnusedSteps) -> UnusedSteps:
        """Returns the sum."""
        return UnusedSteps(**{**sums(self, other), "longest": max(self.longest, other.longest)})

    def __str__(self) -> str:
        episodes = f"{count(self.episodes, 'episode')} with no item, " if self.episodes else ""
        return f"{episodes}{count(self.steps, 'step')} in no item"


def merge_unused(parts: Iterable[Mapping[str, UnusedSteps]]) -> dict[str, UnusedSteps]:
    """Adds the counts by reason, in the order of `REASONS`."""
    total = merge_counts(parts)
    return {reason: total[reason] for reason in REASONS if reason in total}


def unused_from_json(content: Mapping[str, Mapping[str, Any]]) -> dict[str, UnusedSteps]:
    """Reads `{reason: dataclasses.asdict(unused)}`."""
    known = [reason for reason in REASONS if reason in content]
    return {reason: UnusedSteps(**numbers_from_json(UnusedSteps, content[reason])) for reason in known}


def unused_lines(unused: Mapping[str, UnusedSteps]) -> list[str]:
    """The lines for a summary."""
    lines = []
    for reason, steps in unused.items():
        meaning, remedy = REASONS[reason]
        if reason == "no_action":
            alone = f" ({count(steps.episodes, 'episode')} without any other step)" if steps.episodes else ""
            last = f"{count(steps.steps, 'last step')} without an action{alone}"
            lines.append(f"left out  {last}; --last_step=keep keeps {'it' if steps.steps == 1 else 'them'}")
            continue
        lines += [f"unused    {steps} ({reason}: {meaning})", f"    {remedy}"]
    return lines


class Coverage:
    """Counts the steps of one range that are in no item.

    Attributes:
      unused: the steps in no item, by reason (`trajectories.unused.REASONS`); with `across_episodes`, set by `finish`.
    """

    def __init__(self, options: ItemOptions):
        self._options = options
        self._stream: list[tuple[int, int]] = []
        self._frames = 0
        self.unused: dict[str, UnusedSteps] = {}

    def add(self, steps: int, frames: int) -> None:
        """Counts an episode; its recorded steps are the first of its frames."""
        if self._options.across_episodes:
            self._stream.append((self._frames, steps))
            self._frames += frames
            return
        items = item_count(frames, self._options)
        if items:
            self._count(
                steps, count_covered(steps, items, self._options) if self._options.length else steps, "between_items"
            )
        else:
            self._count(steps, 0, "too_short" if self._options.length else "bypassed")

    def finish(self) -> None:
        """Ends the stream of episodes and counts its steps."""
        items = item_count(self._frames, self._options) if self._stream else 0
        for start, steps in self._stream:
            used = count_covered(start + steps, items, self._options) - count_covered(start, items, self._options)
            self._count(steps, used, "between_items" if items else "too_short")
        self._stream, self._frames = [], 0

    def _count(self, steps: int, used: int, reason: str) -> None:
        if used < steps:
            one = UnusedSteps(0 if used else 1, steps - used, 0 if used else steps)
            self.unused = merge_unused([self.unused, {reason: one}])


def count_covered(x: int, items: int, options: ItemOptions) -> int:
    """The number of frames before frame `x` that are in one of the `items` windows."""
    length, stride = options.length or 0, options.stride
    if not items:
        return 0
    if stride < length:
        return min(x, (items - 1) * stride + length)
    whole = x // stride
    return whole * length + min(x % stride, length) if whole < items else items * length
