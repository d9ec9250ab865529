"""Progress output while a job runs."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import re
import select
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkout import SUPPORT
from flink_gate import Gate
from processes import DEADLINE, running, start, wait_until

from rlds_beam import worker_status
from rlds_beam.jobs.convert import prepare
from rlds_beam.pipelines.convert import ConvertConfig
from rlds_beam.terminal import job_progress as progress
from rlds_beam.terminal.job_progress import Progress
from rlds_beam.testing import make_episode, shard_paths, write_dataset
from rlds_beam.text import format_size
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
        assert re.search(rb" 12%.* 1 of 8 ranges| 25%.* 2 of 8 ranges", seen) and "━".encode() in seen, seen
        gate.open()
        seen += read_until(master, b"took ")
        assert process.wait(DEADLINE) == 0, seen
    os.close(master)
    assert b"\r" in seen and b"\x1b[2K" in seen  # the line is overwritten, and cleared at the end
    assert "━".encode() not in seen.rpartition(b"\x1b[2K")[2]


@pytest.mark.parametrize(
    ("ends", "variables"),
    [
        ("", {}),
        ("error", {}),
        ("KeyboardInterrupt", {}),
        ("error", {"TERM": "dumb"}),
    ],
)
def test_nothing_of_the_bar_stays(ends: str, variables: dict[str, str]) -> None:
    script = (
        "import sys\n"
        "from rlds_beam.terminal.job_progress import Progress\n"
        "from rlds_beam.worker_status import Done\n"
        "with Progress('convert', ranges=4).show() as progress:\n"
        "    progress.tick(Done(records=8, ranges=2, steps=9, rejected=1))\n"
        "    progress.say('a line')\n"
        "    print('another', file=sys.stderr)\n"
        "    {}\n"
    )
    raised = {"": "pass", "error": "raise SystemExit('it failed')", "KeyboardInterrupt": "raise SystemExit(130)"}
    master, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LC_ALL": "C.UTF-8", **variables}
    command = [sys.executable, "-c", script.format(raised[ends])]
    with start(command, env=environment, stdout=terminal, stderr=terminal, text=False) as process:
        os.close(terminal)
        seen = read_until(master, b"nothing matches this")
        assert process.wait(DEADLINE) == {"": 0, "error": 1, "KeyboardInterrupt": 130}[ends], seen
    os.close(master)
    screen = displayed(seen.decode())
    assert screen == ["rlds-beam: a line", "another", *(["it failed"] if ends == "error" else [])]
    assert (b"\x1b[38;" in seen) == ("━".encode() in seen) == (not variables)
    assert (b"\x1b" in seen) == ("TERM" not in variables)


def displayed(seen: str) -> list[str]:
    """The lines on a screen: what is left after carriage returns, erased lines, and moves up."""
    lines, row = [""], 0
    for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", seen):
        if part == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        elif part == "\x1b[2K":
            lines[row] = ""
        elif match := re.fullmatch(r"\x1b\[(\d+)A", part):
            row -= int(match[1])
        elif part[0] not in "\x1b\r":
            lines[row] += part
    return [line for line in lines if line]


@pytest.mark.parametrize(
    ("progress", "done", "part"),
    [
        (Progress("check", bytes=100), Done(records=1, bytes=50), (50, 100)),
        (Progress("convert", ranges=4, finished=1), Done(ranges=1), (2, 4)),
        (Progress("convert", ranges=4, bytes=1), Done(ranges=1, bytes=9), (1, 4)),  # compressed
        (Progress("count"), Done(records=3), None),
        (Progress("convert", ranges=4), Done(scanned=3), None),
        (Progress("convert", ranges=0), Done(records=1), None),
    ],
)
def test_the_finished_part(progress: Progress, done: Done, part: tuple[int, int] | None) -> None:
    assert progress.part(done) == part


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


@pytest.mark.parametrize("flag", ["--progress=none", "-q", "--quiet"])
def test_none_prints_nothing(data, gate, convert, monkeypatch, eager, flag) -> None:
    tick = Progress.tick

    def tick_and_open(self: Progress, done: Done | None) -> None:
        tick(self, done)
        if done is not None and done.ranges:
            gate.open()

    monkeypatch.setattr(Progress, "tick", tick_and_open)
    monkeypatch.syspath_prepend(str(SUPPORT))
    ran = convert(data, *FLAGS, flag)
    assert (ran.code, ran.err) == (0, "")
    assert (ran.out == "") == (flag != "--progress=none")


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


def test_scanned_bytes_are_counted_while_a_job_is_planned(tmp_path, monkeypatch, capsys) -> None:
    source = write_dataset(tmp_path / "data", [make_episode(20, seed=i) for i in range(40)], shards=2)
    monkeypatch.setattr(progress, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(progress, "EVERY_SECONDS", 0.0)
    size = sum(shard.stat().st_size for shard in shard_paths(source))
    line = f"rlds-beam: convert planning, {format_size(size)} scanned, "
    before, said = worker_status.done().framed, io.StringIO()
    with Progress("convert", "plain").show():
        prepare(ConvertConfig.create(input=str(source), output=str(tmp_path / "out")))
        wait_until(lambda: said.write(capsys.readouterr().err) and line in said.getvalue())
    assert worker_status.done().framed - before == size


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
            "nothing was written",
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
    assert not left or said != "nothing was written"


def test_a_runner_that_does_not_report_progress(capsys, monkeypatch) -> None:
    """On Flink, finished ranges are counted in the output."""
    monkeypatch.setattr(progress, "EVERY_SECONDS", 0.0)
    shown = Progress("convert", "plain", ranges=4, poll=lambda: Done(ranges=2))
    shown._began -= 60
    shown.tick(None)
    assert capsys.readouterr().err.endswith("Z rlds-beam: convert 2 of 4 ranges, 1:00 so far\n")


def test_a_line_that_cannot_be_printed_is_not_an_error(monkeypatch) -> None:
    monkeypatch.setattr(progress, "EVERY_SECONDS", 0.0)
    with open("/dev/full", "w") as full:
        shown = Progress("push", "plain", ranges=2, stream=full)
        shown.tick(Done(ranges=1))
        with pytest.raises(OSError, match="No space left"):  # the line was written, and lost
            full.close()


def test_a_resumed_job_says_so(data, convert, tmp_path) -> None:
    flags = ("--shards=4", "--accept=duplicate_episode")
    ran = convert(data, *flags)
    (ran.output / "manifest.json").unlink()
    for commit in sorted((ran.output / "_commits").iterdir())[2:]:
        commit.unlink()
    ran = convert(data, *flags)
    assert "rlds-beam: resumed: 2 of 4 ranges were finished\n" in ran.err
