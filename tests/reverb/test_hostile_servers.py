"""A server or proxy that violates the protocol causes an error in time, never a hang or a success."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("reverb")

import reverb
from hostile import HostileRelay, response
from pushes import Push, dataset, held, one_table

from rlds_beam.encoding.wire import encode_delimited, integer, varint
from rlds_beam.errors import NotVerifiedError
from rlds_beam.reverb.connection import Connection, ServerError
from rlds_beam.reverb.encoding import ItemEncoder
from rlds_beam.reverb.protocol.inserts import Request, acknowledged_keys, decode_keys
from rlds_beam.reverb.stream import InsertStream
from rlds_beam.trajectories.items import Windows

ITEMS = 10
"""The number of items per request."""

pytestmark = pytest.mark.timeout(120)


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


def twice_each(call: int, answers: Iterator[bytes]) -> Iterator[bytes]:
    return (response(key) for key in keys_of(answers) for _ in range(2))


def twice_at_once(call: int, answers: Iterator[bytes]) -> Iterator[bytes]:
    return (response(key, key) for key in keys_of(answers))


def more_than_sent(call: int, answers: Iterator[bytes]) -> Iterator[bytes]:
    yield response(*range(1000))


def one_of_them_wrong(call: int, answers: Iterator[bytes]) -> Iterator[bytes]:
    for i, key in enumerate(keys_of(answers)):
        yield response(key if i != 3 else 7)


def no_answer(call: int, answers: Iterator[bytes]) -> Iterator[bytes]:
    return iter([b"\xff\xff\xff"])


def cut_short(call: int, answers: Iterator[bytes]) -> Iterator[bytes]:
    return (answer[:-1] for answer in answers)


def a_key_without_end(call: int, answers: Iterator[bytes]) -> Iterator[bytes]:
    return iter([encode_delimited(1, b"\x80" * 3)])


def a_key_too_long(call: int, answers: Iterator[bytes]) -> Iterator[bytes]:
    return iter([encode_delimited(1, b"\x80" * 20 + b"\0")])


@pytest.mark.parametrize(
    "tamper",
    [
        wrong,
        twice_each,
        twice_at_once,
        more_than_sent,
        one_of_them_wrong,
        no_answer,
        cut_short,
        a_key_without_end,
        a_key_too_long,
    ],
)
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


def hangs_up_after(tamper: Any) -> Any:
    def first_answer_only(call: int, answers: Iterator[bytes]) -> Iterator[bytes]:
        return itertools.islice(tamper(call, answers), 1)

    return first_answer_only


@pytest.mark.parametrize("tamper", [wrong, twice_at_once, cut_short, a_key_without_end, a_key_too_long])
def test_a_server_that_breaks_the_protocol_and_hangs_up_is_not_called_again(clean: str, tamper: Any) -> None:
    """Also if the call ends before its first answer is processed, as may happen on a busy machine."""
    with HostileRelay(clean, hangs_up_after(tamper)) as relay:
        stream = InsertStream(relay.address, timeout=50)
        for request in requests(3):
            stream.send(request)
        for thread in threading.enumerate():
            if thread.name == "reverb-acknowledgements":
                thread.join(30)
        with pytest.raises(NotVerifiedError, match="violates Reverb's protocol"):
            stream.flush()
        assert relay.calls == 1
        stream.close()


def one_and_no_more(call: int, answers: Iterator[bytes]) -> Iterator[bytes]:
    """The server acknowledges the same item every time and then ends the call."""
    yield response(next(keys_of(answers)))


def nothing_but_the_end(call: int, answers: Iterator[bytes]) -> Iterator[bytes]:
    return iter([])


@pytest.mark.parametrize("tamper", [one_and_no_more, nothing_but_the_end])
def test_a_call_that_always_ends_is_given_up_after_the_timeout(clean: str, tamper: Any) -> None:
    with HostileRelay(clean, tamper) as relay:
        stream = InsertStream(relay.address, timeout=2)
        with pytest.raises(NotVerifiedError, match="did not come back within 2 s, or broke again"):
            send_all(stream, requests(2))
        assert relay.calls > 1
        stream.close()


def test_a_servers_error_is_one_line(clean: str) -> None:
    def refuse(call: int, answers: Iterator[bytes]) -> Iterator[bytes]:
        raise ValueError("first\nsecond \x1b[31m" + 1000 * "x")

    with HostileRelay(clean, refuse) as relay:
        stream = InsertStream(relay.address, timeout=1)
        with pytest.raises(NotVerifiedError, match="first second") as caught:
            send_all(stream, requests(1))
        assert str(caught.value).isprintable() and len(str(caught.value)) < 800
        stream.close()


def test_empty_answers_are_not_progress(clean: str) -> None:
    ended = threading.Event()

    def empty(call: int, answers: Iterator[bytes]) -> Iterator[bytes]:
        yield response(next(keys_of(answers)))
        while not ended.wait(0.1):
            yield b""

    with HostileRelay(clean, empty) as relay:
        stream = InsertStream(relay.address, timeout=2)
        (request,) = requests(1)
        stream.send(request)
        with pytest.raises(NotVerifiedError, match=f"no item was acknowledged for 2 s, and {ITEMS - 1} are missing"):
            stream.flush()
        ended.set()
        stream.close()


def test_each_call_makes_progress(clean: str) -> None:
    """Items acknowledged by any call count, so each call must acknowledge only one new item."""

    def another(call: int, answers: Iterator[bytes]) -> Iterator[bytes]:
        keys = sorted(itertools.islice(keys_of(answers), ITEMS))
        yield response(keys[(call - 1) % ITEMS])

    with HostileRelay(clean, another) as relay:
        stream = InsertStream(relay.address, timeout=30)
        (request,) = requests(1)
        stream.send(request)
        stream.flush()
        assert relay.calls == stream.acknowledged == ITEMS
        stream.close()
    assert held(clean).total() == ITEMS


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


def test_the_command_reports_it_in_one_line(clean: str, tmp_path: Any, capsys: Any) -> None:
    push = Push(dataset(tmp_path), capsys)
    with HostileRelay(clean, wrong) as relay:
        push(relay.address).assert_not_verified(relay.address, "violates Reverb's protocol")
    with HostileRelay(clean, one_and_no_more) as relay:
        push(relay.address, "--timeout=2").assert_not_verified(relay.address, "did not come back within 2 s")


def test_a_signature_without_bottom_is_refused(clean: str) -> None:
    nest = b""
    for _ in range(2000):
        nest = encode_delimited(51, encode_delimited(1, nest))
    info = encode_delimited(2, encode_delimited(6, nest))
    with (
        HostileRelay(clean, wrong, info) as relay,
        Connection(relay.address) as connection,
        pytest.raises(ServerError, match=r"is not a Reverb server .*levels"),
    ):
        connection.info(10)
