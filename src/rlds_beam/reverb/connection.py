"""A connection to one Reverb server: every call has a deadline, and every error names the address."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import grpc

from rlds_beam.errors import RldsBeamError, UsageError
from rlds_beam.reverb.protocol.info import SERVER_INFO, ServerInfo, parse_server_info

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
