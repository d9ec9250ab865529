"""Mapping fields to LeRobot features."""

from __future__ import annotations

import pytest

from rlds_beam.episodes.schema import Field, Schema
from rlds_beam.errors import UsageError
from rlds_beam.formats.lerobot.features import FeatureMap, map_features


def schema(*fields: Field, metadata: tuple[Field, ...] = ()) -> Schema:
    return Schema({f.path: f for f in fields}, {f.path: f for f in metadata})


def vector(path: str, size: int = 3) -> Field:
    return Field(path, "float32", (size,))


def text(path: str) -> Field:
    return Field(path, "string", (), "text")


def image(path: str, encoding: str = "jpeg") -> Field:
    return Field(path, "uint8", (32, 32, 3), encoding)


def names(found: FeatureMap) -> dict[str, str]:
    """The feature name of each path."""
    return {"+".join(f.path for f in feature.fields): feature.name for feature in found.features}


def test_names_by_convention():
    found = map_features(
        schema(
            image("observation/image_0"),
            image("observation/images/wrist"),
            image("observation/pixels", "none"),
            vector("observation/state"),
            vector("observation/gripper", 1),
            vector("action/ctrl", 2),
            Field("reward", "float32"),
            Field("is_last", "bool"),
            Field("is_first", "bool"),
            text("language_instruction"),
            text("language_instruction_2"),
            Field("timestamp", "float64"),
            metadata=(text("episode_metadata/file_path"), Field("episode_id", "int32")),
        )
    )
    assert names(found) == {
        "observation/image_0": "observation.images.image_0",
        "observation/images/wrist": "observation.images.wrist",
        "observation/pixels": "observation.images.pixels",
        "observation/state": "observation.state",
        "observation/gripper": "observation.gripper",
        "action/ctrl": "action",
        "reward": "next.reward",
        "is_last": "next.done",
        "is_first": "is_first",
        "language_instruction_2": "language_instruction_2",
        "timestamp": "rlds.timestamp",
    }
    assert found.task == "language_instruction"
    assert {name: field.path for name, field in found.columns.items()} == {
        "file_path": "episode_metadata/file_path",
        "episode_id": "episode_id",
    }
    assert [feature.kind for feature in found.features[:3]] == ["image"] * 3


@pytest.mark.parametrize("path", ["observation", "observation/proprio"])
def test_the_only_vector_is_the_state(path):
    assert names(map_features(schema(vector(path), image("camera"))))[path] == "observation.state"


def test_a_remaining_vector_does_not_take_the_name_of_the_state():
    given = schema(vector("observation/arm"), vector("observation/goal"), vector("action"))
    found = names(map_features(given, ["observation.state=observation/arm"]))
    assert found["observation/goal"] == "observation.goal"


def test_map_names_joins_and_leaves_out():
    given = schema(
        vector("observation/arm"),
        Field("observation/gripper", "float64"),
        vector("action"),
        text("a"),
        text("b"),
        metadata=(text("episode_metadata/task"),),
    )
    found = map_features(given, ["observation.state=observation/arm+observation/gripper", "-a", "task=b"])
    assert names(found) == {"observation/arm+observation/gripper": "observation.state", "action": "action"}
    state = found.features[0]
    assert (state.dtype, state.shape) == ("float64", (4,))
    assert state.info()["names"] == ["arm_0", "arm_1", "arm_2", "gripper"]
    assert found.task == "b"
    assert found.left_out == {"a": "excluded by --map"}
    assert list(found.columns) == ["task"]


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (Field("observation/points", "float32", (None, 3)), "varies in shape"),
        (Field("observation/image", "uint8", (None, None, 3), "png"), "unknown size"),
        (Field("observation/images", "uint8", (2, 8, 8, 3), "png"), "several a step"),
        (Field("words", "string", (2, 2), "text"), "more dimensions"),
        (Field("x", "complex64", (2,)), "does not support complex64"),
    ],
)
def test_fields_that_lerobot_cannot_hold_are_refused_by_name(field, message):
    with pytest.raises(UsageError, match=message) as refused:
        map_features(schema(field))
    assert f"--map=-{field.path}" in str(refused.value) or "leave it out" in str(refused.value)
    assert field.path in map_features(schema(field, vector("action")), [f"-{field.path}"]).left_out


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("x", "expected NAME=PATH"),
        ("x=nothing", "there is no field nothing"),
        ("a/b=action", "reserves this name"),
        ("index=action", "reserves this name"),
        ("task=action", "must be one text field"),
        ("x=action+text", "not a numeric vector"),
        ("text=action", "would both become the feature text"),
    ],
)
def test_invalid_entries_are_refused(entry, message):
    with pytest.raises(UsageError, match=message):
        map_features(schema(vector("action"), text("text"), text("language_instruction")), [entry])
