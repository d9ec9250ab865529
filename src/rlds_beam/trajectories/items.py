"""Items: which frames make one training item, in the terms of TF-Agents' Reverb observers.

The numbers of items are known before any item is made. An episode of n frames, items of L frames, starts
i = 0, s, 2s, ... (s is the stride), P the padding frame:

- `pairs`, `sequences` (ReverbAddTrajectoryObserver): all i with i + L <= n. With
  `pad_end_of_episodes`, an episode with n < L gives the one item f0 ... f(n-1) P ... P; a longer
  one gives no more than without (a tail that the stride steps over stays lost). With
  `tile_end_of_episodes`, all i < n, filled with P.
- `sequences` with `across_episodes` (ReverbTrajectorySequenceObserver): the same windows over the
  stream of all episodes of a shard; pad and tile act once, at the end of the shard. One thing is
  not copied: `reset(True)` of the observer writes its last item a second time where the stream ends
  just with an item, and raises where it does not.
- `episodes` (ReverbAddEpisodeObserver): all n frames, if n <= max_sequence_length.
- `frames`: each frame on its own.

P is `frames.padding_frames`: zero everywhere, with step_type LAST and next_step_type FIRST.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from rlds_beam.episodes.episode import Column
from rlds_beam.errors import BadEpisode, Violation
from rlds_beam.trajectories.frames import Frames, padded
from rlds_beam.trajectories.options import ItemOptions

Index = np.ndarray[Any, np.dtype[np.int64]]

PAD = -1
"""In an index: the padding frame P, which is the last one where it is needed."""


def item_count(n_frames: int, options: ItemOptions) -> int:
    """Number of items that n frames give: `len(windows(n_frames, options))`, without making them.

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

    L is 1 for single frames, and n_frames for whole episodes. An episode longer than
    `max_sequence_length` gives none.
    """
    return Windows.of(n_frames, options).index()


def predict_items(n_frames: Iterable[int], options: ItemOptions) -> int:
    """Number of items of episodes with these numbers of frames (`frames.frame_count` of their steps).

    With `across_episodes`, the episodes are those of one shard: add up over the shards.
    """
    if options.across_episodes:
        return item_count(sum(n_frames), options)
    return sum(item_count(n, options) * times for n, times in Counter(n_frames).items())


@dataclasses.dataclass(frozen=True, slots=True)
class Windows:
    """Windows over frames, in closed form: window k is the frames from `start + k * stride` on.

    Attributes:
      start: first frame of the first window.
      count: number of windows, K.
      length: frames in a window, L.
      stride: frames between the starts of two windows.
      frames: how many frames there are; a window that runs over them continues with padding frames.
    """

    start: int
    count: int
    length: int
    stride: int
    frames: int

    @classmethod
    def of(cls, n_frames: int, options: ItemOptions) -> Windows:
        """The windows of an episode; see `windows`."""
        length = n_frames if options.items == "episodes" else _length(options)
        return cls(0, item_count(n_frames, options), length, options.stride, n_frames)

    @property
    def padding(self) -> int:
        """How many padding frames have to follow the frames for all windows to be whole."""
        return max(0, self.start + (self.count - 1) * self.stride + self.length - self.frames) if self.count else 0

    def index(self) -> Index:
        """int64 [K, L] of frame indices; `PAD` is the padding frame."""
        starts = np.arange(self.start, self.start + self.count * self.stride, self.stride, dtype=np.int64)
        index: Index = starts[:, None] + np.arange(self.length, dtype=np.int64)
        if self.padding:
            index[index >= self.frames] = PAD
        return index


@dataclasses.dataclass(frozen=True)
class Items:
    """K items over some frames.

    Attributes:
      frames: the frames that the windows run over; with `across_episodes`, a piece of the stream.
      windows: which of them make each item.
    """

    frames: Frames
    windows: Windows

    def __len__(self) -> int:
        """Number of items, K."""
        return self.windows.count

    @functools.cached_property
    def index(self) -> Index:
        """int64 [K, L] of frame indices; `PAD` is the padding frame."""
        return self.windows.index()

    def gather(self, path: str) -> Column:
        """One leaf of all items: an array [K, L, ...], or EncodedImages whose `data` is [K, L]."""
        # One padding frame at the end, which is where PAD points.
        return padded(path, self.frames[path], min(1, self.windows.padding))[self.index]


class ItemMaker:
    """The items of the episodes of one shard, pushed in order.

    `push` gives the items that are complete, `finish` what is left at the end of the shard; after
    that the maker is as new. Only with `across_episodes` is anything kept from one push to the next:
    at most L - 1 frames. In every other mode `finish` gives nothing, and any episodes in any order
    may be pushed.
    """

    def __init__(self, options: ItemOptions):
        self._options = options
        self._stream = StreamWindower(options) if options.across_episodes else None

    def push(self, frames: Frames) -> Items:
        """The items of one episode. An episode may give none: too short, or bypassed.

        Raises:
          BadEpisode: it is longer than `max_sequence_length`, and `bypass_partial_episodes` is not set.
        """
        if self._stream is not None:
            return self._stream.push(frames)
        if _too_long(len(frames), self._options) and not self._options.bypass_partial_episodes:
            detail = f"{len(frames)} frames, more than --max_sequence_length={self._options.max_sequence_length}"
            raise BadEpisode(Violation("too_long", detail))
        return Items(frames, Windows.of(len(frames), self._options))

    def finish(self) -> Items | None:
        """The items that only the end of the shard completes; None where there are none."""
        return self._stream.finish() if self._stream is not None else None


class StreamWindower:
    """Windows over a stream of frames that comes in pieces."""

    def __init__(self, options: ItemOptions):
        self._options = options
        self._reset()

    def _reset(self) -> None:
        self._tail: Frames | None = None  # frames from the next start on; fewer than L
        self._skip = 0  # frames of the stream still to come before the next start
        self._seen = 0

    def push(self, frames: Frames) -> Items:
        """The items that these frames complete; their `frames` begin with what was kept before."""
        length, stride = _length(self._options), self._options.stride
        self._seen += len(frames)
        buffer = frames if self._tail is None else self._tail.append(frames)
        count = max(0, (len(buffer) - self._skip - length) // stride + 1)
        windows = Windows(self._skip, count, length, stride, len(buffer))
        start = self._skip + count * stride
        self._tail = buffer.slice(start) if start < len(buffer) else None
        self._skip = max(0, start - len(buffer))
        return Items(buffer, windows)

    def finish(self) -> Items | None:
        """Ends the stream: pads what is left, as the options say, and starts again."""
        tail, seen, options = self._tail, self._seen, self._options
        self._reset()
        if tail is None or not options.pad_end_of_episodes:
            return None
        if not options.tile_end_of_episodes and seen >= _length(options):
            return None
        return Items(tail, Windows.of(len(tail), options))


def _length(options: ItemOptions) -> int:
    assert options.length is not None  # whole episodes are dealt with before
    return options.length


def _too_long(n_frames: int, options: ItemOptions) -> bool:
    return options.max_sequence_length is not None and n_frames > options.max_sequence_length
