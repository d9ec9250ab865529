"""A connection to one Reverb server, and what it says of itself and its tables, read without TensorFlow.

Every call has a deadline, and every error names the address. Source of the messages: ServerInfoResponse in
reverb/cc/reverb_service.proto, TableInfo in reverb/cc/schema.proto (https://github.com/google-deepmind/reverb). Tests
compare them with Reverb's own client of dm-reverb 0.14.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable
from typing import Any

import grpc

from rlds_beam.encoding.wire import SignatureLeaf, WireMessage, signature_leaves
from rlds_beam.errors import RldsBeamError, UsageError

_AT_ONCE = 0.5
"""Seconds after which the user is told that the server is slow to answer."""

_MAX_DETAILS_CHARACTERS = 300
"""Maximum characters of a server's message in an error."""

_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", 64 << 20),  # more than any list of keys or tables
    # A separate connection: otherwise grpc shares one in the process, including its back-off after failures.
    ("grpc.use_local_subchannel_pool", 1),
    # By default grpc waits up to two minutes before it reconnects; find a restarted server sooner.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.min_reconnect_backoff_ms", 5000),  # despite its name, the timeout of an attempt
)


class ServerError(RldsBeamError):
    """A server does not answer, answers with an error, or is not a Reverb server."""


class Connection:
    """A lazy connection to the Reverb server at `address`. Not picklable.

    Attributes:
      address: the `host:port`.
      channel: the grpc channel, which sends messages of any size.

    Raises:
      UsageError: `address` is not `host:port`.
    """

    def __init__(self, address: str):
        if not re.fullmatch(r"\S+:\d+", address):
            raise UsageError(f"{address!r} is not a Reverb server's address; expected host:port")
        self.address = address
        self.channel = grpc.insecure_channel(address, options=_OPTIONS)

    def info(self, timeout: float, waiting: Callable[[], None] | None = None) -> ServerInfo:
        """The current state of the server and its tables; waits until the deadline for a server that is starting.

        Args:
          timeout: the seconds until ServerError.
          waiting: called once if the server does not answer at once.

        Raises:
          ServerError: no answer within the deadline, or not from a Reverb server.
        """
        try:
            return parse_server_info(self._ask(timeout, waiting))
        except grpc.RpcError as error:
            raise server_error(self.address, error, timeout) from error
        except ValueError as error:
            raise ServerError(f"{self.address}: the server there is not a Reverb server ({error})") from error

    def close(self) -> None:
        self.channel.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _ask(self, timeout: float, waiting: Callable[[], None] | None) -> bytes:
        """Requests ServerInfo, repeatedly if needed."""
        call = self.channel.unary_unary(SERVER_INFO)
        # The end of the deadline is for a last attempt, whose error says why there is no connection.
        look = min(0.2, timeout / 10)
        deadline = time.monotonic() + timeout - look
        while (left := deadline - time.monotonic()) > 0:
            first = left if waiting is None else min(left, _AT_ONCE)
            try:
                return bytes(call(b"", timeout=first, wait_for_ready=True))
            except grpc.RpcError as error:
                # UNAVAILABLE: an existing connection broke; the server may be restarting.
                if error.code() not in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE):
                    raise
            if waiting is not None:
                waiting()
                waiting = None
        return bytes(call(b"", timeout=look))


def clean_details(error: grpc.RpcError) -> str:
    """A server's message as one printable line, because its content is not trusted."""
    words = "".join(c if c.isprintable() else " " for c in str(error.details())).split()
    return " ".join(words)[:_MAX_DETAILS_CHARACTERS]


def server_error(address: str, error: grpc.RpcError, timeout: float) -> ServerError:
    """Translates a grpc error for the user.

    Args:
      address: the server's address.
      error: the error of a call.
      timeout: the call's deadline in seconds.
    """
    code, details = error.code(), clean_details(error)
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return ServerError(
            f"{address}: no answer within {round(timeout, 1):g} s: it may not be a Reverb server, or be stopped or "
            "very busy"
        )
    if code == grpc.StatusCode.UNAVAILABLE:
        return ServerError(
            f"{address}: no Reverb server answers ({details}): check that it is running and that this is its address "
            "(`rlds-beam serve` starts one)"
        )
    if code == grpc.StatusCode.UNIMPLEMENTED:
        return ServerError(f"{address}: the server there is not a Reverb server ({details})")
    return ServerError(f"{address}: the Reverb server failed: {details} ({code.name})")


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
