"""Connectors that split, join, arrange, scale, and name values and fields: values, names, and what does not fit."""

from __future__ import annotations

import numpy as np
import pytest
from edits import edited, with_actions

from rlds_beam.connectors import (
    AddField,
    ArrangeDimensions,
    JoinFields,
    RenameDimensions,
    RenameFields,
    ScaleDimensions,
    SplitField,
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


def test_renaming_leaves_the_episode_as_it_is():
    episode = with_actions(np.ones((3, 4)))
    (same,) = edited(RenameDimensions("action", {"j1": "pan"}), episode)
    assert same is episode


@pytest.mark.parametrize(
    ("names", "known", "message"),
    [
        ({"j9": "pan"}, NAMES, "action has no value j9"),
        ({"j1": "j2"}, NAMES, "two values of action would be j2"),
        ({"j1": "pan"}, (), "action has no value j1.*it has no names"),
    ],
)
def test_names_that_do_not_fit_are_refused(names, known, message):
    with pytest.raises(UsageError, match=message):
        names_of({"RenameDimensions": {"field": "action", "names": names}}, names=known)


@pytest.mark.parametrize(
    ("connector", "message"),
    [
        (SplitField("action", {"a": 3}), "action has 4 values, not 3"),
        (SplitField("action", {"a": 4, "b": 0}), r"action has 4 values, not 4 \+ 0"),
        (SplitField("action", {"reward": 3, "b": 1}), "into=reward: there is a field reward"),
        (JoinFields([], "a"), "got none"),
        (JoinFields(["action", "is_last"], "a"), "JoinFields: fields=is_last: the field does not hold numbers"),
        (JoinFields(["action"], "reward"), "to=reward: there is a field reward"),
        (JoinFields(["action"], "reward/a"), "to=reward/a: there is a field reward"),
    ],
)
def test_what_does_not_fit_is_refused(connector, message):
    with pytest.raises(UsageError, match=message):
        edited(connector, with_actions(np.zeros((3, 4))))


def test_fields_of_several_dtypes_are_not_joined():
    episode = with_actions(np.zeros((3, 1))).with_columns({"count": np.zeros((3, 1), np.int64)})
    with pytest.raises(UsageError, match="one dtype, got action float32, count int64: cast them first"):
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
    with pytest.raises(UsageError, match="action has no value 4, but 4, from 0"):
        edited(ArrangeDimensions("action", [4]), with_actions(actions))
    with pytest.raises(UsageError, match="as many names"):
        ArrangeDimensions("action", [0, 1], names=["x"])


def test_values_are_scaled_and_keep_dtype_and_names():
    actions = np.arange(12, dtype=np.float32).reshape(3, 4)
    (scaled,) = edited(ScaleDimensions("action", [1, 2, 3, 4]), with_actions(actions))
    np.testing.assert_array_equal(scaled.steps["action"], actions * np.float32([1, 2, 3, 4]))
    assert scaled.steps["action"].dtype == np.float32
    (radians,) = edited(ScaleDimensions("action", 1 / 57.29578), with_actions(actions))
    exact = (actions.astype(np.float64) / 57.29578).astype(actions.dtype)  # the same with numpy 1 and 2
    np.testing.assert_array_equal(radians.steps["action"], exact)
    assert names_of({"ScaleDimensions": {"field": "action", "factor": 2.0}}) == {"action": NAMES}
    for connector in (ScaleDimensions("action", [1, 2]), ScaleDimensions("is_first", 2)):
        with pytest.raises(UsageError, match=r"expected floats, and one factor|does not hold numbers"):
            edited(connector, with_actions(actions))


def test_fields_are_renamed_and_added():
    episode = with_actions(np.ones((3, 2), np.float32)).with_columns({"camera/a": np.zeros(3), "camera/b": np.ones(3)})
    (renamed,) = edited(RenameFields({"camera": "observation", "action": "command"}), episode)
    assert {"observation/a", "observation/b", "command"} <= {*renamed.steps} and "action" not in renamed.steps
    assert names_of({"RenameFields": {"fields": {"action": "action/arm"}}}) == {"action/arm": NAMES}
    with pytest.raises(UsageError, match="there is no field acton; did you mean action"):
        edited(RenameFields({"acton": "a"}), episode)
    with pytest.raises(UsageError, match="two fields would have one name"):
        edited(RenameFields({"camera/a": "camera/b"}), episode)
    (added,) = edited(AddField("language_instruction", "pick"), episode)
    assert added.steps["language_instruction"].tolist() == [b"pick"] * 3
    for value, dtype in ((0.5, np.float32), (1, np.int64), (True, bool), ([1.0, 2.0], np.float32)):
        (added,) = edited(AddField("constant", value), episode)
        assert added.steps["constant"].dtype == dtype and (np.asarray(added.steps["constant"]) == value).all()
    with pytest.raises(UsageError, match="AddField: field=action: there is a field action"):
        edited(AddField("action", 1.0), episode)


@pytest.mark.parametrize(
    ("value", "dtype"), [(300, "int8"), (0.5, "int32"), ([1, [2]], None), (1, "flaot32"), (1, "string")]
)
def test_a_value_that_its_dtype_does_not_hold_is_refused(value, dtype):
    with pytest.raises((UsageError, ValueError)):
        AddField("constant", value, dtype)
