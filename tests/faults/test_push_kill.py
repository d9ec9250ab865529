"""`rlds-beam push`, killed at any moment and run again: in the end each item is in the table once.

The moments are byte positions of the stream (`proxy.Proxy`), so they do not depend on the speed of the machine.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("reverb")

import reverb
from cases import ALL
from jobs import complaints
from processes import DEADLINE, kill, members, running, wait_until
from proxy import Proxy
from pushes import STREAM_BYTES, arguments, dataset, due, held, look, one_table

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
    command: list[str],
    proxy: Proxy,
    byte: int,
    action: Callable[[subprocess.Popen[str]], None],
    arrived: Callable[[], object] = lambda: True,
) -> tuple[int, str, str]:
    """Runs a command and calls `action` once it has sent `byte` bytes, before any further byte is passed on.

    The server does not answer until the command has ended, so the command cannot finish earlier. `arrived` says when
    the server has worked on the bytes.
    """
    with running(command) as process:

        def at_byte() -> None:
            until = time.monotonic() + DEADLINE
            while not arrived() and time.monotonic() < until:
                time.sleep(0.05)
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
            command = arguments(data, addresses, *flags, *extra)
            half = life == 0 and len(servers) == 1  # some of it is in the table
            arrived = functools.partial(sizes, servers) if half else lambda: True
            code, out, _ = interrupt(command, proxies[0], byte, kill, arrived)
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
        assert complaints(err) == ["rlds-beam: interrupted"]
        wait_until(lambda: members(groups[0]) == [])  # its workers end with it, on a busy machine a moment later
        assert main(arguments(data, [proxy.address])) == 0
    assert held(servers[0]) == due()


def test_a_worker_dies(data, servers) -> None:
    with Proxy(servers[0]) as proxy:

        def end(process: subprocess.Popen[str]) -> None:
            os.kill(members(process.pid, "rlds_beam.runners.local")[-1], signal.SIGKILL)

        code, out, err = interrupt(arguments(data, [proxy.address], "--workers=2"), proxy, STREAM_BYTES // 3, end)
        assert (code, json.loads(out)["error"]["exit_code"]) == (1, 1)
        (said,) = complaints(err)
        assert said.startswith("rlds-beam: a worker process died")
        assert said.endswith("run the same command to resume")
        assert main(arguments(data, [proxy.address])) == 0
    assert held(servers[0]) == due()
