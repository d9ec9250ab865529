"""A conversion of .npz files that is killed and run again ends with the output of an undisturbed run."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from directories import bytes_of
from npz_data import ogbench_arrays
from processes import DEADLINE, kill, running, wait_until

from rlds_beam.cli.main import main

TRIES = 10


@pytest.mark.parametrize(("workers", "save"), [(1, np.savez), (2, np.savez_compressed)])
def test_killed_and_run_again(tmp_path, workers, save):
    buffer = tmp_path / "maze"
    buffer.mkdir()
    for i in range(6):
        save(buffer / f"{i}.npz", **ogbench_arrays((200, 1, 350, 90), seed=i))
    flags = ["--from=npz", "--to=rlds", "--shards=6", "--progress=none"]
    whole, out = tmp_path / "whole" / "maze" / "1.0.0", tmp_path / "out" / "maze" / "1.0.0"
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
