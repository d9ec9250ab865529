"""Connectors say how the values that they return are represented, and refuse what the data says otherwise."""

from __future__ import annotations

import pytest

from rlds_beam.connectors.configuration import parse
from rlds_beam.connectors.dry_run import probe
from rlds_beam.episodes.representations import Representation
from rlds_beam.episodes.schema import Field, Schema, episode_flags
from rlds_beam.errors import UsageError

NAMES = ("x", "y", "z", "roll", "pitch", "yaw", "gripper")
EULER = Representation(((3, "euler_xyz"),))
SIX = Representation(((3, "6d"),))


def convert(from_="euler_xyz", to="6d", at=3, field="action"):
    return {"ConvertRotation": {"field": field, "from": from_, "to": to, "at": at}}


def relative(rotation="euler_xyz", name="RelativeActions", **arguments):
    turned = {"rotation": rotation, "at": 3} if rotation else {}
    return {name: {**turned, "absolute": [6], **arguments}}


def represented(*connectors, action=None, state=None, size=7, names=()):
    """The representations after connectors of a configuration file, of an action and a state."""
    steps = {
        "action": Field("action", "float32", (size,)).with_names(names).with_representation(action),
        "observation/state": Field("observation/state", "float32", (size,)).with_representation(state),
        "gain": Field("gain", "float32", (2,)),
    }
    steps |= {name: Field(name, "bool") for name in episode_flags(1)}
    (schema,) = probe(parse(list(connectors), "test"), Schema(steps)).schemas
    return dict(schema.representations)


def test_converted_rotations_are_said():
    assert represented(convert()) == {"action": SIX}
    assert represented(convert(), convert("6d", "euler_xyz"), names=NAMES) == {"action": EULER}
    assert represented(convert(), action=EULER) == {"action": SIX}
    both = represented(convert(at=[0, 3], to="axis_angle"))["action"]
    assert both.rotations == ((0, "axis_angle"), (3, "axis_angle"))
    assert represented(convert(at=0), action=EULER)["action"].rotations == ((0, "6d"), (6, "euler_xyz"))


def test_relative_actions_are_said():
    based = Representation(((3, "euler_xyz"),), "state", "base", (6,))
    assert represented(relative()) == {"action": based, "observation/state": EULER}
    hand = represented(relative(frame="hand", position=0, to="previous"))["action"]
    assert hand == Representation(((3, "euler_xyz"),), "previous", "hand", (6,))
    assert represented(relative(None)) == {"action": Representation((), "state", None, (6,))}
    turned = represented(relative(), convert())["action"]
    assert turned == Representation(((3, "6d"),), "state", "base", (9,))
    back = [relative(), relative(name="AbsoluteActions")]
    assert represented(*back) == {"action": EULER, "observation/state": EULER}
    assert represented(relative(None), relative(None, "AbsoluteActions")) == {}


def test_differences_of_angles_value_by_value_are_no_rotation():
    assert represented(relative(None), action=EULER)["action"] == Representation((), "state", None, (6,))


@pytest.mark.parametrize("names", [(), NAMES])
def test_representations_follow_values(names):
    def follow(*connectors):
        return represented(*connectors, action=Representation(((3, "euler_xyz"),), "state", "base", (6,)), names=names)

    split = {"SplitField": {"field": "action", "into": {"action/place": 2, "action/arm": 4, "action/gripper": 1}}}
    join = {"JoinFields": {"fields": ["action/arm", "gain"], "to": "command"}}
    parts = follow(split)
    assert parts["action/place"] == Representation((), "state", "base") and "action/gripper" not in parts
    assert parts["action/arm"] == Representation(((1, "euler_xyz"),), "state", "base")
    joined = follow(split, join)["command"]
    assert joined == Representation(((1, "euler_xyz"),), "state", "base", (4, 5))
    renamed = follow({"RenameFields": {"fields": {"action": "command"}}})
    assert [*renamed] == ["command"] and renamed["command"].absolute == (6,)
    assert follow({"DropFields": {"fields": ["gain"]}})["action"].rotations == ((3, "euler_xyz"),)
    cut = follow({"SplitField": {"field": "action", "into": {"action/a": 4, "action/b": 3}}})
    assert cut["action/a"].rotations == cut["action/b"].rotations == ()
    arrange = {"field": "action", "order": [3, 4, 5, None, 6]}
    arranged = follow({"ArrangeDimensions": arrange})["action"]
    assert arranged == Representation(((0, "euler_xyz"),), "state", "base", (3, 4))
    swapped = follow({"ArrangeDimensions": {"field": "action", "order": [0, 1, 2, 4, 3, 5]}})["action"]
    assert swapped == Representation((), "state", "base")
    scaled = follow({"ScaleDimensions": {"field": "action", "factor": [1, 1, 1, 57.3, 57.3, 57.3, 1]}})["action"]
    assert scaled == Representation((), "state", "base", (6,))
    same = follow({"ScaleDimensions": {"field": "action", "factor": [2, 2, 2, 1, 1, 1, 100]}})["action"]
    assert same.rotations == ((3, "euler_xyz"),)


