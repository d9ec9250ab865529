"""Drop-in replacements for TF-Agents' Reverb observers: the same constructors and methods, a faster connection.

    from rlds_beam.drop_in.reverb_observers import ReverbAddTrajectoryObserver

They write the same items as the observers of `tf_agents.replay_buffers.reverb_utils`: in the same order, with the same
priorities, in the same number of episodes. Additions, as keyword arguments and a method:

- `timeout`: the longest wait in seconds, in any method, without an item reaching the server. TF-Agents waits forever.
- `key_seed`: a seed for the items' keys. The key of an observer's n-th item is a hash of the seed, n, the table, and
  the kind of item, so writing the same frames again with the same seed does not duplicate items. Each observer needs
  its own seed. By default keys are random, as in TF-Agents.
- `chunk_length`: the number of frames per chunk. Single frames wait until a chunk is full, for `flush`, or for the end
  of the episode. By default, an item is sent at once if the server has received all items before it (at most one per
  millisecond), and at most 8 frames wait while an item needs them.
- `add_episode(trajectory)`: adds a run of frames as columns, which is much faster.

Differences from TF-Agents:

- An unreachable server raises ServerError. A server that is silent for `timeout`, was restarted, or refuses an item
  (because there is no such table) raises NotVerifiedError. TF-Agents waits forever or raises RuntimeError.
- If only the last frame of an episode exceeds the limit (ReverbAddEpisodeObserver raises ValueError), the next episode
  is written. TF-Agents loses it silently.
- `sequence_length` and `stride_length` below 1 raise ValueError at once, not at a later frame. A priority that is not a
  number raises ValueError, as TF-Agents documents, not TypeError.
- All frames of an observer must have the same leaves, which are numbers or flags. Reverb's writer also accepts new
  leaves, text, and complex numbers.
- `py_client` needs a `server_address` (and `server_info` for `get_table_signature`), because items are sent over the
  observer's own stream. A mock client raises TypeError at the first item.
- The padding frame has the dtypes of the frames. TF-Agents converts a Python float to float32, which does not fit its
  column.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rlds_beam.drop_in.frame_writer import FrameWriter, KeySequence, NestedFrames
from rlds_beam.episodes.schema import LAST
from rlds_beam.reverb.stream import InsertStream
from rlds_beam.trajectories.frames import padding_frames

__all__ = ["ReverbAddEpisodeObserver", "ReverbAddTrajectoryObserver", "ReverbTrajectorySequenceObserver"]

_logger = logging.getLogger(__name__)

DEFAULT_TIMEOUT = 60.0
"""The default timeout in seconds."""


class _Observer:
    """What the observers share."""

    def __init__(
        self,
        py_client: Any,
        table_name: str | Sequence[str],
        priority: float,
        item_length: int | None,
        kind: str,
        *,
        timeout: float,
        key_seed: int | str | None,
        chunk_length: int | None,
    ):
        if not timeout > 0:
            raise ValueError(f"`timeout` must be positive, not {timeout}.")
        if chunk_length is not None and chunk_length < 1:
            raise ValueError(f"`chunk_length` must be at least 1, not {chunk_length}.")
        self._py_client = py_client
        self._table_names = [table_name] if isinstance(table_name, str) else table_name
        self._priority = priority
        self._timeout, self._chunk_length, self._item_length = timeout, chunk_length, item_length
        self._keys = KeySequence(key_seed, self._table_names, kind)
        self._cached_steps = 0
        self._writer: FrameWriter | None = self._new_writer()

    def _new_writer(self) -> FrameWriter:
        return FrameWriter(
            self._open_stream,
            self._table_names,
            self._keys,
            item_length=self._item_length,
            chunk_length=self._chunk_length,
        )

    def _open_stream(self) -> InsertStream:
        address = getattr(self._py_client, "server_address", None)
        if not isinstance(address, str):
            raise TypeError(
                "`py_client` must be a reverb.Client or have its `server_address` (a str, host:port), because items "
                f"are sent there directly. Got {type(self._py_client).__name__}."
            )
        return InsertStream(address, timeout=self._timeout)

    def _get_writer(self) -> FrameWriter:
        if self._writer is None:
            raise ValueError("Could not obtain writer from py_client.")
        return self._writer

    @property
    def py_client(self) -> Any:
        """The reverb.Client given to the observer."""
        return self._py_client

    def get_table_signature(self) -> Any:
        """Returns the signature of the first table, a nest of tf.TensorSpec (or None).

        Raises:
          reverb.errors.DeadlineExceededError: the server does not answer within `timeout`.
        """
        return self._py_client.server_info(timeout=math.ceil(self._timeout))[self._table_names[0]].signature

    def flush(self) -> None:
        """Waits until all items are in their tables.

        Raises:
          NotVerifiedError: they are not there within `timeout`, or cannot arrive anymore.
          ServerError: the server cannot be reached.
          ValueError: the observer is closed.
        """
        self._get_writer().flush()

    def close(self) -> None:
        """Sends complete items, waits for them like `flush`, and closes the connection. Drops cached steps."""
        if self._writer is not None:
            writer, self._writer = self._writer, None
            try:
                writer.flush()
            finally:
                writer.close()

    def open(self) -> None:
        """Reopens a closed observer; does nothing if it is open."""
        if self._writer is None:
            self._writer = self._new_writer()

    def reset(self, write_cached_steps: bool = True) -> None:
        """Ends the current episode and waits until its items are in their tables.

        Args:
          write_cached_steps: whether to write the steps since the last item first (see the observer's class), or drop
            them.

        Raises:
          ValueError: there are too few steps for an item.
          NotVerifiedError: the items are not in the table within `timeout`.
        """
        self._reset(write_cached_steps)
        if self._writer is not None:
            self._writer.flush()

    def _reset(self, write_cached_steps: bool) -> None:
        raise NotImplementedError

    @contextlib.contextmanager
    def _send_together(self) -> Iterator[None]:
        """Sends the items written inside at the end, in as few messages as possible, even after an error."""
        try:
            yield
        finally:
            if self._writer is not None:
                self._writer.send()

    def _end_episode(self) -> None:
        self._cached_steps = 0
        if self._writer is None:
            self.open()
        else:
            self._writer.end_episode()


def _is_boundary(trajectory: Any) -> bool:
    """Whether a frame is the last one of its episode."""
    return bool(np.asarray(trajectory.step_type) == LAST)


def _episodes(run: NestedFrames, step_type: Any) -> Iterator[tuple[NestedFrames, bool]]:
    """Cuts the run after each boundary frame; yields the pieces, and whether each ends with a boundary."""
    begin = 0
    for end in (np.flatnonzero(np.asarray(step_type) == LAST) + 1).tolist():
        yield run[begin:end], True
        begin = end
    if begin < len(run):
        yield run[begin:], False


class ReverbAddTrajectoryObserver(_Observer):
    """Writes items of a fixed number of frames, which may overlap but never cross the end of an episode.

    Call it with every frame (a `Trajectory` without batch axis). With `L = sequence_length`, items are the frames
    0..L-1 of each episode, and L frames from every `stride_length`-th frame. Shorter episodes, and frames that the
    stride leaves over, are dropped unless padded.

    Args:
      py_client: a reverb.Client.
      table_name: the table or tables; each item goes to all of them.
      sequence_length: the number of frames per item.
      stride_length: the number of frames between the starts of two items.
      priority: the priority of all items.
      pad_end_of_episodes: pad episodes shorter than an item with boundary frames (LAST to FIRST, else 0).
      tile_end_of_episodes: also pad items that start at the last L-1 frames; needs `pad_end_of_episodes`.
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
        self._last_frame: NestedFrames | None = None
        kind = f"{type(self).__name__} {sequence_length} {stride_length} {pad_end_of_episodes} {tile_end_of_episodes}"
        super().__init__(
            py_client,
            table_name,
            priority,
            sequence_length,
            kind,
            timeout=timeout,
            key_seed=key_seed,
            chunk_length=chunk_length,
        )

    def __call__(self, trajectory: Any) -> None:
        """Adds one frame; at the end of an episode, waits until its items are in their tables.

        Raises:
          ValueError: the observer is closed, or the frame's dtypes or shapes differ from those before.
          NotVerifiedError: the items are not there within `timeout`.
        """
        self._add(NestedFrames.of_frame(trajectory))
        self._get_writer().send()
        if _is_boundary(trajectory):
            self.reset(write_cached_steps=self._pad_end_of_episodes)

    def add_episode(self, trajectory: Any) -> None:
        """Adds a run of frames with leaves [n, ...], like calling the observer with each of them.

        The run may be an episode, a part of one, or several. The method does not wait for the server; call `flush`.

        Raises:
          ValueError, NotVerifiedError: as when the observer is called.
        """
        with self._send_together():
            for frames, at_end in _episodes(NestedFrames.of_run(trajectory), trajectory.step_type):
                self._add(frames)
                if at_end:
                    self._reset(write_cached_steps=self._pad_end_of_episodes)

    def _add(self, frames: NestedFrames) -> None:
        if not len(frames):
            return
        self._last_frame = frames[-1:]
        writer = self._get_writer()
        writer.append(frames)
        self._create_items(writer, len(frames))

    def _create_items(self, writer: FrameWriter, frames: int) -> None:
        """Creates the items that the last `frames` frames complete."""
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

    def _write_rest(self, last_frame: NestedFrames) -> None:
        length = self._sequence_length
        if self._pad_end_of_episodes:
            count = length - 1 if self._tile_end_of_episodes else length - self._cached_steps
            if count > 0:
                leaves = zip(last_frame.paths, last_frame.values, strict=True)
                padding = [padding_frames("/".join(map(str, path)), value, count) for path, value in leaves]
                self._add(NestedFrames(last_frame.paths, padding))
        elif self._cached_steps >= length and (self._cached_steps - length) % self._stride_length == 0:
            # Write the last item again, as TF-Agents does.
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
    """Like ReverbAddTrajectoryObserver, but items cross episode boundaries: the frames are one stream.

    Padding and tiling apply when `reset` ends the stream. As in TF-Agents, `reset(write_cached_steps=True)` without
    padding writes the last item again if the stream ends with an item, and raises ValueError otherwise.
    """

    def __call__(self, trajectory: Any) -> None:
        """Adds one frame without waiting for the server. Raises as ReverbAddTrajectoryObserver does."""
        self._add(NestedFrames.of_frame(trajectory))
        self._get_writer().send()

    def add_episode(self, trajectory: Any) -> None:
        """Adds a run of frames with leaves [n, ...], like calling the observer with each of them."""
        with self._send_together():
            self._add(NestedFrames.of_run(trajectory))


class ReverbAddEpisodeObserver(_Observer):
    """Writes one item per episode, with all its frames.

    Call it with every frame (a `Trajectory` without batch axis). An unfinished episode is only written by
    `reset(write_cached_steps=True)`.

    Args:
      py_client: a reverb.Client.
      table_name: the table or tables; each item goes to all of them.
      max_sequence_length: the most frames per item.
      priority: the priority of the items, until `update_priority`.
      bypass_partial_episodes: drop longer episodes and log an error instead of raising ValueError.
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
            py_client,
            table_name,
            priority,
            None,
            f"{type(self).__name__} {max_sequence_length}",
            timeout=timeout,
            key_seed=key_seed,
            chunk_length=chunk_length,
        )

    def update_priority(self, priority: float) -> None:
        """Sets the priority of future items."""
        self._priority = priority

    def __call__(self, trajectory: Any) -> None:
        """Adds one frame; at the end of an episode, waits until its item is in its tables.

        Raises:
          ValueError: the episode is longer than `max_sequence_length` and is not bypassed (if the caller continues, the
            rest of it is ignored); the observer is closed; or the frame's dtypes or shapes differ from those before.
          NotVerifiedError: the item is not there within `timeout`.
        """
        at_end = _is_boundary(trajectory)
        self._add(NestedFrames.of_frame(trajectory), at_end)
        if at_end and self._writer is not None:
            self._writer.flush()

    def add_episode(self, trajectory: Any) -> None:
        """Adds a run of frames with leaves [n, ...], like calling the observer with each of them.

        The run may be an episode, a part of one, or several. The method does not wait for the server; call `flush`. If
        an episode is too long and ValueError is raised, the frames after the first excess one are not added.

        Raises:
          ValueError, NotVerifiedError: as when the observer is called.
        """
        with self._send_together():
            for frames, at_end in _episodes(NestedFrames.of_run(trajectory), trajectory.step_type):
                self._add(frames, at_end)

    def _add(self, frames: NestedFrames, at_end: bool) -> None:
        """Adds frames of one episode; `at_end` if the last one ends it."""
        if not self._overflow_episode:
            room = max(0, self._max_sequence_length - self._cached_steps)
            self._append(frames[:room])
            if len(frames) > room:
                self._overflow(ends_with_it=at_end and len(frames) == room + 1)
        if at_end:
            self._reset(write_cached_steps=not self._overflow_episode)

    def _append(self, frames: NestedFrames) -> None:
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
        """Closes the connection; an unfinished episode is dropped."""
        if self._writer is not None:
            self._writer_has_data = False
        super().close()
