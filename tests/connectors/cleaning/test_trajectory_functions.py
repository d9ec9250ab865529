"""Trajectory functions in OpenVLA's and Octo's style."""

from __future__ import annotations

import numpy as np
import pytest
from edits import edited, images

from rlds_beam import connectors as c
from rlds_beam.errors import UsageError
from rlds_beam.testing import make_episode


def test_a_function_of_openvla_runs_unchanged():
    """A function in OpenVLA's and Octo's style: edits in place, uses tensors, drops steps, moves fields."""
    tf = pytest.importorskip("tensorflow")

    def bridge_like(trajectory):
        for key in trajectory:
            if key == "traj_metadata":
                continue
            if key == "observation":
                for inner in trajectory[key]:
                    trajectory[key][inner] = trajectory[key][inner][1:]
            else:
                trajectory[key] = trajectory[key][1:]
        state = trajectory["observation"]["state"]
        moved = state[1:, :2] - state[:-1, :2]
        truncated = tf.nest.map_structure(lambda x: x[:-1], trajectory)
        truncated["action"] = tf.concat([moved, trajectory["action"][:-1, -1:]], axis=1)
        truncated["observation"]["wrist"] = truncated["observation"].pop("image")
        truncated["language_instruction"] = tf.fill(tf.shape(truncated["action"])[:1], "go")
        return truncated

    png, _ = images("png")
    six = png.with_data(np.array([*png.data, *png.data], object))
    episode = make_episode(6, observation={"state": 3}, metadata={"task": b"x"}).with_columns(
        {"observation/image": six}
    )
    (made,) = edited(c.TransformTrajectory(bridge_like), episode)
    state = episode.steps["observation/state"]
    np.testing.assert_allclose(made.steps["action"][:, :2], state[2:, :2] - state[1:-1, :2])
    assert made.steps["observation/wrist"].data.tolist() == six.data[1:-1].tolist()
    assert made.steps["observation/wrist"].encoding == "png" and "observation/image" not in made.steps
    assert made.steps["language_instruction"].tolist() == [b"go"] * 4
    assert made.steps["is_first"].tolist() == [True, False, False, False]
    assert made.steps["is_last"].tolist() == [False, False, False, True]
    assert made.metadata == episode.metadata
    assert len(episode.steps["observation/state"]) == 6


def test_a_wrong_result_is_reported():
    def uneven(trajectory):
        return {**trajectory, "action": trajectory["action"][1:]}

    with pytest.raises(UsageError, match=r"has 4 steps; the function returned .*action 3"):
        edited(c.TransformTrajectory(uneven), make_episode(4))
    with pytest.raises(UsageError, match="returned a list, not a dict"):
        edited(c.TransformTrajectory(lambda trajectory: []), make_episode(4))
