"""A conversion of HDF5 files that is killed resumes, and ends with the same bytes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from directories import bytes_of
from hdf5_robots import aloha
from processes import DEADLINE

from rlds_beam.cli.main import main

FLAGS = ["--from=hdf5", "--to=rlds", "--shards=6"]


def test_a_killed_conversion_resumes(tmp_path: Path) -> None:
    aloha(tmp_path / "in", [120] * 12)
    assert main(["convert", str(tmp_path / "in"), str(tmp_path / "whole"), *FLAGS]) == 0
    output = tmp_path / "out"
    command = [sys.executable, "-m", "rlds_beam", "convert", str(tmp_path / "in"), str(output), *FLAGS]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        end = time.monotonic() + DEADLINE
        while process.poll() is None and not list(output.glob("_commits/*.json")) and time.monotonic() < end:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
    assert main(["convert", str(tmp_path / "in"), str(output), *FLAGS]) == 0
    assert bytes_of(output) == bytes_of(tmp_path / "whole")
