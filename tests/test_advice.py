"""What a message advises helps: it was not done already, and it works as printed."""

from __future__ import annotations

import shlex

import ml_dtypes
import numpy as np
import pytest

from rlds_beam.errors import UsageError
from rlds_beam.pipelines.cli import main
from rlds_beam.pipelines.convert import ConvertConfig
from rlds_beam.pipelines.outcome import command_line
from rlds_beam.testing import make_episode, write_dataset
from rlds_beam.trajectories.record_layout import record_fields
from rlds_beam.trajectories.spec import Leaf, TrajectorySpec


def test_the_suggested_command_works_as_printed(tmp_path, capsys):
    breaks = [["last_not_last"], ["first_not_first"], ["non_finite"], []]
    source = write_dataset(tmp_path / "my data", [make_episode(5, seed=i, breaks=b) for i, b in enumerate(breaks)])
    output = tmp_path / "out"
    flags = ["--items=sequences", "--sequence_length=3"]
    for command in (["convert", str(source), str(output), *flags], ["validate", str(source)]):
        assert main([*command, "--max_rejected=1"]) == 3
        *_, heading, line = capsys.readouterr().out.splitlines()
        assert heading == "to repair what can be repaired:"
        words = shlex.split(line)
        assert words[:2] == ["rlds-beam", command[0]]
        assert "--repair=first_not_first,last_not_last" in words
        assert main(words[1:]) == 0  # of the four, one is left that no repair helps
        assert "to repair" not in capsys.readouterr().out


def test_a_command_line_reads_back():
    config = ConvertConfig(
        "data/a b", "out", split="train[:10%]", from_="own:Source", cast=("reward=float32!",), pad_end_of_episodes=True,
        items="sequences", max_rejected=0.5, beam_options=("--flag=x",),
    )  # fmt: skip
    words = "--from=own:Source --split=train[:10%] --cast=reward=float32! --items=sequences --pad_end_of_episodes"
    expected = ["rlds-beam", "convert", "data/a b", "out", *words.split(), "--max_rejected=0.5", "--", "--flag=x"]
    assert sorted(shlex.split(command_line("convert", config))) == sorted(expected)


def test_a_repair_that_was_given_is_not_advised(tmp_path, capsys):
    broken = make_episode(5, seed=1, breaks=["last_not_last"])
    source = write_dataset(tmp_path / "data", [broken, broken])
    assert main(["convert", str(source), str(tmp_path / "out"), "--repair=last_not_last"]) == 3
    out = capsys.readouterr().out
    assert "last_not_last: 1 repaired, 1 rejected" in out
    assert "marks the final step" not in out
    assert "--repair=last_not_last was given; another rule rejects these records" in out
    assert "--accept=duplicate_episode keeps every copy" in out
    assert "to repair" not in out


def test_all_dtypes_that_cannot_be_read_are_named_at_once(tmp_path, capsys):
    columns = {
        "observation/open": np.zeros(4, bool),
        "observation/half": np.zeros((4, 2), ml_dtypes.bfloat16),
        "reward": np.zeros(4, np.uint32),
    }
    source = write_dataset(tmp_path / "data", [make_episode(4, observation={"state": 3}, columns=columns)])
    command = ["convert", str(source), str(tmp_path / "out")]
    assert main(command) == 2
    err = capsys.readouterr().err
    casts = "--cast=observation/half=float32,observation/open=uint8,reward=int64"
    assert casts in err
    assert "--observation_fields" in err
    assert main([*command, casts]) == 0


@pytest.mark.parametrize(
    ("path", "flag"),
    [
        ("reward", None),
        ("action", None),
        ("policy_info/x", "--policy_info_fields"),
        ("observation/x", "--observation_"),
    ],
)
def test_only_what_can_be_left_out_is_advised_to_be(path, flag):
    for leaf in (Leaf(path, "bool", ()), Leaf(path, "float32", (0,))):
        with pytest.raises(UsageError) as error:
            record_fields(TrajectorySpec((leaf,), (2,)))
        assert (flag or "") in str(error.value)
        assert flag or "_fields" not in str(error.value)
        assert leaf.dtype != "bool" or f"--cast={path}=uint8" in str(error.value)


def test_one_is_one(tmp_path, capsys):
    source = write_dataset(tmp_path / "data", [make_episode(4)])
    assert main(["inspect", str(source)]) == 0
    assert main(["convert", str(source), str(tmp_path / "out"), "--dry_run"]) == 0
    out = capsys.readouterr().out
    assert "train: 1 shard, 1 episode, " in out
    assert ": 1 episode, " in out
    assert ": 1 shard, " in out
    assert not any(many in out for many in ("1 episodes", "1 shards", "1 items"))
