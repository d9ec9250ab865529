"""A recording that is killed at any moment can be resumed and ends with the bytes of an undisturbed run."""

from __future__ import annotations

import random
import time

import pytest
from checkout import SUPPORT
from directories import bytes_of
from processes import DEADLINE, kill, running, wait_until
from recorded import GREEDY, WALK

from rlds_beam.cli.main import main

FLAGS = (f"--env={WALK}", f"--policy={GREEDY}", "--policy=random", "--episodes=400", "--logger=own", "--progress=none")


@pytest.mark.parametrize(
    ("moment", "to"), [("temporary", ()), ("workers", ()), ("workers", ("--to=lerobot", "--fps=10"))]
)
def test_killed_and_run_again(tmp_path, moment, to, monkeypatch):
    flags = (*FLAGS, *to)
    assert main(["record", str(tmp_path / "undisturbed"), *flags]) == 0
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT))
    output, rng = tmp_path / "out", random.Random(moment)
    after = rng.randrange(1, 9)
    moments = {
        "temporary": lambda: [*output.glob(".*.tmp")],
        "workers": lambda: len([*(output / "_commits").glob("*.json")]) >= after,
    }
    with running(["record", output, *flags, *(["--workers=2"] if moment == "workers" else [])]) as process:
        wait_until(moments[moment], process)
        time.sleep(rng.random() * 0.01)
        kill(process)
        process.wait(DEADLINE)
    assert not (output / "manifest.json").exists()
    kept = {path: path.stat().st_mtime_ns for path in (output / "_commits").glob("train-*.json")}
    assert main(["record", str(output), *flags]) == 0
    assert bytes_of(output) == bytes_of(tmp_path / "undisturbed")
    if not to:  # LeRobot commits its ranges a second time, with their global indices
        assert {path: path.stat().st_mtime_ns for path in kept} == kept
