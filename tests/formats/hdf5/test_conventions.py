"""What each profile says about rewards, ends, and texts; `test_profiles_round_trip.py` has the actions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from exchanging import export, read_back
from hdf5_robots import BUILDERS, droid, robomimic, xpolicylab

from rlds_beam.cli.main import main

REWARDED = ("libero", "robomimic")
TERMINAL = (*REWARDED, "isaaclab")  # of isaaclab's episodes, those with an even number


@pytest.mark.parametrize("name", BUILDERS)
def test_rewards_and_ends(name: str, tmp_path: Path) -> None:
    BUILDERS[name](tmp_path, [4, 4, 4])
    for i, episode in enumerate(read_back(tmp_path, "hdf5")):
        rewards = [0.0] * 3 + [1.0 if name in REWARDED else 0.0]
        rewards += [0.0] if name == "robomimic" else []  # next_obs: the last step has a void action and reward
        assert episode.steps["reward"].tolist() == rewards
        ended = name in TERMINAL and (name != "isaaclab" or i % 2 == 0)
        assert episode.steps["is_terminal"].tolist() == [False] * (len(rewards) - 1) + [ended]
        assert episode.steps["is_last"].tolist() == [False] * (len(rewards) - 1) + [True]
        steps = len(rewards)
        expected = [1.0] * (steps - 2) + [0.0] * 2 if ended else [1.0] * steps  # 0 on the way into a terminal state
        assert episode.steps["discount"].tolist() == expected


@pytest.mark.parametrize("name", BUILDERS)
def test_a_missing_reward_is_a_note(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    BUILDERS[name](tmp_path / "in", [4])
    for command in (["inspect"], ["convert", "--to=rlds", "--dry_run"]):
        words = [command[0], str(tmp_path / "in"), *([str(tmp_path / "out")] if len(command) > 1 else []), *command[1:]]
        assert main([*words, "--from=hdf5"]) == 0
        out, err = capsys.readouterr()
        assert ("no reward is recorded: it is 0" in out + err) == (name not in REWARDED)


def test_dones_of_zeros_are_a_truncation(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    robomimic(tmp_path, [4, 5], next_obs=False)
    with h5py.File(tmp_path / "low_dim.hdf5", "a") as root:
        root["data/demo_0/dones"][...] = [0, 1, 1, 0]  # only the last row counts
    truncated, ended = read_back(tmp_path, "hdf5")
    assert not truncated.steps["is_terminal"].any() and truncated.steps["discount"].tolist() == [1.0] * 4
    assert ended.steps["is_terminal"].tolist() == [False] * 4 + [True]
    assert truncated.steps["is_last"].tolist() == [False] * 3 + [True]


@pytest.mark.parametrize("missing", ["metadata_a+1.json", "an empty text"])
def test_an_episode_may_lack_its_text(tmp_path: Path, missing: str) -> None:
    written = droid(tmp_path / "in", [3, 3, 3])
    file = tmp_path / "in/lab/success/1/metadata_a+1.json"
    if missing == file.name:
        file.unlink()
    else:
        file.write_text(json.dumps({"current_task": ""}))
    episodes = read_back(tmp_path / "in", "hdf5")
    texts = [set(episode.steps["language_instruction"]) for episode in episodes]
    assert texts == [{b"tidy up"}, {b""}, {b"tidy up"}] and len(written) == 3
    assert bool(episodes[0].metadata["success"])
    report = export(tmp_path / "in", tmp_path / "out", "rlds", from_="hdf5")
    assert (report.items_written, report.rejected) == (3, 0)


def test_robotwin_with_one_text_and_an_array_of_texts(tmp_path: Path) -> None:
    """process_data_xpolicylab.py writes both."""
    h5py = pytest.importorskip("h5py")
    xpolicylab(tmp_path, [3])
    with h5py.File(next(tmp_path.rglob("*.hdf5")), "a") as root:
        del root["instructions"]
        root["instructions"] = np.array([b"lift", b"raise"], object)
        root["instruction"] = "raise"
    (episode,) = read_back(tmp_path, "hdf5")
    assert set(episode.steps["language_instruction"]) == {b"raise"}
    assert int(episode.metadata["frequency"]) == 15


def test_actions_without_rows_are_left_out(tmp_path: Path) -> None:
    BUILDERS["agibot"](tmp_path, [3])
    (episode,) = read_back(tmp_path, "hdf5")
    assert [path for path in episode.steps if path.startswith("action")] == ["action/joint_position"]
