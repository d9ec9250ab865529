"""Action spaces and grippers against the code of openpi, UMI, and Octo, in checkouts.

`RLDS_BEAM_PEER_CODE` is a directory with clones `openpi`, `universal_manipulation_interface`, and `octo`.
"""

from __future__ import annotations

import ast
import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edits import edited, with_actions
from hypothesis import given
from hypothesis import strategies as st

from rlds_beam.connectors import (
    AbsoluteActions,
    BinarizeGripper,
    ConvertRotation,
    InvertGripper,
    RelativeActions,
    RelativeToAbsoluteGripper,
)

pytest.importorskip("scipy.spatial.transform", exc_type=ImportError)

CODE = os.environ.get("RLDS_BEAM_PEER_CODE")
pytestmark = pytest.mark.skipif(CODE is None, reason="RLDS_BEAM_PEER_CODE names no directory with the peers' code")

OPENPI = "openpi/src/openpi/transforms.py"
GRIPPERS = {
    "binarize_gripper_actions": BinarizeGripper(),
    "invert_gripper_actions": InvertGripper(),
    "rel2abs_gripper_actions": RelativeToAbsoluteGripper(),
}
OCTO = "octo/octo/data/utils/data_utils.py"
UMI = "universal_manipulation_interface"


def load(path: str, *names: str) -> dict[str, Any]:
    """Runs a file of a peer, or only the definitions `names` of it, which need nothing but numpy."""
    tree = ast.parse((Path(CODE or "") / path).read_text())
    if names:
        tree.body = [node for node in tree.body if getattr(node, "name", None) in names]
    scope: dict[str, Any] = {
        "np": np,
        "dataclasses": dataclasses,
        "Sequence": Sequence,
        "DataDict": dict,
        "DataTransformFn": object,
    }
    exec(compile(tree, path, "exec"), scope)
    return scope


def convert(connector: Any, actions: np.ndarray, states: np.ndarray) -> np.ndarray:
    episode = with_actions(np.zeros((len(actions), 1)))
    (made,) = edited(connector, episode.with_columns({"action": actions, "observation/state": states}))
    converted: np.ndarray = made.steps["action"]
    return converted


@given(seed=st.integers(0, 1000), dtype=st.sampled_from([np.float32, np.float64]))
def test_openpi(seed, dtype):
    scope = load(OPENPI, "DeltaActions", "AbsoluteActions")
    actions, states = np.random.default_rng(seed).normal(size=(2, 20, 8)).astype(dtype)
    mask = [True] * 7 + [False]
    data = [{"state": state, "actions": action[None].copy()} for state, action in zip(states, actions, strict=True)]
    there = np.concatenate([scope["DeltaActions"](mask)(one)["actions"] for one in data])
    made = convert(RelativeActions(absolute=[7]), actions, states)
    np.testing.assert_array_equal(made, there)
    back = np.concatenate([scope["AbsoluteActions"](mask)(one)["actions"] for one in data])
    np.testing.assert_array_equal(convert(AbsoluteActions(absolute=[7]), made, states), back)


@given(seed=st.integers(0, 1000))
def test_umi(seed):
    """UMI's relative poses of the hand, as positions and its 6-D rows, and back."""
    pose, scope = load(f"{UMI}/umi/common/pose_util.py"), load(f"{UMI}/diffusion_policy/common/pose_repr_util.py")
    values = np.random.default_rng(seed).normal(size=(2, 20, 6))
    matrices = [pose["pose_to_mat"](value) for value in values]
    expected = np.stack(
        [scope["convert_pose_mat_rep"](a, s, pose_rep="relative") for a, s in zip(*matrices, strict=True)]
    )
    made = convert(RelativeActions(rotation="axis_angle", at=3, position=0, frame="hand"), *values)
    np.testing.assert_allclose(pose["pose_to_mat"](made), expected, atol=1e-12)
    rows = convert(ConvertRotation("action", "axis_angle", "6d_rows", 3), made, values[1])
    np.testing.assert_allclose(rows, pose["mat_to_pose10d"](expected), atol=1e-12)
    back = np.stack(
        [
            scope["convert_pose_mat_rep"](r, s, pose_rep="relative", backward=True)
            for r, s in zip(pose["pose10d_to_mat"](rows), matrices[1], strict=True)
        ]
    )
    ours = convert(AbsoluteActions(rotation="axis_angle", at=3, position=0, frame="hand"), made, values[1])
    np.testing.assert_allclose(pose["pose_to_mat"](ours), back, atol=1e-12)


@pytest.mark.parametrize("name", GRIPPERS)
@given(seed=st.integers(0, 1000))
def test_octo(name, seed):
    tf = pytest.importorskip("tensorflow", exc_type=ImportError)
    random = np.random.default_rng(seed)
    values = random.choice([-1, 0, 1] if name.startswith("rel2abs") else [0, 0.02, 0.3, 0.6, 0.97, 1], 20)
    actions = values.astype(np.float32)[:, None]
    function = load(OCTO, name)[name]
    function.__globals__["tf"] = tf
    np.testing.assert_array_equal(convert(GRIPPERS[name], actions, actions)[:, 0], np.asarray(function(actions[:, 0])))
