"""Connectors that split, join, arrange, scale, and name values and fields: values, names, and what does not fit."""

from __future__ import annotations

import numpy as np
import pytest
from edits import edited, with_actions

from rlds_beam.connectors import (
    AddField,
    ArrangeDimensions,
    JoinFields,
    RenameFields,
    Resample,
    ScaleDimensions,
    SplitField,
    SubsampleSteps,
)
from rlds_beam.connectors.configuration import parse
from rlds_beam.connectors.dry_run import probe
from rlds_beam.episodes.schema import Field, Schema, episode_flags
from rlds_beam.errors import UsageError

NAMES = ("j1", "j2", "j3", "grip")
SPLIT = SplitField("action", {"action/arm": 3, "action/gripper": 1})
JOIN = JoinFields(["action/arm", "action/gripper"], "action")


def names_of(*connectors, names=NAMES):
    """The names after connectors of a configuration file, of an action with these names."""
    steps = {"action": Field("action", "float32", (4,), names=names)}
    steps |= {name: Field(name, "bool") for name in episode_flags(1)}
    (schema,) = probe(parse(list(connectors), "test"), Schema(steps)).schemas
    return {path: field.names for path, field in schema.steps.items() if path.startswith("action")}


def test_join_is_the_inverse_of_split():
    actions = np.arange(12, dtype=np.float32).reshape(3, 4)
    (split,) = edited(SPLIT, with_actions(actions))
    assert "action" not in split.steps
    np.testing.assert_array_equal(split.steps["action/arm"], actions[:, :3])
    np.testing.assert_array_equal(split.steps["action/gripper"], actions[:, 3:])
    (joined,) = edited(JOIN, split)
    np.testing.assert_array_equal(joined.steps["action"], actions)
    assert {*joined.steps} == {*with_actions(actions).steps}


def test_a_scalar_field_is_a_vector_of_one():
    episode = with_actions(np.ones((3, 2))).with_columns({"grip": np.arange(3, dtype=np.float32)})
    (made,) = edited(JoinFields(["action", "grip"], "command"), episode)
    np.testing.assert_array_equal(made.steps["command"], [[1, 1, 0], [1, 1, 1], [1, 1, 2]])


def test_names_follow():
    split = {"SplitField": {"field": "action", "into": {"action/arm": 3, "action/gripper": 1}}}
    join = {"JoinFields": {"fields": ["action/gripper", "action/arm"], "to": "action"}}
    assert names_of(split) == {"action/arm": ("j1", "j2", "j3"), "action/gripper": ("grip",)}
    assert names_of(split, join) == {"action": ("grip", "j1", "j2", "j3")}
    rename = {"RenameDimensions": {"field": "action", "names": {"j1": "pan", "grip": "gripper.pos"}}}
    assert names_of(rename) == {"action": ("pan", "j2", "j3", "gripper.pos")}
    assert names_of(rename, split)["action/arm"] == ("pan", "j2", "j3")
    assert names_of(split, join, rename) == {"action": ("gripper.pos", "pan", "j2", "j3")}
    relative = {"RelativeActions": {"state": "action", "absolute": [3]}}
    assert names_of(rename, relative) == {"action": ("delta_pan", "delta_j2", "delta_j3", "gripper.pos")}
    assert names_of(rename, relative, {"AbsoluteActions": relative["RelativeActions"]}) == names_of(rename)
    turned = {"ConvertRotation": {"field": "action", "from": "axis_angle", "to": "quaternion_xyzw"}}
    pytest.importorskip("scipy")
    assert names_of(relative, turned)["action"] == ("delta_qx", "delta_qy", "delta_qz", "delta_qw", "grip")
    assert names_of(rename, turned) == {"action": ("qx", "qy", "qz", "qw", "gripper.pos")}


def test_fields_of_several_dtypes_are_not_joined():
    episode = with_actions(np.zeros((3, 1))).with_columns({"count": np.zeros((3, 1), np.int64)})
    with pytest.raises(UsageError, match=r"one dtype, got \['float32', 'int64'\]: cast them first"):
        edited(JoinFields(["action", "count"], "both"), episode)


