"""A server or proxy that violates the protocol causes an error in time, never a hang or a success."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("reverb")

import reverb
from hostile import HostileRelay, response
from pushes import held, one_table

from rlds_beam.encoding.wire import encode_delimited, integer, varint
from rlds_beam.errors import NotVerifiedError
from rlds_beam.reverb.encoding import ItemEncoder
from rlds_beam.reverb.inserts import Request, acknowledged_keys, decode_keys
from rlds_beam.reverb.stream import InsertStream
from rlds_beam.trajectories.items import Windows

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
