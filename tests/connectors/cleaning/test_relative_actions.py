"""RelativeActions, AbsoluteActions: exact inverses, formulas of openpi and UMI, void steps, what does not fit."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from edits import edited, with_actions
from hypothesis import given
from hypothesis import strategies as st

from rlds_beam.connectors import AbsoluteActions, ConvertRotation, RelativeActions
from rlds_beam.errors import BadEpisode
from rlds_beam.formats.inputs import open_source
from rlds_beam.reading.meaning import Meaning
from rlds_beam.testing import make_episode, write_dataset

transform = pytest.importorskip("scipy.spatial.transform", exc_type=ImportError)

ARM = {"rotation": "axis_angle", "at": 3, "position": 0, "absolute": [6]}


def poses(count, seed, representation="axis_angle"):
    """Poses along a path, (count, 7): x, y, z, a rotation vector, a gripper."""
    random = np.random.default_rng(seed)
    places, turns = np.cumsum(random.normal(0, 0.1, (2, count, 3)), axis=1)
    values = np.concatenate([places, turns, random.uniform(0, 1, (count, 1))], axis=1)
    if representation == "axis_angle":
        return values
    (episode,) = edited(ConvertRotation("action", "axis_angle", representation, 3), with_values(values, values))
    return episode.steps["action"]


def with_values(actions, states):
    return with_actions(np.zeros((len(actions), 1))).with_columns({"action": actions, "observation/state": states})


def actions_of(connector, actions, states):
    (episode,) = edited(connector, with_values(actions, states))
    return episode.steps["action"]


@pytest.mark.parametrize(
    ("to", "frame", "representation"),
    list(
        itertools.product(["state", "previous"], ["base", "hand"], ["axis_angle", "euler_xyz", "quaternion_wxyz", "6d"])
    ),
)
@given(seed=st.integers(0, 100), dtype=st.sampled_from([np.float32, np.float64]))
def test_the_inverse_gives_the_same_poses(to, frame, representation, seed, dtype):
    actions, states = (poses(25, seed + i, representation).astype(dtype) for i in range(2))
    arguments = {**ARM, "rotation": representation, "absolute": [actions.shape[1] - 1], "frame": frame, "to": to}
    relative = RelativeActions(**arguments)
    made = actions_of(relative, actions, states)
    assert made.dtype == dtype
    np.testing.assert_array_equal(made[:, -1], actions[:, -1])
    back = actions_of(relative.inverse, made, states)
    assert relative.inverse.inverse == relative
    tolerance = 1e-6 if dtype == np.float64 else 2e-5
    np.testing.assert_allclose(back[:, :3], actions[:, :3], atol=tolerance)
    there, here = (
        actions_of(ConvertRotation("action", representation, "matrix", 3), values, values) for values in (back, actions)
    )
    np.testing.assert_allclose(there, here, atol=tolerance)


def test_without_rotations_it_is_openpis_delta_actions():
    """`DeltaActions`: actions -= where(mask, state, 0), for a chunk of one."""
    random = np.random.default_rng(0)
    actions, states = random.normal(size=(2, 20, 7)).astype(np.float32)
    mask = np.array([True] * 6 + [False])
    expected = actions - np.where(mask, states, 0)
    np.testing.assert_array_equal(actions_of(RelativeActions(absolute=[6]), actions, states), expected)
    np.testing.assert_allclose(actions_of(AbsoluteActions(absolute=[6]), expected, states), actions, atol=1e-6)


def test_in_the_hands_frame_it_is_umis_relative_pose():
    """inv(T_state) @ T_action of 4 x 4 matrices."""
    actions, states = poses(20, 1), poses(20, 2)

    def matrices(values):
        made = np.tile(np.eye(4), (len(values), 1, 1))
        made[:, :3, :3] = transform.Rotation.from_rotvec(values[:, 3:6]).as_matrix()
        made[:, :3, 3] = values[:, :3]
        return made

    expected = np.linalg.inv(matrices(states)) @ matrices(actions)
    made = actions_of(RelativeActions(**ARM, frame="hand"), actions, states)
    np.testing.assert_allclose(matrices(made), expected, atol=1e-12)
    base = actions_of(RelativeActions(**ARM), actions, states)
    turns = [transform.Rotation.from_rotvec(values[:, 3:6]) for values in (base, states, actions)]
    assert ((turns[0] * turns[1]) * turns[2].inv()).magnitude().max() < 1e-12


def test_changes_add_up_to_the_pose():
    actions, states = poses(30, 3), poses(30, 4)
    changes = actions_of(RelativeActions(to="previous"), actions, states)
    np.testing.assert_allclose(states[0] + changes.cumsum(axis=0), actions, atol=1e-12)


def test_two_arms():
    actions = np.concatenate([poses(10, 1), poses(10, 2)], axis=1)
    states = np.concatenate([poses(10, 3), poses(10, 4)], axis=1)
    both = {"rotation": "axis_angle", "at": [3, 10], "position": [0, 7], "absolute": [6, 13], "frame": "hand"}
    made = actions_of(RelativeActions(**both), actions, states)
    one = actions_of(RelativeActions(**ARM, frame="hand"), actions[:, 7:], states[:, 7:])
    np.testing.assert_allclose(made[:, 7:], one)


def test_a_void_last_action_stays_zeros_and_zeros_are_no_motion():
    actions, states = poses(5, 1), poses(5, 2)
    actions[-1] = 0
    made = actions_of(RelativeActions(**ARM), actions, states)
    assert not made[-1].any() and made[-2].any()
    back = actions_of(AbsoluteActions(**ARM), made, states)
    np.testing.assert_allclose(back[:-1], actions[:-1], atol=1e-12)
    np.testing.assert_allclose(back[-1, :6], states[-1, :6], atol=1e-12)
    quaternions = {**ARM, "rotation": "quaternion_xyzw", "absolute": [7]}
    actions, states = poses(5, 1, "quaternion_xyzw"), poses(5, 2, "quaternion_xyzw")
    actions[-1] = 0
    made = actions_of(RelativeActions(**quaternions), actions, states)
    assert not made[-1].any()
    assert not actions_of(AbsoluteActions(**quaternions), made, states)[-1].any()
    actions[1, 3:7] = 0
    with pytest.raises(BadEpisode, match="step 1 is no rotation"):
        actions_of(RelativeActions(**quaternions), actions, states)


def test_a_real_last_action_of_zeros_is_converted(tmp_path):
    actions, states = poses(5, 1), poses(5, 2)
    actions[-1] = 0
    made = actions_of(RelativeActions(**ARM, last_action="real"), actions, states)
    np.testing.assert_allclose(made[-1, :3], -states[-1, :3])
    quaternions = {**ARM, "rotation": "quaternion_xyzw", "absolute": [7]}
    wrong, others = poses(5, 1, "quaternion_xyzw"), poses(5, 2, "quaternion_xyzw")
    wrong[-1] = 0
    for connector in (
        RelativeActions(**quaternions, last_action="real"),
        ConvertRotation("action", "quaternion_xyzw", "6d", 3, "real"),
    ):
        with pytest.raises(BadEpisode, match="step 4 is no rotation"):
            actions_of(connector, wrong, others)
    data = write_dataset(tmp_path, [make_episode(5, observation={"state": 7}, action=7)])
    source = open_source(str(data))
    for connector in (RelativeActions(), AbsoluteActions(), ConvertRotation("action", "axis_angle", "6d", 3)):
        for said in ("real", "void", "unknown"):
            known = connector.for_source(dataclasses.replace(source, meaning=Meaning(last_action=said)))
            assert known.last_action == said and known.inverse.last_action == said
        assert dataclasses.replace(connector, last_action="void").for_source(source).last_action == "void"
