"""A gRPC relay in front of a Reverb server that changes the server's answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from rlds_beam.encoding.wire import encode_delimited, varint
from rlds_beam.reverb.inserts import METHOD

DEADLINE = 60.0
"""Seconds to wait for an answer from the server."""

Tamper = Callable[[int, Iterator[bytes]], Iterable[bytes]]
"""Maps the number of the InsertStream call (from 1) and the server's answers to the client's answers."""


class HostileRelay(grpc.GenericRpcHandler):
    """Relays the calls of one client to `target`.

    Args:
      target: `host:port` of a Reverb server.
      tamper: changes the answers to InsertStream.

    Attributes:
      address: `host:port` of the relay.
      calls: the number of InsertStream calls so far.
    """

    def __init__(self, target: str, tamper: Tamper):
        self._channel = grpc.insecure_channel(target, options=[("grpc.max_send_message_length", -1)])
        self._tamper = tamper
        self.calls = 0
        options = [("grpc.max_receive_message_length", -1)]
        self._server = grpc.server(ThreadPoolExecutor(8), handlers=[self], options=options)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        if details.method == METHOD:
            return grpc.stream_stream_rpc_method_handler(self._insert)
        call = self._channel.unary_unary(details.method)
        return grpc.unary_unary_rpc_method_handler(lambda request, context: call(request, timeout=DEADLINE))

    def _insert(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        self.calls += 1
        answers = self._channel.stream_stream(METHOD)(requests)
        context.add_callback(answers.cancel)
        yield from self._tamper(self.calls, answers)

    def __enter__(self) -> HostileRelay:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(0).wait(DEADLINE)
        self._channel.close()


def response(*keys: int) -> bytes:
    """Builds an InsertStreamResponse that acknowledges these keys."""
    return encode_delimited(1, b"".join(map(varint, keys)))
