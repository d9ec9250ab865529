"""Fault cases 21 to 24, through the real command: Reverb servers that are gone, stopped, killed or restarted.

Events in the middle of a push happen at a given byte (`proxy.Proxy`), not at a given time.
"""

from __future__ import annotations

import contextlib
import json
import random
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

pytest.importorskip("reverb")

import reverb
from call_timeouts import calls_end_within
from cases import ALL
from processes import DEADLINE, run, running
from proxy import Proxy
from pushes import PAIRS, STREAM_BYTES, WAITING, Ran, arguments, due, held, one_table, size, wait_for_items
from servers import ServerProcess, free_port, tight

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
        with calls_end_within(1):
            refused = push(address, "--timeout=1", *workers)
        refused.assert_refused(address, "no Reverb server answers", "serve")

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

    def test_21_another_server_listens(self, push) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            address = f"127.0.0.1:{listener.getsockname()[1]}"
            threading.Thread(target=_answer_as_http, args=(listener,), daemon=True).start()
            push(address, "--timeout=1").assert_refused(address, "no Reverb server answers")

    def test_21_another_service_listens(self, push) -> None:
        other = grpc.server(ThreadPoolExecutor(1))
        address = f"127.0.0.1:{other.add_insecure_port('127.0.0.1:0')}"
        other.start()
        push(address, "--timeout=5").assert_refused(address, "the server there is not a Reverb server")
        other.stop(0).wait(DEADLINE)

    def test_21_the_server_does_not_answer(self, push) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            address = f"127.0.0.1:{listener.getsockname()[1]}"
            push(address, "--timeout=1").assert_refused(address, "it may not be a Reverb server")

    def test_21_a_stopped_server(self, push, process) -> None:
        process.stop()
        push(process.address, "--timeout=1").assert_refused(process.address, "no answer within", "stopped")
        process.resume()
        assert size(process.address) == 0

    def test_21_one_of_two_servers(self, push, table) -> None:
        there, gone = table(tight(10**6)), f"127.0.0.1:{free_port()}"
        push(f"{there},{gone}", "--timeout=1").assert_refused(gone)
        assert size(there) == 0

    def test_21_no_address(self, push) -> None:
        push("127.0.0.1").assert_refused("'127.0.0.1'", "host:port")


def _answer_as_http(listener: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            client, _ = listener.accept()
            client.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
            client.close()


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

    def test_22_with_worker_processes(self, data, process) -> None:
        """The command reports the error of a worker."""
        with Proxy(process.address) as proxy:

            def fail() -> None:
                wait_for_items(process.address)
                process.kill()

            proxy.at_byte(STREAM_BYTES * 9 // 10, fail)  # of each of two streams
            code, out, err = run(arguments(data, [proxy.address], "--timeout=2", "--workers=2"))
            Ran(code, json.loads(out or "{}"), err).assert_not_verified(proxy.address)

    def test_22_with_observers(self, data, process) -> None:
        """In its own process, since an abandoned observer keeps retrying and logging while its process lives."""

        def fail() -> None:
            wait_for_items(process.address)
            process.stop()

        with Proxy(process.address) as proxy:
            proxy.at_byte(100_000, fail)
            code, out, err = run(arguments(data, [proxy.address], "--timeout=3", "--writer=observer"))
        # Among Reverb's own lines, and after one that says that the server is slow to answer.
        *_, said = (line for line in err.splitlines() if line.startswith("rlds-beam: "))
        Ran(code, json.loads(out or "{}"), said).assert_not_verified("TF-Agents observer", "written twice")

    @pytest.mark.parametrize("harm", ["kill", "stop"])
    def test_22_when_all_is_acknowledged(self, push, process, harm) -> None:
        """The third connection asks for the content of the tables."""
        with Proxy(process.address) as proxy:
            proxy.at_connection(3, getattr(process, harm))
            push(proxy.address, "--timeout=2").assert_not_verified("cannot be verified", proxy.address)


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

    @pytest.mark.parametrize("connection", [2, 3])
    def test_23_between_connections(self, push, process, pairs, connection) -> None:
        """Between the check of the tables and the first item (2), between the last item and the verification (3)."""

        def restart() -> None:
            process.kill()
            process.start()

        with Proxy(process.address) as proxy:
            proxy.at_connection(connection, restart)
            push(proxy.address).assert_not_verified(proxy.address, "was restarted")
            push(proxy.address).assert_clean()
        assert held(process.address) == pairs

    def test_23_from_a_checkpoint(self, push, tmp_path, pairs) -> None:
        saved = []

        def save() -> None:
            wait_for_items(process.address)
            reverb.Client(process.address).checkpoint()
            saved.append(size(process.address))

        def restart() -> None:
            process.kill()
            process.start()

        with ServerProcess(one_table, checkpoint=str(tmp_path)) as process, Proxy(process.address) as proxy:
            proxy.at_byte(STREAM_BYTES // 2, save)
            proxy.at_byte(STREAM_BYTES * 9 // 10, restart)
            push(proxy.address).assert_not_verified(proxy.address, "was restarted")
            there = size(process.address)
            assert 0 < there <= saved[0]
            assert push(proxy.address).assert_clean()["already_there"] == there
            assert held(process.address) == pairs

    def test_23_reset_by_another_client(self, push, table, pairs) -> None:
        address = table(tight(10**6, max_times_sampled=1))

        def reset() -> None:
            wait_for_items(address)
            reverb.Client(address).reset("t")

        with Proxy(address) as proxy:
            proxy.at_byte(STREAM_BYTES // 2, reset)
            push(proxy.address).assert_not_verified("it was reset")
            push(proxy.address).assert_clean()
        assert held(address) == pairs


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

    def test_24_a_connection_that_never_lasts(self, push, server, pairs) -> None:
        """A connection always breaks before a request is complete: retrying stops."""
        with Proxy(server) as proxy:
            proxy.at_byte(STREAM_BYTES // 2, lambda: proxy.cut_every(5_000))
            push(proxy.address, "--timeout=2").assert_not_verified(proxy.address, "2 s")
            assert proxy.connections > 5
        push(server).assert_clean()
        assert held(server) == pairs

    def test_24_all_at_once(self, push, data, server, pairs) -> None:
        """Each bundle twice, lost acknowledgments, and a second run."""
        with Proxy(server) as proxy:
            proxy.at_byte(STREAM_BYTES // 4, proxy.swallow)
            code, out, err = run(
                arguments(data, [proxy.address], "--runner=direct", "--", "--direct_runner_bundle_repeat=1")
            )
            ran = Ran(code, json.loads(out or "{}"), err)
            check = ran.assert_clean()
            assert (check["inserted"], check["size"]) == (PAIRS, PAIRS)
            assert proxy.swallowed
            assert push(proxy.address).assert_clean()["already_there"] == PAIRS
        assert held(server) == pairs
