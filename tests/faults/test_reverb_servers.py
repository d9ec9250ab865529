"""Fault cases 21 to 24, through the real command: Reverb servers that are gone, stopped, killed or restarted.

Events in the middle of a push happen at a given byte (`proxy.Proxy`), not at a given time.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

pytest.importorskip("reverb")

import reverb
from cases import ALL
from processes import DEADLINE, running
from proxy import Proxy
from pushes import PAIRS, STREAM_BYTES, WAITING, arguments, due, held, one_table, size, wait_for_items
from servers import ServerProcess, free_port

from rlds_beam.trajectories.options import ItemOptions


@pytest.fixture
def process() -> Iterator[ServerProcess]:
    with ServerProcess(one_table) as process:
        yield process


class TestUnreachable:
    """Case 21: no server at the address, or one that does not answer: exit code 2 within the deadline."""

    @pytest.mark.parametrize("workers", [(), ("--workers=2",)])
    def test_21_no_server_listens(self, push, workers) -> None:
        address = f"127.0.0.1:{free_port()}"
        push(address, "--timeout=1", *workers).assert_refused(address, "no Reverb server answers", "serve")

    def test_21_a_wait_is_announced(self, data) -> None:
        """The line is printed while the command waits, and the command continues when the server comes up."""
        address = f"127.0.0.1:{free_port()}"
        with running(arguments(data, [address], "--timeout=120", "--dry_run")) as process:
            assert process.stderr is not None
            told = process.stderr.readline()
            assert WAITING.match(told.strip()) and address in told and "up to 120 s" in told
            assert process.poll() is None
            server = reverb.Server(one_table(), port=int(address.rpartition(":")[2]))
            _, err = process.communicate(timeout=DEADLINE)
            server.stop()
        assert (process.returncode, err) == (0, "")


class TestKilled:
    """Case 22: the server dies or hangs in the middle: exit code 4, never 0, never a hang."""

    @pytest.mark.parametrize(
        ("harm", "said"),
        [
            ("kill", "the connection was lost and did not come back within 2 s"),
            ("stop", "no item was acknowledged for 2 s"),
        ],
    )
    def test_22(self, push, process, pairs, harm, said) -> None:
        def fail() -> None:
            wait_for_items(process.address)
            getattr(process, harm)()

        with Proxy(process.address) as proxy:
            proxy.at_byte(STREAM_BYTES // 2, fail)
            push(proxy.address, "--timeout=2").assert_not_verified(proxy.address, said)
        process.start() if harm == "kill" else process.resume()
        inserted = push(process.address).assert_clean()["inserted"]
        assert inserted == PAIRS or harm == "stop"  # a stopped server has some already
        assert held(process.address) == pairs


class TestRestarted:
    """Case 23: a server dies with acknowledged items, and the job reports it; a second run restores them."""

    @pytest.mark.parametrize("moment", [0.5, 0.9])
    def test_23_empty(self, push, process, pairs, moment) -> None:
        def restart() -> None:
            wait_for_items(process.address)
            process.kill()
            process.start()

        with Proxy(process.address) as proxy:
            proxy.at_byte(int(moment * STREAM_BYTES), restart)
            push(proxy.address).assert_not_verified(proxy.address, "was restarted while items were written")
            assert size(process.address) == 0
            assert push(proxy.address).assert_clean()["inserted"] == PAIRS
        assert held(process.address) == pairs


class TestLostAcknowledgments:
    """Case 24: items that are sent twice are in the table once."""

    @pytest.fixture
    def server(self):
        server = reverb.Server(one_table())
        yield f"127.0.0.1:{server.port}"
        server.stop()

    @pytest.mark.parametrize("seed", range(3 if ALL else 1))
    def test_24_the_connection_breaks(self, push, server, pairs, seed) -> None:
        rng = random.Random(seed)
        with Proxy(server) as proxy:
            for _ in range(rng.randrange(1, 5)):
                proxy.at_byte(rng.randrange(2_000, STREAM_BYTES), proxy.cut)
            assert push(proxy.address).assert_clean()["inserted"] == PAIRS
            assert proxy.connections > 3
        assert held(server) == pairs

    @pytest.mark.parametrize("seed", range(2 if ALL else 1))
    @pytest.mark.parametrize("flags", [(), ("--items=sequences", "--sequence_length=7", "--across_episodes")])
    def test_24_acknowledgments_are_lost(self, push, server, seed, flags) -> None:
        rng = random.Random(seed)
        kind = ItemOptions(items="sequences", sequence_length=7, across_episodes=True) if flags else ItemOptions()
        with Proxy(server) as proxy:
            for begin in (rng.randrange(5_000, 500_000), rng.randrange(1_000_000, 1_700_000)):
                proxy.at_byte(begin, proxy.swallow)
            ran = push(proxy.address, *flags)
            assert (ran.code, ran.said) == (0, "")
            assert proxy.swallowed  # once or twice: the second cut may coincide with the first
        expected = due(kind)
        (check,) = ran.report["tables"]
        assert check["inserted"] == check["acknowledged"] == check["size"] == expected.total()
        assert held(server) == expected
