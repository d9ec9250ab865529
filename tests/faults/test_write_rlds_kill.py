"""write_rlds that is killed leaves no dataset, and running it again gives the bytes of an undisturbed run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from directories import bytes_of
from processes import DEADLINE, kill, start, wait_until

import rlds_beam
from rlds_beam.errors import RldsBeamError

PROGRAM = """
import sys, time
import numpy as np
import rlds_beam

def episodes():
    for i in range(20):
        rng = np.random.default_rng(i)
        yield {"observation": rng.normal(size=(50, 20)), "action": rng.normal(size=(50, 3)), "terminated": True}
        if i > 10 and "wait" in sys.argv:
            time.sleep(600)

rlds_beam.write_rlds(sys.argv[1], episodes(), shard_bytes=20_000)
"""


def test_killed_and_run_again(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    whole, out = tmp_path / "whole" / "toy" / "1.0.0", tmp_path / "out" / "toy" / "1.0.0"
    command = [sys.executable, str(program)]
    with start([*command, str(whole)]) as process:
        assert process.wait(DEADLINE) == 0
    with start([*command, str(out), "wait"]) as process:
        wait_until(lambda: any(path.is_file() and path.stat().st_size > 10_000 for path in out.rglob("*")), process)
        kill(process)
        process.wait(DEADLINE)
    assert not (out / "dataset_info.json").exists()
    with pytest.raises(RldsBeamError):
        rlds_beam.validate(out)
    with start([*command, str(out)]) as process:
        assert process.wait(DEADLINE) == 0
    assert bytes_of(out) == bytes_of(whole)
    assert "from a program's episodes" in (out / "README.md").read_text()
