"""Trajectory records of TF-Agents, read as episodes."""

from __future__ import annotations

import os

import numpy as np
import pytest
from exchanging import assert_equal, export, read_back

from rlds_beam.cli import main as cli
from rlds_beam.errors import UsageError
from rlds_beam.formats.inputs import open_source
from rlds_beam.testing import flip_byte, make_episode, write_dataset


@pytest.mark.parametrize("items", ["frames", "episodes"])
def test_trajectories_are_read_as_episodes(tmp_path, items):
    made = [make_episode(3 + i % 4, seed=i, observation={"state": 3}, terminal=i % 2 == 0) for i in range(9)]
    data = write_dataset(tmp_path / "data", made, shards=2)
    export(data, tmp_path / "out", "trajectories", items=items, shards=2)
    for found, expected in zip(read_back(tmp_path / "out", "trajectories"), made, strict=True):
        assert_equal(found, expected, void=("action", "reward", "discount"))
    files = sorted((tmp_path / "out").glob("*.tfrecord-*-of-00002"))
    by_spec = read_back(",".join(map(str, files)), "trajectories")  # without the manifest
    assert [len(episode) for episode in by_spec] == [len(episode) for episode in made]


def test_trajectories_of_several_frames_are_refused(tmp_path):
    data = write_dataset(tmp_path / "data", [make_episode(5)])
    export(data, tmp_path / "out", "trajectories")
    with pytest.raises(UsageError, match=r"holds items of 2 frames, cut from episodes"):
        open_source(str(tmp_path / "out"), from_="trajectories")


def test_a_damaged_frame_costs_its_episode(tmp_path):
    data = write_dataset(tmp_path / "data", [make_episode(4, seed=i) for i in range(4)])
    export(data, tmp_path / "out", "trajectories", items="frames")
    (file,) = (tmp_path / "out").glob("*.tfrecord-00000-of-00001")
    flip_byte(file, 6)  # the third frame of the second episode
    found = read_back(str(file), "trajectories")
    assert [[fault.rule for fault in episode.faults] for episode in found] == [[], [], ["corrupt_record"], [], [], []]
    assert [len(episode) for episode in found] == [4, 2, 0, 1, 4, 4]
    report = export(file, tmp_path / "again", "rlds", from_="trajectories")
    assert (report.items_written, report.rejected) == (3, 3)  # the rest of the second has no end or beginning


def test_what_tf_agents_recorded(tmp_path):
    pytest.importorskip("tf_agents")
    import tensorflow as tf
    from tf_agents.trajectories import trajectory
    from tf_agents.utils import example_encoding_dataset

    def frame(step, following, value):
        return trajectory.Trajectory(
            step_type=np.int32(step),
            observation={"x": np.full(2, value, np.float32)},
            action=np.int64(value),
            policy_info=(),
            next_step_type=np.int32(following),
            reward=np.float32(value),
            discount=np.float32(following != 2),
        )

    frames = [frame(0, 1, 0), frame(1, 2, 1), frame(2, 0, 2), frame(0, 1, 3), frame(1, 1, 4)]
    spec = tf.nest.map_structure(lambda value: tf.TensorSpec(np.shape(value), np.asarray(value).dtype), frames[0])
    observer = example_encoding_dataset.TFRecordObserver(str(tmp_path / "log.tfrecord"), spec, py_mode=True)
    for one in frames:
        observer(one)
    observer.close()
    first, rest = read_back(tmp_path / "log.tfrecord", "trajectories")
    assert first.steps["observation/x"][:, 0].tolist() == [0, 1, 2]
    assert (first.steps["action"].dtype, first.steps["action"].tolist()) == (np.int64, [0, 1, 2])
    assert first.steps["is_terminal"].tolist() == [False, False, True]
    assert (len(rest), rest.steps["is_last"].any()) == (2, False)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
@pytest.mark.parametrize("command", ["inspect", "validate"])
def test_a_shard_that_is_not_a_file(tmp_path, capsys, make, command):
    data = write_dataset(tmp_path / "data", [make_episode(5)])
    export(data, tmp_path / "out", "trajectories", items="frames")
    (file,) = (tmp_path / "out").glob("*.tfrecord-*-of-00001")
    file.unlink()
    make(file)
    assert cli.main([command, str(tmp_path / "out"), "--from=trajectories"]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"rlds-beam: cannot read {file}: ") and "Errno" not in said
