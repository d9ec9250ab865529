"""Worker processes that die, through the real command: its message, and nothing is lost or left behind.

A `policy_info_fn` kills them at a given episode, so the point does not depend on their speed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from directories import bytes_of
from jobs import complaints
from processes import DEADLINE, RLDS_BEAM

from rlds_beam.cli.main import main
from rlds_beam.output.plans import read_inputs
from rlds_beam.testing import make_episode, shard_paths, write_dataset

# Signal the thread itself, as a segmentation fault does: a signal to the process may be handled by another thread,
# while this one continues.
KILLER = """
import os
import signal

import rlds_beam

def info(current, following):
    if os.environ.get("LAST_REWARD") and (current["reward"] == 777).any():
        signal.raise_signal(getattr(signal, os.environ["LAST_REWARD"]))
    return {}

@rlds_beam.configurable
def kill(batch):
    for episode in batch.episodes:
        info(episode.steps, None)
    return batch
"""
EPISODES, SHARDS, VICTIM = 40, 4, 27
FLAGS = ("--shards=8", "--policy_info_fn=killer:info")


OUTPUTS = {
    "columns": ["--to=columns"],
    "zarr": ["--to=zarr"],
    "lerobot": ["--to=lerobot", "--fps=10"],
}
"""Several files of a range, files that all ranges share, and files that are numbered at the end."""
CONNECTORS = ["killer:kill", "AddObservationsFromEpisodesToBatch", "AddColumnsFromEpisodesToTrainBatch"]


@pytest.fixture
def data(tmp_path):
    """Four shards; the third has the episode that kills."""
    columns = {"propensity": np.full(20, 0.5), "action": np.arange(20) % 3}
    episodes = [make_episode(20, seed=i, observation=50, columns=columns) for i in range(EPISODES)]
    episodes[VICTIM].steps["reward"][3] = 777
    return write_dataset(tmp_path / "data", episodes, shards=SHARDS)


@pytest.fixture
def killer(tmp_path, monkeypatch):
    """A command whose workers die by a signal at that episode."""
    modules, temporary = tmp_path / "modules", tmp_path / "tmp"
    modules.mkdir()
    temporary.mkdir()
    (modules / "killer.py").write_text(KILLER)
    monkeypatch.setenv("PYTHONPATH", str(modules))
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.syspath_prepend(str(modules))
    monkeypatch.delitem(sys.modules, "killer", raising=False)  # of another test, whose files are gone

    def run(*arguments: object, death: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*RLDS_BEAM, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
            env={**os.environ, "LAST_REWARD": death},
        )

    return run


@pytest.mark.parametrize("death", ["SIGKILL", "SIGSEGV"])
def test_the_range_is_named(tmp_path, data, killer, convert, death):
    output, victim = tmp_path / "out", shard_paths(data)[VICTIM // (EPISODES // SHARDS)]
    ran = killer("convert", data, output, "--workers=2", *FLAGS, death=death)
    assert (ran.returncode, ran.stdout) == (1, "")
    said = re.fullmatch(
        r"rlds-beam: a worker process died at (?P<range>train-\d{5}-of-00008) in (?P<file>\S+) "
        r"\((?P<why>.+)\); finished work is kept, run the same command to resume "
        r"\((?P<done>\d) of 8 ranges are finished\)",
        "\n".join(complaints(ran.stderr)),
    )
    assert said, ran.stderr
    assert said["file"] == str(victim)
    assert death in said["why"]
    plan = json.loads((output / "plan.json").read_text())["plan"]
    segments = np.frombuffer(read_inputs(str(output), plan)["train"].segments, np.int64).reshape(-1, 4)
    assert 2 in segments[segments[:, 0] == int(said["range"][6:11]), 1]
    commits = [path.stem for path in (output / "_commits").glob("train-*.json")]
    assert len(commits) == int(said["done"]) and said["range"] not in commits
    assert not (output / "manifest.json").exists()
    assert list((tmp_path / "tmp").iterdir()) == []
    assert_goes_on(data, output, convert)


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_worker_is_killed_in_the_middle_of_a_range(tmp_path, data, killer, name):
    """Finished work is kept, and the same command ends with the bytes of an undisturbed run.

    `OutputTests` kills a conversion to each output, in one process.
    """
    (tmp_path / "kill.json").write_text(json.dumps(CONNECTORS if name == "columns" else CONNECTORS[:1]))
    flags = [*OUTPUTS[name], "--shards=8", f"--connectors={tmp_path / 'kill.json'}", "--progress=none"]
    output, whole = tmp_path / "out", tmp_path / "whole"
    ran = killer("convert", data, output, "--workers=2", *flags, death="SIGKILL")
    assert (ran.returncode, ran.stdout) == (1, ""), ran.stderr
    (said,) = complaints(ran.stderr)
    found = re.search(
        r"a worker process died at (train-\d{5}-of-00008).*SIGKILL.*\((\d) of 8 ranges are finished\)", said
    )
    assert found, said
    there = {path.stem for path in (output / "_commits").glob("train-*.json")}
    assert len(there) == int(found[2]) and found[1] not in there and not (output / "manifest.json").exists()
    assert list((tmp_path / "tmp").iterdir()) == []
    for directory in (output, whole):
        assert main(["convert", str(data), str(directory), *flags]) == 0
    assert bytes_of(output) == bytes_of(whole)


def test_the_only_process_dies(tmp_path, data, killer, convert):
    """Without workers there is no message; the output is recognized as unfinished."""
    output = tmp_path / "out"
    ran = killer("convert", data, output, "--workers=1", *FLAGS, death="SIGKILL")
    assert (ran.returncode, ran.stdout, complaints(ran.stderr)) == (-signal.SIGKILL, "", [])
    assert not (output / "manifest.json").exists()
    assert 0 < len(list((output / "_commits").glob("train-*.json"))) < 8
    assert_goes_on(data, output, convert)


def assert_goes_on(data: Path, output: Path, convert) -> None:
    """Without the kill, the same command does the rest and gives the result of an undisturbed run."""
    assert convert(data, *FLAGS, output=output).code == 0
    assert convert(data, *FLAGS, output=output.parent / "whole").code == 0
    assert bytes_of(output) == bytes_of(output.parent / "whole")
