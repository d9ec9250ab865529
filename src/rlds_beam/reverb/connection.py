"""A connection to one Reverb server: every answer has a deadline, every error names the address."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable
from typing import Any, TypeVar

import grpc

from rlds_beam.errors import RldsBeamError, UsageError
from rlds_beam.reverb.protocol.info import CHECKPOINT, SERVER_INFO, ServerInfo, parse_checkpoint, parse_server_info

Answer = TypeVar("Answer")

_AT_ONCE = 0.5
"""Seconds that a server that is up may take to answer; after these, it is being waited for."""

_LONGEST_DETAILS = 300
"""Characters of a server's own words in an error."""

_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", 64 << 20),  # keys, or what some tables are like: never so much
    # A connection of its own: otherwise grpc shares one, and how long it has been failing, with all of the process.
    ("grpc.use_local_subchannel_pool", 1),
    # grpc would wait longer and longer before it tries again, up to two minutes: a server that comes back is found.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.min_reconnect_backoff_ms", 5000),  # despite its name: how long an attempt may take
)


class ServerError(RldsBeamError):
    """A server does not answer, or with an error, or is no Reverb server."""


class Connection:
    """A connection to the Reverb server at `address`, made when it is first needed. Does not pickle.

    Attributes:
      address: `host:port`.
      channel: of grpc; sends messages of any size.

    Raises:
      UsageError: `address` is not `host:port`.
    """

    def __init__(self, address: str):
        if not re.fullmatch(r"\S+:\d+", address):
            raise UsageError(f"{address!r} is not the address of a Reverb server; expected host:port")
        self.address = address
        self.channel = grpc.insecure_channel(address, options=_OPTIONS)

    def info(self, timeout: float, waiting: Callable[[], None] | None = None) -> ServerInfo:
        """The server and its tables at this moment; a server that comes up within the deadline is waited for.

        Args:
          timeout: seconds until ServerError.
          waiting: called once if the server does not answer at once.

        Raises:
          ServerError: no answer within the deadline, or not that of a Reverb server.
        """
        ask = functools.partial(self._ask, waiting=waiting)
        return self._call(ask, parse_server_info, timeout)

    def checkpoint(self, timeout: float) -> str:
        """Has the server write a checkpoint; its path on the server's disk.

        Args:
          timeout: seconds until ServerError; the server may still finish then.

        Raises:
          ServerError: no answer within the deadline, or the server could not write one.
        """
        return self._call(self.channel.unary_unary(CHECKPOINT), parse_checkpoint, timeout)

    def close(self) -> None:
        self.channel.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _call(self, ask: Callable[..., bytes], parse: Callable[[bytes], Answer], timeout: float) -> Answer:
        try:
            return parse(ask(b"", timeout=timeout, wait_for_ready=True))
        except grpc.RpcError as error:
            raise server_error(self.address, error, timeout) from error
        except ValueError as error:
            raise ServerError(f"{self.address}: what listens there is not a Reverb server ({error})") from error

    def _ask(
        self, request: bytes, *, timeout: float, wait_for_ready: bool, waiting: Callable[[], None] | None
    ) -> bytes:
        """ServerInfo, which may be asked as often as it takes."""
        call = self.channel.unary_unary(SERVER_INFO)
        # The end of the deadline is for a second look, which tells why the connection does not come about.
        look = min(0.2, timeout / 10)
        deadline = time.monotonic() + timeout - look
        while (left := deadline - time.monotonic()) > 0:
            first = left if waiting is None else min(left, _AT_ONCE)
            try:
                return bytes(call(request, timeout=first, wait_for_ready=wait_for_ready))
            except grpc.RpcError as error:
                # UNAVAILABLE: a connection that was there broke; the server may be on its way up again.
                if error.code() not in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE):
                    raise
            if waiting is not None:
                waiting()
                waiting = None
        return bytes(call(request, timeout=look))


def details_of(error: grpc.RpcError) -> str:
    """What a server says of an error, on one line that a terminal may print: it may say anything."""
    words = "".join(c if c.isprintable() else " " for c in str(error.details())).split()
    return " ".join(words)[:_LONGEST_DETAILS]


def server_error(address: str, error: grpc.RpcError, timeout: float) -> ServerError:
    """What an error of grpc means to a user.

    Args:
      address: of the server.
      error: of a call.
      timeout: the deadline that the call had, seconds.
    """
    code, details = error.code(), details_of(error)
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return ServerError(
            f"{address}: no answer within {round(timeout, 1):g} s; is it a Reverb server, and is it stopped or very "
            "busy?"
        )
    if code == grpc.StatusCode.UNAVAILABLE:
        return ServerError(
            f"{address}: no Reverb server is reached there ({details}); is it up, and is this its address? "
            f"`rlds-beam serve` starts one"
        )
    if code == grpc.StatusCode.UNIMPLEMENTED:
        return ServerError(f"{address}: what listens there is not a Reverb server ({details})")
    return ServerError(f"{address}: the Reverb server says: {details} ({code.name})")
