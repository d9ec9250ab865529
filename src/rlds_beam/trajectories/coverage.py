"""Counts the steps that are in an item, in closed form (see `items`).

K windows of L frames start every s frames. The number of frames before frame x that are in a window:

    s < L:   min(x, (K - 1) s + L)           the windows overlap, and cover one range from 0
    s >= L:  (x // s) L + min(x % s, L)      for x // s < K, and K L from there on
"""

from __future__ import annotations

from rlds_beam.trajectories.items import item_count
from rlds_beam.trajectories.options import ItemOptions
from rlds_beam.trajectories.unused import UnusedSteps, merge_unused


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
            self._count(steps, covered(steps, items, self._options) if self._options.length else steps, "between_items")
        else:
            self._count(steps, 0, "too_short" if self._options.length else "bypassed")

    def finish(self) -> None:
        """Ends the stream of episodes and counts its steps."""
        items = item_count(self._frames, self._options) if self._stream else 0
        for start, steps in self._stream:
            used = covered(start + steps, items, self._options) - covered(start, items, self._options)
            self._count(steps, used, "between_items" if items else "too_short")
        self._stream, self._frames = [], 0

    def _count(self, steps: int, used: int, reason: str) -> None:
        if used < steps:
            one = UnusedSteps(0 if used else 1, steps - used, 0 if used else steps)
            self.unused = merge_unused([self.unused, {reason: one}])


def covered(x: int, items: int, options: ItemOptions) -> int:
    """The number of frames before frame `x` that are in one of the `items` windows."""
    length, stride = options.length or 0, options.stride
    if not items:
        return 0
    if stride < length:
        return min(x, (items - 1) * stride + length)
    whole = x // stride
    return whole * length + min(x % stride, length) if whole < items else items * length
