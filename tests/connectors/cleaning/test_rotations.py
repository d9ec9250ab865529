"""ConvertRotation: exact inverses, scipy's conventions, continuity, names, and what is no rotation."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from edits import edited, with_actions
from hypothesis import given
from hypothesis import strategies as st

from rlds_beam.connectors import ConvertRotation
from rlds_beam.connectors.configuration import load
from rlds_beam.connectors.dry_run import probe
from rlds_beam.episodes.representations import value_names
from rlds_beam.episodes.schema import Field, Schema, episode_flags
from rlds_beam.errors import BadEpisode

transform = pytest.importorskip("scipy.spatial.transform", exc_type=ImportError)

REPRESENTATIONS = (
    "quaternion_xyzw",
    "quaternion_wxyz",
    "axis_angle",
    "matrix",
    "6d",
    "6d_rows",
    "euler_xyz",
    "euler_ZYX",
    "euler_zxz",
    "euler_XYZ_degrees",
)


def with_values(values):
    """An episode with these actions, in their own dtype."""
    return with_actions(np.zeros((len(values), 1))).with_columns({"action": np.asarray(values)})


def converted(values, start, end, at=0):
    (episode,) = edited(ConvertRotation("action", start, end, at), with_values(values))
    return episode.steps["action"]


def random_rotations(count, seed=0):
    return transform.Rotation.random(count, random_state=seed)


def as_values(rotations, representation):
    return converted(rotations.as_quat(), "quaternion_xyzw", representation)


def angles_between(values, representation, rotations):
    """The angle in radians between each row and its rotation."""
    back = transform.Rotation.from_quat(converted(values, representation, "quaternion_xyzw"))
    return (back * rotations.inv()).magnitude()


@pytest.mark.parametrize(("start", "end"), itertools.permutations(REPRESENTATIONS, 2))
def test_the_inverse_gives_the_same_rotations(start, end):
    rotations = random_rotations(500)
    values = as_values(rotations, start)
    there = converted(values, start, end)
    assert there.shape == (500, len(value_names(end)))
    back = converted(there, end, start)
    assert angles_between(back, start, rotations).max() < 1e-6
    if not start.startswith(("euler", "axis_angle")):  # several triples and vectors are one rotation
        np.testing.assert_allclose(back, values, atol=1e-6)


def test_float32_keeps_six_digits():
    rotations = random_rotations(500)
    for representation in REPRESENTATIONS:
        values = as_values(rotations, representation).astype(np.float32)
        there = converted(values, representation, "matrix")
        assert there.dtype == np.float32
        most = max(1, np.abs(values).max()) if representation.startswith(("euler", "axis")) else 1
        np.testing.assert_allclose(there.reshape(-1, 3, 3), rotations.as_matrix(), atol=1e-6 * most)


def test_conventions_are_those_of_scipy_mujoco_and_zhou():
    rotations = random_rotations(50)
    matrices = rotations.as_matrix()
    np.testing.assert_allclose(as_values(rotations, "matrix"), matrices.reshape(-1, 9), atol=1e-6)
    np.testing.assert_allclose(
        as_values(rotations, "6d"), np.concatenate([matrices[:, :, 0], matrices[:, :, 1]], 1), atol=1e-6
    )
    np.testing.assert_allclose(
        as_values(rotations, "6d_rows"), np.concatenate([matrices[:, 0], matrices[:, 1]], 1), atol=1e-6
    )
    wxyz, xyzw = as_values(rotations, "quaternion_wxyz"), as_values(rotations, "quaternion_xyzw")
    np.testing.assert_array_equal(wxyz, xyzw[:, [3, 0, 1, 2]])
    quarter = converted([[0, 0, np.pi / 2]], "euler_xyz", "matrix").reshape(3, 3)
    np.testing.assert_allclose(quarter, [[0, -1, 0], [1, 0, 0], [0, 0, 1]], atol=1e-6)
    np.testing.assert_allclose(
        converted([[90.0, 0, 0]], "euler_xyz_degrees", "axis_angle"), [[np.pi / 2, 0, 0]], atol=1e-6
    )
    fixed = converted([[0.3, 0.4, 0.5]], "euler_xyz", "matrix")
    np.testing.assert_allclose(converted([[0.5, 0.4, 0.3]], "euler_ZYX", "matrix"), fixed, atol=1e-6)


@pytest.mark.parametrize(
    "representation", [name for name in REPRESENTATIONS if name not in ("matrix", "6d", "6d_rows")]
)
@given(seed=st.integers(0, 1000), turns=st.floats(0.5, 6))
def test_values_do_not_jump_along_an_episode(representation, seed, turns):
    random = np.random.default_rng(seed)
    axis = random.normal(size=3) * [1, 0.2, 0.2]  # away from the poles of Euler angles
    axis /= np.linalg.norm(axis)
    angles = np.linspace(0, 2 * np.pi * turns, 400)
    rotations = transform.Rotation.from_rotvec(angles[:, None] * axis)
    if representation == "euler_zxz":  # its pole is the identity
        rotations = rotations * transform.Rotation.from_euler("x", 1.5)
    values = as_values(rotations, representation)
    assert angles_between(values, representation, rotations).max() < 1e-5
    scale = 180 / np.pi if representation.endswith("degrees") else 1
    if representation == "axis_angle" or representation.startswith("quaternion"):
        assert np.abs(np.diff(values, axis=0)).max() < 0.2
    else:
        assert np.abs(np.diff(values, axis=0)).max() < np.pi * scale


def test_two_arms_and_the_other_values_stay():
    euler = np.linspace(0, 1, 20)[:, None] * [0.5, -0.8, 1.1]
    rest = np.arange(20.0)[:, None]
    values = np.concatenate([rest, euler, rest + 100, euler, rest + 200], axis=1)
    made = converted(values, "euler_xyz", "6d", at=(1, 5))
    assert made.shape == (20, 15)
    np.testing.assert_array_equal(made[:, [0, 7, 14]], np.concatenate([rest, rest + 100, rest + 200], axis=1))
    np.testing.assert_allclose(made[:, 1:7], made[:, 8:14])
    connector = ConvertRotation("action", "euler_xyz", "6d", (1, 5))
    (back,) = edited(connector.inverse, with_values(made))
    np.testing.assert_allclose(back.steps["action"], values, atol=1e-6)


def test_zeros_of_a_void_last_action_stay_zeros_and_others_are_no_rotation():
    values = np.zeros((3, 4))
    values[:2, 3] = 1
    assert converted(values, "quaternion_xyzw", "6d")[-1].tolist() == [0] * 6
    values[1] = 0
    with pytest.raises(BadEpisode, match=r"\(0, 0, 0, 0\) at step 1 is no rotation \(quaternion_xyzw\)"):
        converted(values, "quaternion_xyzw", "6d")
    with pytest.raises(BadEpisode, match="step 0 is no rotation"):
        converted(np.diag([1, 1, -1.0]).reshape(1, 9), "matrix", "6d")  # a reflection


def test_values_that_are_not_finite_stay_so():
    values = np.array([[0, 0, 0, 1], [np.nan, 0, 0, 1], [0, 0, 0, 1]])
    made = converted(values, "quaternion_xyzw", "axis_angle")
    assert np.isnan(made).all(axis=1).tolist() == [False, True, False]


def test_names_follow(tmp_path):
    file = tmp_path / "connectors.yaml"
    file.write_text("- ConvertRotation: {field: action, from: euler_xyz, to: 6d, at: [1, 5]}\n")
    names = ("x", "left_roll", "left_pitch", "left_yaw", "grip", "right/roll", "right/pitch", "right/yaw")
    steps = {"action": Field("action", "float32", (8,), names=names)}
    steps |= {name: Field(name, "bool") for name in episode_flags(1)}
    (schema,) = probe(load(str(file)), Schema(steps)).schemas
    six = value_names("6d")
    expected = ("x", *(f"left_{name}" for name in six), "grip", *(f"right/{name}" for name in six))
    assert schema.steps["action"].names == expected
    assert schema.steps["action"].shape == (14,)
