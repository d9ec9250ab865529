"""`rlds-beam push`, killed at any moment and run again: in the end each item is in the table once.

The moments are byte positions of the stream (`proxy.Proxy`), so they do not depend on the speed of the machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("reverb")

import reverb
from cases import ALL
from jobs import complaints
from processes import DEADLINE, kill, members, running, wait_until
from proxy import Proxy
from pushes import PAIRS, STREAM_BYTES, arguments, dataset, due, held, look, one_table, wait_for_items

from rlds_beam.cli.main import main
from rlds_beam.trajectories.options import ItemOptions

ACROSS = ("--items=sequences", "--sequence_length=7", "--stride_length=2", "--across_episodes")
ACROSS_ITEMS = ItemOptions(items="sequences", sequence_length=7, stride_length=2, across_episodes=True)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return dataset(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def servers() -> Iterator[list[str]]:
    """Two servers for all tests; each test leaves their tables empty."""
    running = [reverb.Server(one_table()) for _ in range(2)]
    yield [f"127.0.0.1:{server.port}" for server in running]
    for server in running:
        server.stop()


def interrupt(
    command: list[str], proxy: Proxy, byte: int, action: Callable[[subprocess.Popen[str]], None]
) -> tuple[int, str, str]:
    """Runs a command and calls `action` once it has sent `byte` bytes, before any further byte is passed on.

    The server does not answer until the command has ended, so the command cannot finish earlier.
    """
    with running(command) as process:

        def at_byte() -> None:
            action(process)
            process.wait(DEADLINE)

        proxy.at_byte(proxy.sent + byte, at_byte)
        out, err = process.communicate(timeout=DEADLINE)
    return process.returncode, out, err


def sizes(servers: list[str]) -> int:
    return sum(look(server).current_size for server in servers)


def assert_killed_and_completed(
    data: Path, servers: list[str], flags: tuple[str, ...], items: ItemOptions, lives: list[tuple[str, ...]], seed: int
) -> None:
    """Runs the command with each of the flags, killed at a random byte, and then once undisturbed."""
    rng, expected, seen = random.Random(seed), due(items), 0
    with contextlib.ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(server)) for server in servers]
        addresses = [proxy.address for proxy in proxies]
        for life, extra in enumerate(lives):
            share = STREAM_BYTES // len(servers)
            byte = rng.randrange(20_000, share * 4 // 5) if life else share // 2
            code, out, _ = interrupt(arguments(data, addresses, *flags, *extra), proxies[0], byte, kill)
            assert (code, out) == (-signal.SIGKILL, "")
            assert seen <= sizes(servers) <= expected.total()
            seen = sizes(servers)
        assert seen > 0 or len(servers) > 1
        assert main(arguments(data, addresses, *flags)) == 0
    assert sum(look(server).limiter.inserts for server in servers) >= sizes(servers) == expected.total()
    found = [held(server) for server in servers]
    assert sum(found[1:], found[0]) == expected


def test_pairs(data, servers) -> None:
    lives: list[tuple[str, ...]] = [*([()] * (3 if ALL else 1)), ("--workers=2",)]
    assert_killed_and_completed(data, servers[:1], (), ItemOptions(), lives, seed=1)


def test_across_episodes(data, servers) -> None:
    assert_killed_and_completed(data, servers[:1], ACROSS, ACROSS_ITEMS, [(), ()], seed=2)


def test_two_servers(data, servers) -> None:
    assert_killed_and_completed(data, servers, (), ItemOptions(), [(), ()], seed=3)


def test_only_the_command_is_killed_and_run_again_at_once(data, servers) -> None:
    """Its workers continue for a moment and write the same items as the next run."""
    command = arguments(data, servers[:1], "--timeout=30")
    with Proxy(servers[0]) as proxy:
        workers = running(arguments(data, [proxy.address], "--workers=2"))
        with workers as process:
            proxy.at_byte(STREAM_BYTES // 3, process.kill)
            process.wait(DEADLINE)
            assert process.returncode == -signal.SIGKILL
            assert main(command) == 0
    assert held(servers[0]) == due()


def test_a_table_without_room_for_a_second_copy(data, capsys) -> None:
    """Items of a killed run make the table look too small for the next run; --allow_eviction permits it."""
    server = reverb.Server(one_table(PAIRS))
    address = f"127.0.0.1:{server.port}"
    with Proxy(address) as proxy:
        interrupt(arguments(data, [proxy.address]), proxy, STREAM_BYTES // 2, kill)
        wait_for_items(address)  # the server may still be reading
        there = look(address).current_size
        assert 0 < there < PAIRS
        assert main(arguments(data, [proxy.address])) == 2
        assert (
            "--allow_eviction, which drops nothing if the table already has the same items" in capsys.readouterr().err
        )
        assert main(arguments(data, [proxy.address], "--allow_eviction")) == 0
    assert look(address).limiter.inserts == PAIRS
    assert held(address) == due()
    server.stop()


@pytest.mark.parametrize(("number", "workers"), [(signal.SIGINT, 1), (signal.SIGINT, 2), (signal.SIGTERM, 2)])
def test_interrupted(data, servers, number, workers) -> None:
    """A push that waits for a server that does not answer; its workers end with it."""
    with Proxy(servers[0]) as proxy:
        groups = []

        def end(process: subprocess.Popen[str]) -> None:
            groups.append(process.pid)
            # A terminal sends Ctrl-C to all processes, `kill` sends SIGTERM to one.
            (kill if number == signal.SIGINT else subprocess.Popen.send_signal)(process, number)

        code, out, err = interrupt(
            arguments(data, [proxy.address], f"--workers={workers}"), proxy, STREAM_BYTES // 3, end
        )
        assert (code, json.loads(out)["error"]["exit_code"]) == (130, 130), err
        assert complaints(err) == [
            "rlds-beam: interrupted; the tables keep the items that they received, "
            "unless their server ended with this command"
        ]
        wait_until(lambda: members(groups[0]) == [])  # its workers end with it, on a busy machine a moment later
        assert main(arguments(data, [proxy.address])) == 0
    assert held(servers[0]) == due()


def test_observers_write_at_least_once(data, servers) -> None:
    """Killed and run again, they omit nothing; items written before are in the table twice."""
    with Proxy(servers[0]) as proxy:
        command = arguments(data, [proxy.address], "--writer=observer")
        code, _, _ = interrupt(command, proxy, 150_000, kill)
        assert code == -signal.SIGKILL
        wait_for_items(servers[0])  # the server may still be reading
        there = sizes(servers[:1])
        assert 0 < there < PAIRS
        assert main(command) == 0
    found, expected = held(servers[0]), due()
    assert expected - found == Counter()
    assert set(found) == set(expected)
    assert found.total() >= PAIRS + there  # the server may not have processed everything it was sent


def test_a_worker_dies(data, servers) -> None:
    with Proxy(servers[0]) as proxy:

        def end(process: subprocess.Popen[str]) -> None:
            os.kill(members(process.pid, "rlds_beam.runners.worker")[-1], signal.SIGKILL)

        code, out, err = interrupt(arguments(data, [proxy.address], "--workers=2"), proxy, STREAM_BYTES // 3, end)
        assert (code, json.loads(out)["error"]["exit_code"]) == (1, 1)
        (said,) = complaints(err)
        assert said.startswith("rlds-beam: a worker process died")
        assert said.endswith("run the same command to resume")
        assert main(arguments(data, [proxy.address])) == 0
    assert held(servers[0]) == due()
