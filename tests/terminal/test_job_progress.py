"""Progress output while a job runs."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkout import SUPPORT
from flink_gate import Gate
from processes import DEADLINE, running

from rlds_beam.terminal import job_progress as progress
from rlds_beam.terminal.job_progress import Progress
from rlds_beam.testing import make_episode, shard_paths, write_dataset
from rlds_beam.worker_status import Done

FLAGS = ("--shards=8", "--accept=duplicate_episode", "--policy_info_fn=flink_gate:hold")


@pytest.fixture
def data(tmp_path) -> Path:
    return write_dataset(tmp_path / "data", [make_episode(20, seed=i) for i in range(40)], shards=2)


@pytest.fixture
def gate(tmp_path, monkeypatch) -> Iterator[Gate]:
    """A barrier at which a job waits after its first range."""
    found = Gate(tmp_path / "gate")
    found.close(tmp_path / "out")
    monkeypatch.setenv("FLINK_GATE", str(found.directory))
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT))
    yield found
    found.open()


@pytest.fixture
def eager(monkeypatch) -> None:
    monkeypatch.setattr(progress, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(progress, "EVERY_SECONDS", 0.05)


def read_until(master: int, pattern: bytes) -> bytes:
    """Reads a terminal until a match of `pattern`, or to the end."""
    seen, deadline = b"", time.monotonic() + DEADLINE
    while not re.search(pattern, seen) and time.monotonic() < deadline and select.select([master], [], [], DEADLINE)[0]:
        with contextlib.suppress(OSError):  # raised when the last process on the terminal ends
            seen += os.read(master, 65536)
            continue
        break
    return seen


def test_a_terminal_has_a_live_line(data, tmp_path, gate) -> None:
    master, terminal = pty.openpty()
    arguments = ["convert", data, tmp_path / "out", *FLAGS, "--workers=2"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LC_ALL": "C.UTF-8"}
    with running(arguments, env=environment, stdout=terminal, stderr=terminal, text=False) as process:
        os.close(terminal)
        seen = read_until(master, b"[12] of 8 ranges")
        assert re.search(rb" [1-7]\d%.* [12] of 8 ranges", seen) and "━".encode() in seen, seen  # others have begun
        gate.open()
        seen += read_until(master, b"took ")
        assert process.wait(DEADLINE) == 0, seen
    os.close(master)
    assert b"\r" in seen and b"\x1b[2K" in seen  # the line is overwritten, and cleared at the end
    assert "━".encode() not in seen.rpartition(b"\x1b[2K")[2]


def test_without_a_terminal_there_are_plain_lines(data, gate, convert, monkeypatch, eager) -> None:
    printed = Progress._print

    def print_and_open(self: Progress, text: str) -> None:
        printed(self, text)
        if " ranges, " in text:
            gate.open()

    monkeypatch.setattr(Progress, "_print", print_and_open)
    monkeypatch.syspath_prepend(str(SUPPORT))
    ran = convert(data, *FLAGS, "--workers=1")
    assert ran.code == 0
    times, said = zip(*(line.split(" ", 1) for line in ran.err.splitlines()), strict=True)
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", text) for text in times) and list(times) == sorted(
        times
    )
    assert any(" of 8 ranges, " in line for line in said), ran.err
    assert all(line.startswith("rlds-beam: convert ") for line in said)  # on a busy machine, some are about the plan
    assert "\x1b" not in ran.err


def test_none_prints_nothing(data, gate, convert, monkeypatch, eager) -> None:
    tick = Progress.tick

    def tick_and_open(self: Progress, done: Done | None) -> None:
        tick(self, done)
        if done is not None and done.ranges:
            gate.open()

    monkeypatch.setattr(Progress, "tick", tick_and_open)
    monkeypatch.syspath_prepend(str(SUPPORT))
    ran = convert(data, *FLAGS, "--progress=none")
    assert (ran.code, ran.err) == (0, "")


def facts(progress: Progress, done: Done) -> str:
    return ", ".join(progress.facts(done))


def test_the_line_of_a_conversion() -> None:
    total = Progress("convert", ranges=100, finished=20, bytes=3_200_000_000)
    assert facts(total, Done()) == "starting"
    assert facts(total, Done(scanned=7)) == "looking for duplicates (7 file segments)"
    assert facts(Progress("convert"), Done(framed=2_500_000_000)) == "planning, 2.5 GB scanned"
    working = Done(ranges=20, records=4000, bytes=640_000_000, steps=400_000, rejected=3)
    assert facts(total, working) == "40 of 100 ranges, 3 rejected, 400,000 steps, 640.0 MB of 3.2 GB"
    compressed = Done(ranges=1, records=9, bytes=5_000_000, steps=300)
    assert facts(Progress("convert", ranges=4, bytes=1_000_000), compressed) == "1 of 4 ranges, 300 steps, 5.0 MB"
    half = Done(records=10, bytes=500_000, steps=7200)
    assert facts(Progress("check", bytes=1_000_000), half) == "7,200 steps, 500.0 kB of 1.0 MB"


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> Path:
    """A dataset with enough records that a command is still running when it is interrupted."""
    path = write_dataset(tmp_path_factory.mktemp("large"), [make_episode(2, seed=i) for i in range(100)])
    (shard,) = shard_paths(path)
    shard.write_bytes(shard.read_bytes() * 4_000)
    return path


@pytest.mark.parametrize(
    ("command", "shown", "said"),
    [
        (
            ["check", "--rules", "{large}", "--accept=duplicate_episode", "--workers=1"],
            " steps, ",
            "interrupted",
        ),
        (
            ["convert", "{large}", "{out}", "--accept=duplicate_episode", "--workers=1"],
            " ranges, ",
            "run the same command",
        ),
    ],
    ids=["check", "convert"],
)
def test_an_interrupted_command_says_what_was_kept(tmp_path, large, command, shown, said) -> None:
    master, terminal = pty.openpty()
    arguments = [text.format(large=large, out=tmp_path / "out") for text in command]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "160"}
    with running(arguments, env=environment, stdout=terminal, stderr=terminal, text=False) as process:
        os.close(terminal)
        seen = read_until(master, re.escape(shown.encode()))
        assert shown.encode() in seen, seen
        os.kill(process.pid, signal.SIGINT)
        seen += read_until(master, re.escape(said.encode()))
        assert process.wait(DEADLINE) == 130, seen
    os.close(master)
    assert said.encode() in seen and b"Traceback" not in seen
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not left or said != "interrupted"


def test_a_resumed_job_says_so(data, convert, tmp_path) -> None:
    flags = ("--shards=4", "--accept=duplicate_episode")
    ran = convert(data, *flags)
    (ran.output / "manifest.json").unlink()
    for commit in sorted((ran.output / "_commits").iterdir())[2:]:
        commit.unlink()
    ran = convert(data, *flags)
    assert "rlds-beam: resumed: 2 of 4 ranges were finished\n" in ran.err
