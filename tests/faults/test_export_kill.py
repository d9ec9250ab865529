"""Exports and recordings that are interrupted and run again end with the bytes of an undisturbed run."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from checkout import SUPPORT
from directories import bytes_of
from exchanging import export
from jobs import complaints
from processes import DEADLINE, kill, running, stop_when
from recorded import GREEDY, WALK, recorded

from rlds_beam.cli.main import main
from rlds_beam.testing import make_episode, write_dataset


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    columns = {"propensity": np.full(9, 0.5), "action": np.arange(9) % 3}
    episodes = [make_episode(9, seed=i, observation=4, columns=columns) for i in range(12)]
    return write_dataset(tmp_path_factory.mktemp("data"), episodes, shards=3)


def test_an_export_is_interrupted(data, tmp_path):
    export(data, tmp_path / "whole", "minari", shards=3)
    _interrupted(["convert", data, tmp_path / "out", "--to=minari", "--shards=3"], tmp_path)


def test_a_recording_is_interrupted(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")]))
    recorded(tmp_path / "whole", episodes=400)
    flags = [f"--env={WALK}", f"--policy={GREEDY}", "--episodes=400", "--logger=own"]
    _interrupted(["record", tmp_path / "out", *flags], tmp_path)


def _is_writing(output):
    begun = [*output.rglob("*.tmp")] or [*output.glob("_commits/*.json")]
    return begun and not (output / "manifest.json").exists()


def _interrupted(command, tmp_path):
    """Ctrl-C while it writes: one line, exit code 130, and the same command resumes."""
    output = Path(command[1] if command[0] == "record" else command[2])
    with running([*command, "--progress=none"]) as process:
        stop_when(lambda: _is_writing(output), process)
        kill(process, signal.SIGINT)
        kill(process, signal.SIGCONT)
        out, err = process.communicate(timeout=DEADLINE)
    assert (process.returncode, out) == (130, ""), err
    assert complaints(err) == ["rlds-beam: interrupted; finished work is kept, run the same command to resume"]
    assert not (output / "manifest.json").exists()
    arguments = [str(argument) for argument in (*command, "--progress=none")]
    assert main(arguments) == 0
    assert bytes_of(output) == bytes_of(tmp_path / "whole")
