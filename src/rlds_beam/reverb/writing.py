"""Items into Reverb tables: which keys, which requests; and the writer that sends them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import google_crc32c
import numpy as np

from rlds_beam.episodes.keys import EpisodeKey
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.reverb.encoding import Cut, ItemEncoder, chunk_length_of, digest
from rlds_beam.reverb.protocol.inserts import Request
from rlds_beam.reverb.stream import InsertStream
from rlds_beam.reverb.target import ReverbTarget
from rlds_beam.trajectories.frames import padded
from rlds_beam.trajectories.image_leaves import pixels_of
from rlds_beam.trajectories.items import Items

Array = np.ndarray[Any, Any]


BATCH_BYTES = 1 << 20
"""Episodes are encoded together up to this, about: the cost of a message is too high for few items."""


class CheckedItems(NamedTuple):
    """Items of an episode that are checked, so they can be written.

    Attributes:
      server: where they go.
      cut: the items.
    """

    server: str
    cut: Cut


class Writer(Protocol):
    """Puts items into the tables of a target. One for each DoFn instance: never shared, never pickled.

    Attributes:
      acknowledged: items that each server has confirmed, in each of the tables.
      sent_bytes: what went over the wire, where that is known.
    """

    acknowledged: Counter[str]
    sent_bytes: int

    def encode(self, items: Items) -> Any:
        """What `write` takes; nothing is sent. Raises BadEpisode where the items cannot be written."""

    def write(self, encoded: Any) -> None:
        """Sends items, or gives them to the thread that does."""

    def finish(self, key: EpisodeKey) -> None:
        """Ends the ordered stream of items that `across_episodes` makes of the shard of `key`."""

    def flush(self) -> None:
        """Waits until the servers confirm all that was written.

        Raises:
          NotVerifiedError: they do not.
        """

    def close(self) -> None:
        """Closes the connections; does not wait."""


def new_writer(target: ReverbTarget) -> Writer:
    """A writer of the kind that the target names."""
    if target.writer == "stream":
        return StreamWriter(target)
    from rlds_beam.reverb.observing import ObserverWriter  # needs TF-Agents

    return ObserverWriter(target)


class StreamWriter:
    """Writes over Reverb's InsertStream: a retry, a restarted worker or a second run changes nothing."""

    def __init__(self, target: ReverbTarget):
        self.acknowledged: Counter[str] = Counter()
        self.sent_bytes = 0
        self._target = target
        self._encoder = RequestEncoder(target)
        self._streams: dict[str, InsertStream] = {}
        self._sent: Counter[str] = Counter()
        self._waiting: defaultdict[str, list[Cut]] = defaultdict(list)
        self._waiting_bytes: Counter[str] = Counter()

    def encode(self, items: Items) -> CheckedItems:
        return self._encoder.encode(items)

    def write(self, encoded: CheckedItems) -> None:
        waiting = self._waiting[encoded.server]
        waiting.append(encoded.cut)
        self._waiting_bytes[encoded.server] += encoded.cut.size
        if self._waiting_bytes[encoded.server] >= BATCH_BYTES:
            self._send(encoded.server)

    def finish(self, key: EpisodeKey) -> None:
        """Nothing to do: all items were made before they got here."""

    def flush(self) -> None:
        for server in [*self._waiting]:
            self._send(server)
        for server, stream in self._streams.items():
            stream.flush()
            self.acknowledged[server] += self._sent.pop(server, 0)

    def _send(self, server: str) -> None:
        cuts = self._waiting.pop(server)
        self._waiting_bytes.pop(server)
        for request in self._encoder.requests(cuts):
            self._stream(server).send(request)
            self.sent_bytes += request.size
        self._sent[server] += sum(cut.windows.count for cut in cuts)

    def close(self) -> None:
        for stream in self._streams.values():
            stream.close()
        self._streams = {}

    def _stream(self, server: str) -> InsertStream:
        if server not in self._streams:
            target = self._target
            self._streams[server] = InsertStream(
                server, timeout=target.timeout, state_id=target.state_ids.get(server)
            )  # fmt: skip
        return self._streams[server]


class RequestEncoder:
    """Turns items into keyed requests. The same items give the same keys on every run.

    A key is a hash of the episode's key, its frames as they are sent, the salt, the table, and the number of
    the item. The frames are part of it because the server silently keeps the first item of a key: the items of a
    dataset that was recorded again under its old name must not be dropped.
    """

    def __init__(self, target: ReverbTarget):
        self._target = target
        self._leaves = [(leaf.numpy_dtype, leaf.shape) for leaf in target.spec.leaves]
        frame_bytes = sum(dtype.itemsize * int(np.prod(shape)) for dtype, shape in self._leaves)
        length = target.chunk_length or chunk_length_of(frame_bytes, target.items.length)
        self._encoder = ItemEncoder(self._leaves, target.tables, length, target.squeeze)

    def encode(self, items: Items) -> CheckedItems:
        """The items, completely checked; `requests` makes requests of them.

        Raises:
          BadEpisode: an image cannot be decoded, or a priority is none.
          UsageError: `policy_info_fn` gave other leaves than it is to.
        """
        target, key, windows = self._target, items.frames.key, items.windows
        target.spec.check(items.frames)
        columns = [self._column(items, path) for path in (leaf.path for leaf in target.spec.leaves)]
        priorities = target.priority.of(items)
        identity = (str(key), target.salt, *(_checksum(column) for column in columns))
        stream = key.shard_name if target.items.across_episodes else str(key)
        cut = self._encoder.cut(
            columns,
            windows,
            priorities=priorities,
            seeds=[digest("item", table, *identity) for table in target.tables],
            chunk_seed=digest("chunk", *identity),
            episode_id=digest("episode", key.dataset, stream),
        )
        return CheckedItems(target.server_of(key), cut)

    def requests(self, cuts: Sequence[Cut]) -> list[Request]:
        """The requests that carry all of the items; any of them can be sent again on its own."""
        return self._encoder.encode(cuts)

    def _column(self, items: Items, path: str) -> Array:
        """A leaf of the frames, and of the padding frames that the windows need after them."""
        column = items.frames[path]
        values = pixels_of(column, self._target.spec[path]) if isinstance(column, EncodedImages) else column
        return padded(path, values, items.windows.padding)


def _checksum(column: Array) -> str:
    content = np.ascontiguousarray(column)
    return f"{content.nbytes}:{google_crc32c.value(content)}"
