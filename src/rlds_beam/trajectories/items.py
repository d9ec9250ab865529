"""Items: which frames form one training item, as in TF-Agents' Reverb observers, and which steps are in none.

The number of items is known before any is created. For an episode of n frames, items of L frames, stride s, and the
padding frame P, items start at i = 0, s, 2s, ...:

- `pairs`, `sequences` (ReverbAddTrajectoryObserver): all i with i + L <= n. With `pad_end_of_episodes`, an episode with
  n < L becomes the item f0 ... f(n-1) P ... P; longer episodes are not padded, so a tail shorter than the stride is
  lost. With `tile_end_of_episodes`, all i < n, padded with P.
- `sequences` with `across_episodes` (ReverbTrajectorySequenceObserver): the same windows over the stream of all
  episodes of a shard, padded or tiled once, at the end of the shard. Not copied: the observer's `reset(True)` writes
  its last item twice if the stream ends with an item, and raises otherwise.
- `episodes` (ReverbAddEpisodeObserver): all n frames, if n <= max_sequence_length.
- `frames`: each frame by itself.

P is `frames.padding_frames`: all zeros, with step_type LAST and next_step_type FIRST.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import numpy as np

from rlds_beam.checking.verdicts import merge_counts, sums
from rlds_beam.encoding.metadata import Count
from rlds_beam.episodes.episode import Column, EpisodeKey
from rlds_beam.errors import BadEpisode, UsageError, Violation
from rlds_beam.text import count
from rlds_beam.trajectories.frames import Frames, pad_column
from rlds_beam.trajectories.options import ItemOptions

Index = np.ndarray[Any, np.dtype[np.int64]]

PAD = -1
"""The padding frame P in an index; it is the last frame if it is needed."""


def item_count(n_frames: int, options: ItemOptions) -> int:
    """The number of items from n frames: `len(windows(n_frames, options))`, without creating them.

    With `across_episodes`, n_frames is the number of frames of the whole shard.
    """
    if options.items == "episodes":
        return int(n_frames > 0 and not _too_long(n_frames, options))
    length, stride = _length(options), options.stride
    if options.tile_end_of_episodes:
        return -(-n_frames // stride)
    if n_frames < length:
        return int(options.pad_end_of_episodes and n_frames > 0)
    return (n_frames - length) // stride + 1


def windows(n_frames: int, options: ItemOptions) -> Index:
    """The frames of each item: int64 [K, L] of frame indices, `PAD` for the padding frame.

    L is 1 for single frames, and n_frames for whole episodes. An episode longer than `max_sequence_length` has no
    items.
    """
    return Windows.from_frames(n_frames, options).index()


def predict_items(n_frames: Iterable[int], options: ItemOptions) -> int:
    """The number of items from episodes with these numbers of frames (`frames.frame_count`).

    With `across_episodes`, pass the episodes of one shard, and add up the shards.
    """
    if options.across_episodes:
        return item_count(sum(n_frames), options)
    return sum(item_count(n, options) * times for n, times in Counter(n_frames).items())


@dataclasses.dataclass(frozen=True, slots=True)
class Windows:
    """Windows over frames, in closed form: window k starts at frame `start + k * stride`.

    Attributes:
      start: the first frame of the first window.
      count: the number of windows, K.
      length: the number of frames in a window, L.
      stride: the number of frames between the starts of two windows.
      frames: the number of frames; a window that goes past them continues with padding frames.
    """

    start: int
    count: int
    length: int
    stride: int
    frames: int

    @classmethod
    def from_frames(cls, n_frames: int, options: ItemOptions) -> Windows:
        """Returns the windows of an episode; see `windows`."""
        length = n_frames if options.items == "episodes" else _length(options)
        return cls(0, item_count(n_frames, options), length, options.stride, n_frames)

    @property
    def padding(self) -> int:
        """The number of padding frames needed to complete all windows."""
        return max(0, self.start + (self.count - 1) * self.stride + self.length - self.frames) if self.count else 0

    def index(self) -> Index:
        """The frame indices, int64 [K, L]; `PAD` is the padding frame."""
        starts = np.arange(self.start, self.start + self.count * self.stride, self.stride, dtype=np.int64)
        index: Index = starts[:, None] + np.arange(self.length, dtype=np.int64)
        if self.padding:
            index[index >= self.frames] = PAD
        return index


@dataclasses.dataclass(frozen=True)
class Items:
    """K items over some frames.

    Attributes:
      frames: the frames; with `across_episodes`, a part of the stream.
      windows: the frames of each item.
      payload: the record of the episode as read, to keep it if the items cannot be written; empty if not known.
    """

    frames: Frames
    windows: Windows
    payload: bytes = dataclasses.field(default=b"", repr=False)

    def __len__(self) -> int:
        """The number of items, K."""
        return self.windows.count

    @property
    def key(self) -> EpisodeKey:
        """The key of the episode; its `split` is that of the items."""
        return self.frames.key

    def with_columns(self, columns: Mapping[str, Column]) -> Items:
        """Returns the items with more leaves, or other values; declare new leaves with `TrajectorySpec.with_columns`.

        Args:
          columns: path (`policy_info/speed`) -> values with leading axis n, the frames of the episode.

        Raises:
          UsageError: a column has another length.
        """
        for path, column in columns.items():
            if len(column) != len(self.frames):
                raise UsageError(f"{path} has {len(column)} values, but the episode has {len(self.frames)} frames")
        frames = dataclasses.replace(self.frames, columns={**self.frames.columns, **columns})
        return dataclasses.replace(self, frames=frames)

    @functools.cached_property
    def index(self) -> Index:
        """The frame indices, int64 [K, L]; `PAD` is the padding frame."""
        return self.windows.index()

    def gather(self, path: str) -> Column:
        """Returns one leaf of all items: an array [K, L, ...], or EncodedImages whose `data` is [K, L]."""
        # PAD = -1 points to one padding frame at the end.
        return pad_column(path, self.frames[path], min(1, self.windows.padding))[self.index]


class ItemMaker:
    """Creates the items of the episodes of one shard, pushed in order.

    `push` returns complete items, and `finish` the rest at the end of the shard; then the maker can be reused. Frames
    are kept between pushes only with `across_episodes`: at most L - 1. Otherwise `finish` returns nothing, and episodes
    can be pushed in any order.
    """

    def __init__(self, options: ItemOptions):
        self._options = options
        self._reset()

    def _reset(self) -> None:
        self._tail: Frames | None = None  # the frames from the next start; fewer than L
        self._skip = 0  # the number of frames before the next start
        self._seen = 0

    def push(self, frames: Frames) -> Items:
        """Returns the items that these frames complete; there are none of an episode that is too short or bypassed.

        With `across_episodes`, their `frames` start with those kept of earlier episodes.

        Raises:
          BadEpisode: it is longer than `max_sequence_length`, and `bypass_partial_episodes` is not set.
        """
        options = self._options
        if not options.across_episodes:
            check_length(len(frames), options)
            return Items(frames, Windows.from_frames(len(frames), options))
        length, stride = _length(options), options.stride
        self._seen += len(frames)
        buffer = frames if self._tail is None else self._tail.append(frames)
        count = max(0, (len(buffer) - self._skip - length) // stride + 1)
        windows = Windows(self._skip, count, length, stride, len(buffer))
        start = self._skip + count * stride
        self._tail = buffer.slice(start) if start < len(buffer) else None
        self._skip = max(0, start - len(buffer))
        return Items(buffer, windows)

    def finish(self) -> Items | None:
        """Returns the items that are complete only at the end of the shard, padded if requested, or None."""
        tail, seen, options = self._tail, self._seen, self._options
        self._reset()
        if tail is None or not options.pad_end_of_episodes:
            return None
        if not options.tile_end_of_episodes and seen >= _length(options):
            return None
        return Items(tail, Windows.from_frames(len(tail), options))


def _length(options: ItemOptions) -> int:
    assert options.length is not None  # whole episodes are handled before
    return options.length


def check_length(n_frames: int, options: ItemOptions) -> None:
    """Raises BadEpisode if an episode is longer than `max_sequence_length`, unless `bypass_partial_episodes` is set."""
    if _too_long(n_frames, options) and not options.bypass_partial_episodes:
        detail = f"{n_frames} frames, more than --max_sequence_length={options.max_sequence_length}"
        raise BadEpisode(Violation("too_long", detail))


def _too_long(n_frames: int, options: ItemOptions) -> bool:
    return options.max_sequence_length is not None and n_frames > options.max_sequence_length


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


class UnusedSteps(msgspec.Struct, frozen=True):
    """The steps that are in no item for one reason.

    Attributes:
      episodes: the number of episodes with no item at all.
      steps: the number of steps in no item, including steps of other episodes.
      longest: the number of steps of the longest of these episodes.
    """

    episodes: Count = 0
    steps: Count = 0
    longest: Count = 0

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
      unused: the steps in no item, by reason (`trajectories.items.REASONS`); with `across_episodes`, set by `finish`.
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
            unused = UnusedSteps(0 if used else 1, steps - used, 0 if used else steps)
            self.unused = merge_unused([self.unused, {reason: unused}])


def count_covered(x: int, items: int, options: ItemOptions) -> int:
    """The number of frames before frame `x` that are in one of the `items` windows."""
    length, stride = options.length or 0, options.stride
    if not items:
        return 0
    if stride < length:
        return min(x, (items - 1) * stride + length)
    whole = x // stride
    return whole * length + min(x % stride, length) if whole < items else items * length
