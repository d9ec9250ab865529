"""A conversion to LeRobot that is killed at random moments ends with the bytes of an undisturbed run."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from pathlib import Path
from typing import Any

import lerobot_data as data
import pytest
from directories import bytes_of
from jobs import complaints
from processes import DEADLINE, kill, members, running, wait_until

WORKER = "rlds_beam.runners.worker"
FLAGS = ("--to=lerobot", f"--fps={data.FPS}", "--shards=6", "--progress=none")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return data.write_robot_data(tmp_path_factory.mktemp("data"))[0]


def commits(output: Path) -> int:
    return len(list((output / "_commits").glob("*.json")))


def disturb(command: list[Any], out: Path, rng: random.Random, how: str) -> None:
    """Runs the command and ends it at a random moment: before all ranges are finished, or (parent) after that."""
    with running(command) as process:
        wanted = rng.randrange(1, 10)
        last = [lambda: commits(out) == 12, lambda: [*out.glob("meta/*.json*")], (out / "report.json").exists]
        wait_until(rng.choice(last) if how == "parent" else lambda: commits(out) >= wanted, process)
        if how == "worker":
            with contextlib.suppress(ProcessLookupError, IndexError):
                os.kill(rng.choice(members(process.pid, WORKER)), signal.SIGKILL)
        else:
            kill(process, signal.SIGINT if how == "Ctrl-C" else signal.SIGKILL)
        _, err = process.communicate(timeout=DEADLINE)
    code = {"parent": -signal.SIGKILL, "worker": 1, "Ctrl-C": 130}[how]
    assert process.returncode in (code, 3), err  # 3: it had finished, with one rejected record
    if process.returncode == 130:
        assert complaints(err) == ["rlds-beam: interrupted; finished work is kept, run the same command to resume"]


@pytest.mark.parametrize(("version", "first"), [("3.0", "worker"), ("2.1", "Ctrl-C")])
def test_killed_and_run_again(tmp_path, source, version, first):
    rng, out = random.Random(version), tmp_path / "out"
    data.convert_here(source, tmp_path / "whole", shards=6, lerobot_version=version)
    command: list[Any] = ["convert", source, out, *FLAGS, f"--lerobot_version={version}", "--workers=2"]
    disturb(command, out, rng, first)
    disturb(command, out, rng, "parent")
    data.convert_here(source, out, shards=6, lerobot_version=version)
    assert bytes_of(out) == bytes_of(tmp_path / "whole")
