"""Writes through TF-Agents' own observers: frame by frame, at least once.

Two orders of magnitude slower than `writer.StreamWriter`, and a retry writes its items again, because Reverb's
TrajectoryWriter assigns random keys. For users who want TF-Agents' own code to fill the tables. Creating a writer
imports TensorFlow.
"""

from __future__ import annotations

import functools
import queue
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.errors import NotVerifiedError, UsageError, needs
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.reverb.priorities import ConstantPriority
from rlds_beam.reverb.target import ReverbTarget
from rlds_beam.trajectories.items import Items
from rlds_beam.trajectories.options import ItemOptions

_TWICE = "Items may have been written: empty the table before you run again, or they are written twice"
_UNLIMITED = 1 << 20
"""Maximum frames of an episode observer without --max_sequence_length."""

_FRAMES_PER_WAIT = 100
"""Frames passed to an observer per deadline; it takes a few thousand per second."""


class Observed(NamedTuple):
    """Frames for an observer.

    Attributes:
      server: the server that they go to.
      frames: the frames, one `Trajectory` each.
      items: the number of items that the observer will write to each table.
    """

    server: str
    frames: list[Any]
    items: int


class ObserverWriter:
    """A `writer.Writer` with one TF-Agents observer per server, chosen by the kind of items.

    Observers may wait forever (for a dead server or a full queue), so they run in a separate thread, and every wait for
    that thread has a deadline.
    """

    def __init__(self, target: ReverbTarget):
        if not isinstance(target.priority, ConstantPriority):
            raise UsageError("--writer=observer needs a constant --priority: an observer uses one for all items")
        if target.chunk_length is not None:
            raise UsageError("--chunk_length needs --writer=stream: TF-Agents' observers choose their own chunks")
        with needs("agents", "--writer=observer needs TensorFlow, TF-Agents and Reverb"):
            import tf_agents.replay_buffers.reverb_utils  # noqa: F401  (before anything is written)
        self.acknowledged: Counter[str] = Counter()
        self.sent_bytes = 0  # TF-Agents' observers do not report it
        self._target, self._priority = target, target.priority.value
        self._observers: dict[str, Any] = {}
        self._sent: Counter[str] = Counter()
        self._carried = 0
        self._thread = _Thread(target.timeout)

    def encode(self, items: Items) -> Observed:
        server = self._target.choose_server(items.frames.key)
        self._target.spec.check(items.frames)
        # A stream across episodes starts with frames kept from earlier episodes, which the observer has already seen.
        seen, windows = self._carried, items.windows
        if self._target.items.across_episodes:
            self._carried = max(0, len(items.frames) - windows.start - windows.count * windows.stride)
        return Observed(server, list(self._trajectories(items, seen)), len(items))

    def write(self, encoded: Observed) -> None:
        observer = self._observer(encoded.server)
        for i in range(0, len(encoded.frames), _FRAMES_PER_WAIT):
            frames = encoded.frames[i : i + _FRAMES_PER_WAIT]
            self._thread.run(functools.partial(self._feed, observer, frames))
        self._sent[encoded.server] += encoded.items

    def finish(self, key: EpisodeKey) -> None:
        if not self._target.items.across_episodes:
            return
        observer = self._observer(self._target.choose_server(key))
        self._carried = 0
        self._thread.run(lambda: observer.reset(write_cached_steps=self._target.items.pad_end_of_episodes))

    def flush(self) -> None:
        milliseconds = int(self._target.timeout * 1000)
        for server, observer in self._observers.items():
            self._thread.run(functools.partial(observer._get_writer().flush, timeout_ms=milliseconds))
            self.acknowledged[server] += self._sent.pop(server, 0)

    def close(self) -> None:
        # No flush, which might wait forever: after the last flush all items were there.
        if not self._thread.stuck:
            for observer in self._observers.values():
                self._thread.run(observer._get_writer().close)
        self._observers = {}

    def _observer(self, server: str) -> Any:
        if server not in self._observers:
            import reverb

            client = reverb.Client(server)
            make = functools.partial(_make_observer, client, self._target.tables, self._target.items, self._priority)
            self._observers[server] = self._thread.run(make)
        return self._observers[server]

    def _feed(self, observer: Any, frames: list[Any]) -> None:
        for frame in frames:
            if self._thread.stuck:  # abandoned; write nothing more
                return
            observer(frame)

    def _trajectories(self, items: Items, seen: int) -> Any:
        """Yields the frames that the observer has not seen yet."""
        import tensorflow as tf

        spec = self._target.spec
        columns = [self._pixels(items, leaf.path)[seen:] for leaf in spec.leaves]
        structure = spec.to_tf(per_frame=True)
        for i in range(len(columns[0])):
            yield tf.nest.pack_sequence_as(structure, [np.asarray(column[i]) for column in columns])

    def _pixels(self, items: Items, path: str) -> np.ndarray[Any, Any]:
        column = items.frames[path]
        shape = self._target.spec[path].shape
        return column.decode_all(path, shape) if isinstance(column, EncodedImages) else column


def _make_observer(client: Any, tables: tuple[str, ...], items: ItemOptions, priority: float) -> Any:
    from tf_agents.replay_buffers import reverb_utils

    if items.items == "episodes":
        return reverb_utils.ReverbAddEpisodeObserver(
            client,
            tables,
            items.max_sequence_length or _UNLIMITED,
            priority=priority,
            bypass_partial_episodes=items.bypass_partial_episodes,
        )
    kind = "ReverbTrajectorySequenceObserver" if items.across_episodes else "ReverbAddTrajectoryObserver"
    return getattr(reverb_utils, kind)(
        client,
        tables,
        items.length,
        stride_length=items.stride,
        priority=priority,
        pad_end_of_episodes=items.pad_end_of_episodes,
        tile_end_of_episodes=items.tile_end_of_episodes,
    )


class _Thread:
    """Runs calls one after another in a thread that can be abandoned.

    Attributes:
      stuck: whether a call did not return in time, so that no further calls can run.
    """

    def __init__(self, timeout: float):
        self._timeout = timeout
        self.stuck = False
        self._calls: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._loop, name="reverb-observer", daemon=True).start()

    def run(self, call: Callable[[], Any]) -> Any:
        """Runs a call and returns its result. Raises NotVerifiedError if the call failed or timed out."""
        self._calls.put(call)
        try:
            result = self._results.get(timeout=self._timeout)
        except queue.Empty:
            self.stuck = True
            raise NotVerifiedError(
                f"a TF-Agents observer did not return within {self._timeout:g} s: the server hangs or is gone, or its "
                f"table's rate limiter blocks. {_TWICE}"
            ) from None
        if isinstance(result, Exception):
            raise NotVerifiedError(f"a TF-Agents observer failed: {result}. {_TWICE}") from result
        return result

    def _loop(self) -> None:
        while True:
            call = self._calls.get()
            try:
                self._results.put(call())
            except Exception as error:
                self._results.put(error)
