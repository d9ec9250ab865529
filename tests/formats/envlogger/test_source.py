"""Reading EnvLogger logs, intact and damaged."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from envlogger_data import write_log
from exchanging import plain, read_back


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """A log of 40 episodes of 6 steps, in small chunks; the last one is unfinished."""
    directory = tmp_path_factory.mktemp("log")
    write_log(directory, 40)
    return directory


@pytest.fixture(scope="module")
def whole(log):
    """The episodes of the intact log."""
    return read_back(log, "envlogger")


def find_shard(log: Path) -> Path:
    (shard,) = [path for path in log.iterdir() if path.is_dir()]
    return shard


def test_the_bytes_of_a_record_are_the_same_on_every_read(log, whole):
    """EnvLogger's reader gives the names of a dict in random order."""
    assert [episode.payload for episode in read_back(log, "envlogger")] == [episode.payload for episode in whole]
    assert all(episode.payload for episode in whole)


def test_envlogger_reads_logged_episodes(log):
    found = read_back(log, "envlogger", ranges=3)
    assert [len(e) for e in found] == [6] * 39 + [3]
    episode = found[4]
    assert episode.faults == ()
    assert episode.steps["observation/state"][:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert episode.steps["observation/image"].shape == (6, 32, 32, 3)
    assert episode.steps["action"][:, 0].tolist() == [np.float32(0.1)] * 5 + [0]
    assert episode.steps["reward"].tolist() == [0.5, 1.0, 1.5, 2.0, 1.0, 0]
    assert episode.steps["discount"].tolist() == [1, 1, 1, 1, 0, 0]
    assert episode.steps["is_terminal"].tolist() == [False] * 5 + [True]
    assert plain(episode.steps["propensity"]) == [0.25] * 6
    assert not found[-1].steps["is_last"].any()


def flip_a_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)


def test_episodes_with_unreadable_steps_are_rejected(log, whole, tmp_path):
    flip_a_byte(damaged(log, tmp_path / "log") / "steps.riegeli")
    found = read_back(tmp_path / "log", "envlogger", ranges=3)
    lost = [i for i, episode in enumerate(found) if episode.faults]
    assert {fault.rule for i in lost for fault in found[i].faults} == {"corrupt_record"}
    assert len(found) == 40 and 0 < len(lost) < 15 and lost[-1] < 39  # episodes after the damage are read
    assert lost == list(range(lost[0], lost[-1] + 1))
    for ours, other in zip(found, whole, strict=True):
        assert ours.faults or plain(ours.steps["observation/image"]) == plain(other.steps["observation/image"])


def damaged(log: Path, into: Path) -> Path:
    """The shard of a copy to damage."""
    shutil.copytree(log, into)
    return find_shard(into)


@pytest.mark.parametrize("how", ["missing", "half"])
@pytest.mark.parametrize("name", ["episode_index", "step_offsets"])
def test_a_shard_that_cannot_be_read_is_one_error(log, tmp_path, how, name):
    """As a killed writer or a copy that was cut short leaves it; the episodes of other shards are read."""
    shard = damaged(log, tmp_path / "log")
    shutil.copytree(shard, shard.with_name("20990101T000000000000"))
    file = shard / f"{name}.riegeli"
    content = file.read_bytes()
    file.unlink() if how == "missing" else file.write_bytes(content[: len(content) // 2] if how == "half" else b"")
    found = read_back(tmp_path / "log", "envlogger")
    (fault,) = [fault for episode in found for fault in episode.faults]
    assert len(found) == 41 and fault.rule == "corrupt_record"
    assert f"{name}.riegeli" in fault.detail and str(shard) in fault.detail