def test_renamed_values_stay_represented():
    rename = {"RenameDimensions": {"field": "action", "names": {"roll": "r"}}}
    assert represented(rename, action=EULER, names=NAMES) == {"action": EULER}


RELATIVE = Representation(((3, "euler_xyz"),), "state", "base", (6,))
REFUSED = [
    (convert("euler_ZYX"), EULER, "ConvertRotation: from=euler_ZYX, at=3, but action has a rotation as euler_xyz at 3"),
    (
        relative("axis_angle"),
        EULER,
        "RelativeActions: rotation=axis_angle, at=3, but action has a rotation as euler_xyz",
    ),
    (relative(), RELATIVE, r"RelativeActions: value 0 of action is already relative \(to=state, frame=base\)"),
    (relative(name="AbsoluteActions", to="previous"), RELATIVE, r"to=previous, frame=base, but value 0 .*\(to=state"),
    (relative(None, "AbsoluteActions"), RELATIVE, "has a rotation as euler_xyz at 3: give rotation and at"),
    (relative(name="AbsoluteActions", absolute=[]), RELATIVE, "value 6 of action is absolute already: add 6"),
    (
        {"Resample": {"fps": 5, "recorded_fps": 10}},
        RELATIVE,
        r"Resample: action has differences, .* relative: \[0, 1, 2, 3, 4, 5\]",
    ),
]


@pytest.mark.parametrize(("connector", "action", "message"), REFUSED)
def test_what_the_data_says_otherwise_is_refused(connector, action, message):
    with pytest.raises(UsageError, match=message) as error:
        represented(connector, action=action)
    assert "\n" not in str(error.value)


def test_the_rotation_of_the_state_is_compared():
    with pytest.raises(
        UsageError, match="rotation=euler_xyz, at=3, but observation/state has a rotation as axis_angle at 3"
    ):
        represented(relative(), state=Representation(((3, "axis_angle"),)))


def test_twice_relative_is_refused_unless_it_is_another_part():
    with pytest.raises(UsageError, match="already relative"):
        represented(relative(), relative())
    first, second = relative(None, absolute=[3, 4, 5, 6]), relative(None, absolute=[0, 1, 2, 6])
    assert represented(first, second)["action"] == Representation((), "state", None, (6,))


JOINTS = ("shoulder_pan.pos", "shoulder_lift.pos", "elbow_flex.pos", "wrist_flex.pos", "wrist_roll.pos", "gripper.pos")


@pytest.mark.parametrize(
    "names", [("waist", *JOINTS), tuple(f"joint_{i}" for i in range(7)), (*NAMES[:5], "gripper", "")]
)
@pytest.mark.parametrize(
    "connector", [convert(), relative(), relative(name="AbsoluteActions"), {"Resample": {"fps": 5, "recorded_fps": 10}}]
)
def test_joints_and_grippers_are_no_rotations(connector, names):
    if "Resample" in connector:
        connector = {"Resample": {**connector["Resample"], "interpolate": [3, 4, 5], "rotation": "euler_xyz", "at": 3}}
    ((name, _),) = connector.items()
    with pytest.raises(UsageError, match=rf"{name}: at=3: value \d of action is \S+, which is no part of a rotation"):
        represented(connector, names=names)


def test_the_rotations_of_poses_are_rotations():
    for turned in (NAMES[3:6], ("wrist_roll", "wrist_pitch", "wrist_yaw"), ("delta_rx", "delta_ry", "gripper_rz")):
        assert represented(convert(), names=(*NAMES[:3], *turned, "gripper"))["action"] == SIX
