"""A conversion of ROS 2 bags that is killed and run again ends with the output of an undisturbed run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("rosbags")
from directories import bytes_of
from processes import DEADLINE, kill, running, wait_until
from ros2_bags import MAPPING, robot, write_bag

from rlds_beam.cli.main import main

TRIES = 10


@pytest.mark.parametrize("workers", [1, 2])
def test_killed_and_run_again(tmp_path: Path, workers: int) -> None:
    for i in range(8):
        write_bag(tmp_path / "bags" / f"b{i}", robot(20 + 5 * i, seed=i), ["mcap", "db3"][i % 2])
    topics = tmp_path / "topics.yaml"
    topics.write_text(MAPPING)
    flags = ["--from=ros2", f"--topics={topics}", "--to=rlds", "--shards=6", "--progress=none"]
    bags, whole, out = tmp_path / "bags", tmp_path / "whole" / "robot" / "1.0.0", tmp_path / "out" / "robot" / "1.0.0"
    assert main(["convert", str(bags), str(whole), *flags]) == 0
    for _ in range(TRIES):  # on a busy machine, a job may finish before it is killed
        with running(["convert", bags, out, *flags, f"--workers={workers}"]) as process:
            wait_until(lambda: [*(out / "_commits").glob("*.json")], process)
            kill(process)
            process.wait(DEADLINE)
        if not (out / "manifest.json").exists():
            break
        shutil.rmtree(out)
    else:
        pytest.fail(f"the job finished before it was killed, {TRIES} times")
    assert main(["convert", str(bags), str(out), *flags]) == 0
    assert bytes_of(out) == bytes_of(whole)
