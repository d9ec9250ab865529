"""What messages say is so, and what they advise was not done already."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from rlds_beam.errors import UsageError
from rlds_beam.pipelines.cli import main
from rlds_beam.testing import make_episode, write_dataset
from rlds_beam.trajectories.record_layout import record_fields
from rlds_beam.trajectories.spec import Leaf, TrajectorySpec


def test_a_repair_that_was_given_is_not_advised(tmp_path, capsys):
    broken = make_episode(5, seed=1, breaks=["last_not_last"])
    source = write_dataset(tmp_path / "data", [broken, broken])
    assert main(["convert", str(source), str(tmp_path / "out"), "--repair=last_not_last"]) == 3
    out = capsys.readouterr().out
    assert "last_not_last: 1 repaired, 1 rejected" in out
    assert "marks the final step" not in out
    assert "--repair=last_not_last was given; another rule rejects these records" in out
    assert "--accept=duplicate_episode keeps every copy" in out
    assert "repair    rlds-beam" not in out


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
