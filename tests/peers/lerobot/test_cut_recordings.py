"""A recording of LeRobot that was killed: `--from=lerobot` reads every saved episode, and writes a correct dataset."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from lerobot_data import moving_episode
from lerobot_peer import FORMAT_VERSION, OPTIONS, assert_reads_what_lerobot_wrote, opened
from processes import start

import rlds_beam

RECORD = """
import itertools, pathlib, sys
from lerobot_data import moving_episode
from lerobot_peer import write_with_lerobot

def episodes():
    for k in itertools.count():
        if k == int(sys.argv[3]):
            print("saved", flush=True)
            sys.stdin.read()
        yield moving_episode(5 + k % 4)

write_with_lerobot(pathlib.Path(sys.argv[1]), episodes(), sys.argv[2])
"""


def record(root: Path, kind: str, saved: int) -> None:
    """Records with LeRobot, which is killed when it has saved this many episodes."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", RECORD, str(root), kind, str(saved)]
    with start(command, env=environment, stdin=subprocess.PIPE, stderr=None) as recorder:
        assert recorder.stdout is not None
        assert recorder.stdout.readline() == "saved\n"
        os.killpg(recorder.pid, signal.SIGKILL)
        recorder.wait()


@pytest.mark.parametrize(("kind", "saved"), [("image", 2), ("video", 1), ("video", 4), ("image", 12)])
def test_saved_episodes_are_read_and_written(tmp_path: Path, kind: str, saved: int) -> None:
    root, out = tmp_path / "cut", tmp_path / "out"
    record(root, kind, saved)
    report = rlds_beam.convert(str(root), out, from_="lerobot", **{**OPTIONS, "fps": None}).report
    assert (report.valid, report.rejected, report.records) == (saved, 0, saved)
    if FORMAT_VERSION == "3.0":
        (note,) = (note for note in report.notes if "the recording was cut" in note)
        assert f"{report.valid} of {report.records} episode" in note
    episodes = [moving_episode(5 + k % 4) for k in range(report.valid)]
    assert_reads_what_lerobot_wrote(out, episodes, error=6)
    dataset = opened(out)
    assert (dataset.num_episodes, len(dataset)) == (len(episodes), sum(map(len, episodes)))
    np.testing.assert_array_equal(dataset[len(dataset) - 1]["action"], episodes[-1].steps["action"][-1])
