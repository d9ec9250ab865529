"""TF-Agents' Reverb observers with the same constructors and methods, which write over an insert stream themselves.

    from rlds_beam.reverb_observers import ReverbAddTrajectoryObserver

They write what those of `tf_agents.replay_buffers.reverb_utils` write: the same items in the same order, with
the same priorities, in the same number of episodes. What they have beyond them, by keyword:

- `timeout`: seconds that a wait for the server may take without an item coming through, in any method.
  TF-Agents' wait forever.
- `key_seed`: the keys of the items follow from it. The n-th item of an observer gets a key that is a hash of seed,
  n, the table and the kind of item: the same frames written again with the same seed are not written twice.
  Each observer needs a seed of its own. By default keys are random, as TF-Agents' are.
- `chunk_length`: frames in a chunk. Frames that are given one by one wait until that many have come, or for
  `flush` or the end of the episode. By default an item is sent at once if the server has taken all items before it
  (and not within a millisecond of the last), and no more than 8 frames wait while an item needs them.
- `add_episode(trajectory)`: a run of frames as columns, which is much faster.

Where they differ from TF-Agents':

- A server that cannot be reached is a ServerError, one that is silent for `timeout`, was restarted, or refuses an
  item (there is no such table) a NotVerifiedError. TF-Agents' wait forever, or raise RuntimeError.
- Where an episode is too long by just its last frame (ReverbAddEpisodeObserver raises ValueError) the next
  episode is written. TF-Agents' loses it silently.
- `sequence_length` and `stride_length` below 1 are a ValueError at once, not an error at some later frame. A
  priority that is no number is a ValueError, as TF-Agents documents, not a TypeError.
- All frames of an observer have the same leaves, and these are numbers or flags. Reverb's writer takes new
  leaves on the way, text and complex numbers.
- `py_client` needs a `server_address` (and `server_info` for `get_table_signature`): items do not go through the
  client, but over a stream of the observer's own. A mock client is a TypeError at the first item.
- The padding frame has the dtypes of the frames. TF-Agents' turns a Python float into float32, which then
  does not fit its column.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from rlds_beam.drop_in.base_observer import DEFAULT_TIMEOUT, Observer, episodes, is_boundary
from rlds_beam.drop_in.frame_writer import FrameWriter
from rlds_beam.drop_in.nests import Columns
from rlds_beam.trajectories.frames import padding_frames

_logger = logging.getLogger(__name__)


class ReverbAddTrajectoryObserver(Observer):
    """Writes items of a fixed number of frames, overlapping or not, that never run over the end of an episode.

    Call it with every frame (a `Trajectory` without batch axis). With `L = sequence_length` an item is made of
    frames 0..L-1 of each episode, and of L more from every `stride_length`-th frame on. A shorter episode, and
    what the stride leaves over, is dropped, unless padded.

    Args:
      py_client: reverb.Client.
      table_name: the table, or several; each item goes into all of them.
      sequence_length: frames in an item.
      stride_length: frames between the starts of two items.
      priority: of all items.
      pad_end_of_episodes: fill an episode shorter than an item with boundary frames (LAST to FIRST, else 0).
      tile_end_of_episodes: fill items from the last L-1 starts too; needs `pad_end_of_episodes`.
      timeout, key_seed, chunk_length: see the module.

    Raises:
      ValueError: tile without pad, or a length below 1.
    """

    def __init__(
        self,
        py_client: Any,
        table_name: str | Sequence[str],
        sequence_length: int,
        stride_length: int = 1,
        priority: float = 1,
        pad_end_of_episodes: bool = False,
        tile_end_of_episodes: bool = False,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        key_seed: int | str | None = None,
        chunk_length: int | None = None,
    ):
        if tile_end_of_episodes and not pad_end_of_episodes:
            raise ValueError("Must set `pad_end_of_episodes=True` when using `tile_end_of_episodes`")
        if sequence_length < 1 or stride_length < 1:
            raise ValueError("`sequence_length` and `stride_length` must be at least 1.")
        self._sequence_length, self._stride_length = sequence_length, stride_length
        self._pad_end_of_episodes, self._tile_end_of_episodes = pad_end_of_episodes, tile_end_of_episodes
        self._last_frame: Columns | None = None
        kind = f"{type(self).__name__} {sequence_length} {stride_length} {pad_end_of_episodes} {tile_end_of_episodes}"
        super().__init__(
            py_client, table_name, priority, sequence_length, kind,
            timeout=timeout, key_seed=key_seed, chunk_length=chunk_length,
        )  # fmt: skip

    def __call__(self, trajectory: Any) -> None:
        """Takes one frame; at the end of an episode returns when its items are in their tables.

        Raises:
          ValueError: the observer is closed, or the frame is not of the dtypes and shapes of those before.
          NotVerifiedError: the items are not there within `timeout`.
        """
        self._add(Columns.of_frame(trajectory))
        self._get_writer().send()
        if is_boundary(trajectory):
            self.reset(write_cached_steps=self._pad_end_of_episodes)

    def add_episode(self, trajectory: Any) -> None:
        """Takes a run of frames: leaves [n, ...]. The same as calling the observer with each of them.

        It may be an episode, a piece of one, or several. Does not wait for the server at the end of an
        episode; call `flush`.

        Raises:
          ValueError, NotVerifiedError: as when the observer is called.
        """
        with self._sent_together():
            for frames, at_end in episodes(Columns.of_run(trajectory), trajectory.step_type):
                self._add(frames)
                if at_end:
                    self._reset(write_cached_steps=self._pad_end_of_episodes)

    def _add(self, frames: Columns) -> None:
        if not len(frames):
            return
        self._last_frame = frames[-1:]
        writer = self._get_writer()
        writer.append(frames)
        self._create_items(writer, len(frames))

    def _create_items(self, writer: FrameWriter, frames: int) -> None:
        """The items that the last `frames` frames complete."""
        length, stride = self._sequence_length, self._stride_length
        first = max(0, self._cached_steps + 1 - length)
        first += -first % stride
        self._cached_steps += frames
        count = (self._cached_steps - length - first) // stride + 1
        if count > 0:
            writer.create_items(first, count, stride, length, self._priority)

    def _reset(self, write_cached_steps: bool) -> None:
        if write_cached_steps and self._last_frame is not None:
            self._write_rest(self._last_frame)
        self._last_frame = None
        self._end_episode()

    def _write_rest(self, last_frame: Columns) -> None:
        length = self._sequence_length
        if self._pad_end_of_episodes:
            count = length - 1 if self._tile_end_of_episodes else length - self._cached_steps
            if count > 0:
                self._add(_padding(last_frame, count))
        elif self._cached_steps >= length and (self._cached_steps - length) % self._stride_length == 0:
            # The last item once more: so does TF-Agents.
            self._get_writer().create_items(self._cached_steps - length, 1, 1, length, self._priority)
        else:
            raise ValueError(
                "write_cached_steps is True, but not enough steps remain in the cache to write an item with "
                f"sequence_length={length}, consider enabling pad_end_of_episodes."
            )

    def open(self) -> None:
        """Opens a closed observer again; does nothing to an open one."""
        if self._writer is None:
            self._cached_steps = 0
        super().open()


class ReverbTrajectorySequenceObserver(ReverbAddTrajectoryObserver):
    """As ReverbAddTrajectoryObserver, but items run over the ends of episodes: the frames are one stream.

    Padding and tiling act where `reset` ends the stream. `reset(write_cached_steps=True)` without padding writes
    the last item a second time where the stream ends just with an item, and raises ValueError where it does not,
    as TF-Agents' does.
    """

    def __call__(self, trajectory: Any) -> None:
        """Takes one frame, and does not wait for the server. Raises as ReverbAddTrajectoryObserver does."""
        self._add(Columns.of_frame(trajectory))
        self._get_writer().send()

    def add_episode(self, trajectory: Any) -> None:
        """Takes a run of frames: leaves [n, ...]. The same as calling the observer with each of them."""
        with self._sent_together():
            self._add(Columns.of_run(trajectory))


class ReverbAddEpisodeObserver(Observer):
    """Writes an item for each episode, of all its frames.

    Call it with every frame (a `Trajectory` without batch axis). An unfinished episode is written by
    `reset(write_cached_steps=True)` only.

    Args:
      py_client: reverb.Client.
      table_name: the table, or several; each item goes into all of them.
      max_sequence_length: frames in an item at most.
      priority: of the items, until `update_priority`.
      bypass_partial_episodes: drop a longer episode and log an error, instead of raising ValueError.
      timeout, key_seed, chunk_length: see the module.

    Raises:
      ValueError: `max_sequence_length` is not positive.
    """

    def __init__(
        self,
        py_client: Any,
        table_name: str | Sequence[str],
        max_sequence_length: int,
        priority: float = 1,
        bypass_partial_episodes: bool = False,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        key_seed: int | str | None = None,
        chunk_length: int | None = None,
    ):
        if max_sequence_length <= 0:
            raise ValueError("`max_sequence_length` must be an integer greater equal one.")
        self._max_sequence_length = max_sequence_length
        self._bypass_partial_episodes = bypass_partial_episodes
        self._overflow_episode = False
        self._writer_has_data = False
        super().__init__(
            py_client, table_name, priority, None, f"{type(self).__name__} {max_sequence_length}",
            timeout=timeout, key_seed=key_seed, chunk_length=chunk_length,
        )  # fmt: skip

    def update_priority(self, priority: float) -> None:
        """Sets the priority of the items to come."""
        self._priority = priority

    def __call__(self, trajectory: Any) -> None:
        """Takes one frame; at the end of an episode returns when its item is in its tables.

        Raises:
          ValueError: the episode is longer than `max_sequence_length`, and not to be bypassed (the rest of it is
            ignored, if the caller continues); or the observer is closed; or the frame is not of the dtypes and
            shapes of those before.
          NotVerifiedError: the item is not there within `timeout`.
        """
        at_end = is_boundary(trajectory)
        self._add(Columns.of_frame(trajectory), at_end)
        if at_end and self._writer is not None:
            self._writer.flush()

    def add_episode(self, trajectory: Any) -> None:
        """Takes a run of frames: leaves [n, ...]. The same as calling the observer with each of them.

        It may be an episode, a piece of one, or several. Does not wait for the server at the end of an
        episode; call `flush`. If an episode is too long and ValueError is raised, the frames after the
        first one too many are not taken.

        Raises:
          ValueError, NotVerifiedError: as when the observer is called.
        """
        with self._sent_together():
            for frames, at_end in episodes(Columns.of_run(trajectory), trajectory.step_type):
                self._add(frames, at_end)

    def _add(self, frames: Columns, at_end: bool) -> None:
        """Frames of one episode, the last of them its end or not."""
        if not self._overflow_episode:
            room = max(0, self._max_sequence_length - self._cached_steps)
            self._append(frames[:room])
            if len(frames) > room:
                self._overflow(ends_with_it=at_end and len(frames) == room + 1)
        if at_end:
            self._reset(write_cached_steps=not self._overflow_episode)

    def _append(self, frames: Columns) -> None:
        if not len(frames):
            return
        self._get_writer().append(frames)
        self._writer_has_data = True
        self._cached_steps += len(frames)

    def _overflow(self, ends_with_it: bool) -> None:
        self._overflow_episode = True
        if self._bypass_partial_episodes:
            _logger.error(
                "The number of trajectories within the same episode exceeds `max_sequence_length`. This episode is "
                "bypassed and will NOT be written into the replay buffer. Consider increasing the "
                "`max_sequence_length`."
            )
            return
        if ends_with_it:
            self._reset(write_cached_steps=False)
        raise ValueError(
            "The number of trajectories within the same episode exceeds `max_sequence_length`. Consider increasing "
            "the `max_sequence_length` or set `bypass_partial_episodes` to true to bypass the episodes with length "
            "more than `max_sequence_length`."
        )

    def _reset(self, write_cached_steps: bool) -> None:
        if write_cached_steps and self._writer_has_data:
            writer = self._get_writer()
            if not writer.frames:
                raise ValueError("trajectory must not be empty.")
            writer.create_items(0, 1, 1, writer.frames, self._priority)
            self._writer_has_data = False
        self._overflow_episode = False
        self._end_episode()

    def close(self) -> None:
        """Ends the connection; an unfinished episode is dropped."""
        if self._writer is not None:
            self._writer_has_data = False
        super().close()


def _padding(frame: Columns, count: int) -> Columns:
    """`count` padding frames of the leaves, dtypes and shapes of `frame`."""
    leaves = zip(frame.paths, frame.values, strict=True)
    return Columns(frame.paths, [padding_frames("/".join(map(str, path)), value, count) for path, value in leaves])
