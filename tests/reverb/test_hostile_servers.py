"""A server or proxy that violates the protocol causes an error in time, never a hang or a success."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import pytest

from rlds_beam.encoding.wire import encode_delimited, varint
from rlds_beam.reverb.inserts import METHOD

pytest.importorskip("reverb")

import reverb
from pushes import held, one_table

from rlds_beam.encoding.wire import integer
from rlds_beam.errors import NotVerifiedError
from rlds_beam.reverb.encoding import ItemEncoder
from rlds_beam.reverb.inserts import Request, acknowledged_keys, decode_keys
from rlds_beam.reverb.stream import InsertStream
from rlds_beam.trajectories.items import Windows

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


ITEMS = 10
"""The number of items per request."""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    running = reverb.Server(one_table())
    yield f"127.0.0.1:{running.port}"
    running.stop()


@pytest.fixture
def clean(server: str) -> Iterator[str]:
    yield server
    reverb.Client(server).reset("t")


numbers = itertools.count(1)


def requests(count: int) -> list[Request]:
    encoder = ItemEncoder([(np.dtype("float32"), ())], ["t"], 4)
    made: list[Request] = []
    for i in itertools.islice(numbers, count):
        cut = encoder.cut(
            [np.zeros(ITEMS + 1, np.float32)],
            Windows(0, ITEMS, 2, 1, ITEMS + 1),
            priorities=np.ones(ITEMS),
            seeds=[i],
            chunk_seed=i + 10_000_000,
            episode_id=i,
        )
        made += encoder.encode([cut])
    return made


def send_all(stream: InsertStream, those: list[Request]) -> None:
    for request in those:
        stream.send(request)
    stream.flush()


def keys_of(answers: Iterable[bytes]) -> Iterator[int]:
    for answer in answers:
        yield from decode_keys([acknowledged_keys(answer)]).tolist()


def wrong(call: int, answers: Iterator[bytes]) -> Iterator[bytes]:
    return (response(*(key ^ 1 for key in keys_of([answer]))) for answer in answers)


def twice_at_once(call: int, answers: Iterator[bytes]) -> Iterator[bytes]:
    return (response(key, key) for key in keys_of(answers))


def cut_short(call: int, answers: Iterator[bytes]) -> Iterator[bytes]:
    return (answer[:-1] for answer in answers)


def a_key_without_end(call: int, answers: Iterator[bytes]) -> Iterator[bytes]:
    return iter([encode_delimited(1, b"\x80" * 3)])


@pytest.mark.parametrize("tamper", [wrong, twice_at_once, cut_short, a_key_without_end])
def test_a_protocol_violation_is_an_error_at_once(clean: str, tamper: Any) -> None:
    with HostileRelay(clean, tamper) as relay:
        stream = InsertStream(relay.address, timeout=50)
        with pytest.raises(NotVerifiedError, match="violates Reverb's protocol") as caught:
            send_all(stream, requests(3))
        assert relay.calls == 1, "it was called again"
        said = str(caught.value)
        assert said.startswith(relay.address) and "\n" not in said and "run again" in said
        with pytest.raises(NotVerifiedError, match="violates Reverb's protocol"):
            stream.flush()
        stream.close()


def test_any_order_and_any_encoding_are_accepted(clean: str) -> None:
    """Packed or not, with unknown fields, in pieces: protobuf accepts all of these."""
    rng = random.Random(0)

    def shuffled(call: int, answers: Iterator[bytes]) -> Iterator[bytes]:
        keys = list(itertools.islice(keys_of(answers), 4 * ITEMS))
        rng.shuffle(keys)
        while keys:
            some = [keys.pop() for _ in range(min(len(keys), 3))]
            unpacked = b"".join(b"\x08" + varint(key) for key in some[1:])
            yield integer(9, 5) + response(some[0]) + unpacked + encode_delimited(12, b"new")

    with HostileRelay(clean, shuffled) as relay:
        stream = InsertStream(relay.address, timeout=30)
        first, second, third = requests(3)
        for request in (first, second, first, third):  # the first twice, so it is acknowledged twice
            stream.send(request)
        stream.flush()
        assert stream.acknowledged == 4 * ITEMS
        stream.close()
    assert held(clean).total() == 3 * ITEMS
