"""A conversion of a replay buffer that is killed and run again ends with the output of an undisturbed run."""

from __future__ import annotations

import shutil

import pytest
from directories import bytes_of
from processes import DEADLINE, kill, running, wait_until
from zarr_data import episode_arrays, write_buffer

from rlds_beam.cli.main import main

LENGTHS = (200, 150, 300, 1, 250, 180, 90, 220)
TRIES = 10


@pytest.mark.parametrize("workers", [1, 2])
def test_killed_and_run_again(tmp_path, workers):
    buffer = write_buffer(tmp_path / "push.zarr", episode_arrays(LENGTHS), LENGTHS, chunks={"state": (100, 5)})
    flags = ["--from=zarr", "--to=rlds", "--shards=6", "--progress=none"]
    whole, out = tmp_path / "whole" / "push" / "1.0.0", tmp_path / "out" / "push" / "1.0.0"
    assert main(["convert", str(buffer), str(whole), *flags]) == 0
    for _ in range(TRIES):  # on a busy machine, a job may finish before it is killed
        with running(["convert", buffer, out, *flags, f"--workers={workers}"]) as process:
            wait_until(lambda: [*(out / "_commits").glob("*.json")], process)
            kill(process)
            process.wait(DEADLINE)
        if not (out / "manifest.json").exists():
            break
        shutil.rmtree(out)
    else:
        pytest.fail(f"the job finished before it was killed, {TRIES} times")
    assert main(["convert", str(buffer), str(out), *flags]) == 0
    assert bytes_of(out) == bytes_of(whole)
