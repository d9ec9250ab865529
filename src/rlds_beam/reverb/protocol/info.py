"""Reads a Reverb server's description of itself and its tables, without TensorFlow.

Source: ServerInfoResponse in reverb/cc/reverb_service.proto, TableInfo in reverb/cc/schema.proto
(https://github.com/google-deepmind/reverb). Tests compare it with Reverb's own client of dm-reverb 0.14.
"""

from __future__ import annotations

import dataclasses

from rlds_beam.encoding.structured_values import SignatureLeaf, signature_leaves
from rlds_beam.encoding.wire import WireMessage

SERVER_INFO = "/deepmind.reverb.ReverbService/ServerInfo"


@dataclasses.dataclass(frozen=True)
class Limiter:
    """A table's rate limiter and its counters.

    An insert waits while `inserts * samples_per_insert - samples` would exceed `max_diff`, a sample while it would fall
    below `min_diff`; below `min_size_to_sample` items, inserts never wait and nothing is sampled.

    Attributes:
      inserts: the total number of inserted items. Inserting an existing item does not count.
      samples: the total number of sampled items.
    """

    samples_per_insert: float
    min_diff: float
    max_diff: float
    min_size_to_sample: int
    inserts: int
    samples: int


@dataclasses.dataclass(frozen=True)
class TableInfo:
    """The state of a table.

    Attributes:
      name: the name of the table.
      sampler: `uniform`, `prioritized`, `fifo`, `lifo`, `min_heap`, or `max_heap`: chooses the item to sample.
      remover: one of the same: chooses the item to remove when the table is full.
      max_size: the maximum number of items.
      max_times_sampled: the number of samples after which an item is removed; 0 or less means never.
      current_size: the number of items.
      num_episodes: the number of episodes that its items refer to.
      num_deleted_episodes: the number of episodes that only deleted items referred to.
      limiter: the rate limiter.
      signature: the leaves in the order of `tf.nest`, which is the order of an item's columns; None accepts any item.
    """

    name: str
    sampler: str
    remover: str
    max_size: int
    max_times_sampled: int
    current_size: int
    num_episodes: int
    num_deleted_episodes: int
    limiter: Limiter
    signature: tuple[SignatureLeaf, ...] | None


@dataclasses.dataclass(frozen=True)
class ServerInfo:
    """The state of a server.

    Attributes:
      state_id: a random number of 128 bits, which changes with each start.
      tables: the tables by name, in alphabetical order.
    """

    state_id: int
    tables: dict[str, TableInfo]


def parse_server_info(response: bytes) -> ServerInfo:
    """Parses a serialized ServerInfoResponse; raises ValueError if it is not one."""
    message = WireMessage(response)
    state = message.message(1)
    tables = sorted((_table(table) for table in message.messages(2)), key=lambda table: table.name)
    return ServerInfo(state.unsigned(1) << 64 | state.unsigned(2), {table.name: table for table in tables})


def _table(message: WireMessage) -> TableInfo:
    return TableInfo(
        name=message.text(8),
        sampler=_selector(message.message(1)),
        remover=_selector(message.message(2)),
        max_size=message.integer(3),
        max_times_sampled=message.integer(4),
        current_size=message.integer(7),
        num_episodes=message.integer(9),
        num_deleted_episodes=message.integer(10),
        limiter=_limiter(message.message(5)),
        signature=tuple(signature_leaves(message.message(6), ())) if 6 in message else None,
    )


def _limiter(message: WireMessage) -> Limiter:
    return Limiter(
        samples_per_insert=message.double(1),
        min_diff=message.double(2),
        max_diff=message.double(3),
        min_size_to_sample=message.integer(4),
        inserts=message.message(5).integer(2),
        samples=message.message(6).integer(2),
    )


def _selector(message: WireMessage) -> str:
    """The selector in KeyDistributionOptions, a oneof."""
    if 4 in message:
        return "min_heap" if message.message(4).integer(1) else "max_heap"
    names = {1: "fifo", 2: "uniform", 3: "prioritized", 6: "lifo"}
    return next((name for field, name in names.items() if field in message), "unknown")
