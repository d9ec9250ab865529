"""A conversion to LeRobot that is killed at random moments ends with the bytes of an undisturbed one."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from pathlib import Path
from typing import Any

import lerobot_data as data
import pytest
from jobs import complaints
from processes import DEADLINE, kill, members, running, wait_until

WORKER = "rlds_beam.runners.worker"
FLAGS = ("--to=lerobot", f"--fps={data.FPS}", "--shards=6", "--progress=none")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return data.write_robot_data(tmp_path_factory.mktemp("data"))[0]


def commits(output: Path) -> int:
    return len(list((output / "_commits").glob("*.json")))


@pytest.mark.parametrize("version", ["3.0", "2.1"])
def test_killed_workers_and_parents(tmp_path, source, version):
    rng, out = random.Random(version), tmp_path / "out"
    data.convert_here(source, tmp_path / "whole", shards=6, lerobot_version=version)
    command: list[Any] = ["convert", source, out, *FLAGS, f"--lerobot_version={version}", "--workers=2"]
    with running(command) as process:
        moment = rng.randrange(1, 11)
        wait_until(lambda: commits(out) >= moment, process)
        with contextlib.suppress(ProcessLookupError, IndexError):
            os.kill(rng.choice(members(process.pid, WORKER)), signal.SIGKILL)
        process.communicate(timeout=DEADLINE)
        assert process.returncode in (1, 3)  # 3: it was done before, with a record that was rejected
    with running(command) as process:
        moments = [lambda: commits(out) == 12, lambda: [*out.glob("meta/*.json*")], (out / "report.json").exists]
        wait_until(rng.choice(moments), process)
        kill(process)
    data.convert_here(source, out, shards=6, lerobot_version=version)
    assert data.files(out) == data.files(tmp_path / "whole")


def test_interrupted_by_the_user(tmp_path, source):
    out = tmp_path / "out"
    with running(["convert", source, out, *FLAGS, "--lerobot_version=2.1", "--workers=2"]) as process:
        wait_until(lambda: commits(out) >= 3, process)
        kill(process, signal.SIGINT)
        _, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130, err
    assert complaints(err) == ["rlds-beam: interrupted; what is finished is kept, run the same command to resume"]
    data.convert_here(source, out, shards=6, lerobot_version="2.1")
    data.convert_here(source, tmp_path / "whole", shards=6, lerobot_version="2.1")
    assert data.files(out) == data.files(tmp_path / "whole")
