"""Encodes items as keyed requests, and writes them to Reverb tables."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import google_crc32c
import numpy as np

from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.reverb.encoding import Cut, ItemEncoder, default_chunk_length, digest
from rlds_beam.reverb.inserts import Request
from rlds_beam.reverb.stream import InsertStream
from rlds_beam.reverb.target import ReverbTarget
from rlds_beam.trajectories.frames import pad_column
from rlds_beam.trajectories.items import Items
from rlds_beam.typing import Array

BATCH_BYTES = 1 << 20
"""Target size of the episodes encoded together, because messages with few items are expensive."""


class CheckedItems(NamedTuple):
    """Checked items of an episode, ready to write.

    Attributes:
      server: the server that they go to.
      cut: the items.
    """

    server: str
    cut: Cut


class Writer(Protocol):
    """Writes items to the tables of a target. Each DoFn instance has its own writer, which is never pickled.

    Attributes:
      acknowledged: the number of items that each server has confirmed in each table.
      sent_bytes: the bytes sent, if known.
    """

    acknowledged: Counter[str]
    sent_bytes: int

    def encode(self, items: Items) -> Any:
        """Encodes items for `write` without sending them; raises BadEpisode if they cannot be written."""

    def write(self, encoded: Any) -> None:
        """Sends encoded items, or queues them."""

    def finish(self, key: EpisodeKey) -> None:
        """Ends the ordered stream of items of a shard with `across_episodes`."""

    def flush(self) -> None:
        """Waits until the servers have confirmed all items.

        Raises:
          NotVerifiedError: a server did not confirm them.
        """

    def close(self) -> None:
        """Closes the connections without waiting."""


def new_writer(target: ReverbTarget) -> Writer:
    """Creates the writer that the target names."""
    if target.writer == "stream":
        return StreamWriter(target)
    from rlds_beam.reverb.observers import ObserverWriter  # needs TF-Agents

    return ObserverWriter(target)


class StreamWriter:
    """Writes over Reverb's InsertStream; retries, restarted workers, and reruns write no item twice."""

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
        """All items are complete before they get here."""

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
            self._streams[server] = InsertStream(server, timeout=target.timeout, state_id=target.state_ids.get(server))
        return self._streams[server]


class RequestEncoder:
    """Encodes items as keyed requests. The same items get the same keys on every run.

    A key is a hash of the episode's key, its frames as sent, the salt, the table, and the item's number. It includes
    the frames because the server silently keeps the first item of a key: if a dataset is recorded again under the same
    name, its new items must not be dropped.
    """

    def __init__(self, target: ReverbTarget):
        self._target = target
        self._leaves = [(leaf.numpy_dtype, leaf.shape) for leaf in target.spec.leaves]
        frame_bytes = sum(dtype.itemsize * int(np.prod(shape)) for dtype, shape in self._leaves)
        length = target.chunk_length or default_chunk_length(frame_bytes, target.items.length)
        self._encoder = ItemEncoder(self._leaves, target.tables, length, target.squeeze)

    def encode(self, items: Items) -> CheckedItems:
        """Checks and encodes items; pass the result to `requests`.

        Raises:
          BadEpisode: an image cannot be decoded, or a priority is invalid.
          UsageError: `policy_info_fn` returned other leaves than in the dry run.
        """
        target, key, windows = self._target, items.frames.key, items.windows
        target.spec.check(items.frames)
        columns = [self._column(items, path) for path in (leaf.path for leaf in target.spec.leaves)]
        priorities = target.priority.compute(items)
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
        return CheckedItems(target.choose_server(key), cut)

    def requests(self, cuts: Sequence[Cut]) -> list[Request]:
        """The requests with all items; each request can be sent again independently."""
        return self._encoder.encode(cuts)

    def _column(self, items: Items, path: str) -> Array:
        """A leaf of the frames, followed by the padding frames that the windows need."""
        column = items.frames[path]
        shape = self._target.spec[path].shape
        values = column.decode_all(path, shape) if isinstance(column, EncodedImages) else column
        return pad_column(path, values, items.windows.padding)


def _checksum(column: Array) -> str:
    content = np.ascontiguousarray(column)
    return f"{content.nbytes}:{google_crc32c.value(content)}"