def test_values_are_arranged_with_zeros_and_a_mask():
    actions = np.arange(12, dtype=np.float32).reshape(3, 4)
    (arranged,) = edited(ArrangeDimensions("action", [3, None, 0], mask="action_mask"), with_actions(actions))
    np.testing.assert_array_equal(arranged.steps["action"], np.stack([actions[:, 3], [0, 0, 0], actions[:, 0]], 1))
    assert arranged.steps["action_mask"].tolist() == [[True, False, True]] * 3
    arrange = {"field": "action", "order": [3, 1]}
    assert names_of({"ArrangeDimensions": arrange}) == {"action": ("grip", "j2")}
    padded = {"field": "action", "order": [0, None], "mask": "action_mask", "names": ["x", "y"]}
    assert names_of({"ArrangeDimensions": padded}) == {"action": ("x", "y"), "action_mask": ()}
    assert names_of({"ArrangeDimensions": {"field": "action", "order": [0, None]}}) == {"action": ()}


def test_values_are_scaled_and_keep_dtype_and_names():
    actions = np.arange(12, dtype=np.float32).reshape(3, 4)
    (scaled,) = edited(ScaleDimensions("action", [1, 2, 3, 4]), with_actions(actions))
    np.testing.assert_array_equal(scaled.steps["action"], actions * np.float32([1, 2, 3, 4]))
    assert scaled.steps["action"].dtype == np.float32
    (radians,) = edited(ScaleDimensions("action", 1 / 57.29578), with_actions(actions))
    exact = (actions.astype(np.float64) / 57.29578).astype(actions.dtype)  # the same with numpy 1 and 2
    np.testing.assert_array_equal(radians.steps["action"], exact)
    assert names_of({"ScaleDimensions": {"field": "action", "factor": 2.0}}) == {"action": NAMES}


def test_fields_are_renamed_and_added():
    episode = with_actions(np.ones((3, 2), np.float32)).with_columns({"camera/a": np.zeros(3), "camera/b": np.ones(3)})
    (renamed,) = edited(RenameFields({"camera": "observation", "action": "command"}), episode)
    assert {"observation/a", "observation/b", "command"} <= {*renamed.steps} and "action" not in renamed.steps
    parts = ("intrinsics", "extrinsics", "extrinsics_base")
    calibrated = episode.replace(metadata={f"episode_metadata/camera/a_{part}": 1.0 for part in parts})
    (renamed,) = edited(RenameFields({"camera/a": "observation/front"}), calibrated)
    assert [*renamed.metadata] == [f"episode_metadata/observation/front_{part}" for part in parts]
    (renamed,) = edited(RenameFields({"camera": "view", "episode_metadata/camera/a_extrinsics": "pose"}), calibrated)
    assert [*renamed.metadata] == [
        "episode_metadata/view/a_intrinsics",
        "pose",
        "episode_metadata/view/a_extrinsics_base",
    ]
    counted = episode.with_columns({"observation/n_samples": np.arange(3)})  # counts, but of no window
    assert edited(SubsampleSteps(1), counted)[0].steps.keys() == counted.steps.keys()
    (resampled,) = edited(Resample(5, recorded_fps=10, last_action="real"), counted)
    assert np.asarray(resampled.steps["observation/n_samples"]).tolist() == [0, 2]
    assert names_of({"RenameFields": {"fields": {"action": "action/arm"}}}) == {"action/arm": NAMES}
    (added,) = edited(AddField("language_instruction", "pick"), episode)
    assert added.steps["language_instruction"].tolist() == [b"pick"] * 3
    for value, dtype in ((0.5, np.float32), (1, np.int64), (True, bool), ([1.0, 2.0], np.float32)):
        (added,) = edited(AddField("constant", value), episode)
        assert added.steps["constant"].dtype == dtype and (np.asarray(added.steps["constant"]) == value).all()
    with pytest.raises(UsageError, match="AddField: field=action: there is a field action"):
        edited(AddField("action", 1.0), episode)
