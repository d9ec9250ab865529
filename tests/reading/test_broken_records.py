"""Violations of broken records. TFDS's protobuf writes the Examples, without TensorFlow."""

import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds_beam.encoding.tfds.features import DEFAULT_DISCOUNT
from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.episodes.schema import Field, Schema
from rlds_beam.errors import BadEpisode
from rlds_beam.reading.decoding import EpisodeDecoder

KEY = EpisodeKey("made/1.0.0", "train", 0, 0)
# TFDS's protobuf writes the Examples, without TensorFlow.


SCHEMA = Schema(
    {
        f.path: f
        for f in (
            Field("observation/state", "float32", (3,)),
            Field("observation/image", "uint8", (4, 4, 3), "png", "Image"),
            Field("observation/packed", "int16", (2,), "zlib"),
            Field("observation/raw", "bool", (2,), "bytes"),
            Field("observation/text", "string", encoding="text", feature="Text"),
            Field("action", "int64"),
            DEFAULT_DISCOUNT,
        )
    },
    {"episode_id": Field("episode_id", "int64")},
)


def example(**changes: Any) -> bytes:
    """An episode of three steps for `SCHEMA`; `changes` replace lists, by the last name of their path."""
    from tensorflow_datasets.proto import tf_example_pb2

    content = {
        "steps/observation/state": [float(i) for i in range(9)],
        "steps/observation/image": [b"i"] * 3,
        "steps/observation/packed": [zlib.compress(np.arange(2, dtype=np.int16).tobytes())] * 3,
        "steps/observation/raw": [b"\0\1"] * 3,
        "steps/observation/text": [b"t"] * 3,
        "steps/action": [1, -2, 300],
        "episode_id": [7],
        "unknown": [1.0],
    }
    message = tf_example_pb2.Example()
    for path, values in content.items():
        values = changes.get(path.rpartition("/")[2], values)
        if values is None:
            continue
        feature = message.features.feature[path]
        kind = (
            "int64_list"
            if not values
            else {float: "float_list", bytes: "bytes_list", int: "int64_list"}[type(values[0])]
        )
        getattr(feature, kind).value.extend(values)
    return message.SerializeToString()


def violations(payload: bytes) -> list[tuple[str, str | None]]:
    with pytest.raises(BadEpisode) as caught:
        EpisodeDecoder(SCHEMA).decode(payload, KEY)
    return [(v.rule, v.field) for v in caught.value.violations]


def test_a_good_record() -> None:
    episode = EpisodeDecoder(SCHEMA).decode(example(), KEY)
    assert len(episode) == 3
    np.testing.assert_array_equal(episode.steps["action"], [1, -2, 300])
    np.testing.assert_array_equal(episode.steps["observation/packed"], [[0, 1]] * 3)
    np.testing.assert_array_equal(episode.steps["observation/raw"], [[False, True]] * 3)
    np.testing.assert_array_equal(episode.steps["discount"], np.ones(3, np.float32))
    assert episode.metadata == {"episode_id": 7}
    assert episode.payload == example()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"state": None}, [("missing_field", "observation/state")]),
        ({"episode_id": None}, [("missing_field", "episode_id")]),
        ({"episode_id": [1, 2]}, [("wrong_dtype_or_shape", "episode_id")]),
        ({"state": [1.0] * 8}, [("wrong_dtype_or_shape", "observation/state")]),
        ({"state": [1] * 9}, [("wrong_dtype_or_shape", "observation/state")]),
        ({"action": [1, 2]}, [("unequal_lengths", "action")]),
        (
            {"action": [1.0] * 3, "text": [b"t"]},
            [("wrong_dtype_or_shape", "action"), ("unequal_lengths", "observation/text")],
        ),
        ({"raw": [b"\0\1", b"\0", b"\0\1"]}, [("wrong_dtype_or_shape", "observation/raw")]),
        ({"packed": [b"not zlib"] * 3}, [("wrong_dtype_or_shape", "observation/packed")]),
        ({"packed": [zlib.compress(b"1234")[:-1]] * 3}, [("wrong_dtype_or_shape", "observation/packed")]),
        ({"packed": [zlib.compress(bytes(10**7))] * 3}, [("wrong_dtype_or_shape", "observation/packed")]),
        ({"packed": [zlib.compress(b"12")] * 3}, [("wrong_dtype_or_shape", "observation/packed")]),
    ],
)
def test_every_violation_is_named(changes: dict[str, Any], expected: list[tuple[str, str | None]]) -> None:
    assert violations(example(**changes)) == expected


@pytest.mark.parametrize("payload", [b"", b"hello world, this is no Example", b"\n\0", b"\n\5\n\3\n\1a", b"\xff" * 99])
def test_not_an_example(payload: bytes) -> None:
    assert violations(payload) == [("not_an_example", None)]


def test_zero_steps() -> None:
    nothing: dict[str, Any] = {name: [] for name in ("packed", "raw", "text", "image", "action")}
    payload = example(**nothing, state=[])
    # Empty lists also have a kind; the helper writes all as int64, so only int64 fields are valid.
    assert {rule for rule, _ in violations(payload)} == {"wrong_dtype_or_shape"}
    schema = Schema({"action": Field("action", "int64"), "empty": Field("empty", "float32", (0,))})
    from tensorflow_datasets.proto import tf_example_pb2

    message = tf_example_pb2.Example()
    message.features.feature["steps/action"].int64_list.SetInParent()
    message.features.feature["steps/empty"].float_list.SetInParent()
    assert len(EpisodeDecoder(schema).decode(message.SerializeToString(), KEY)) == 0
    message.features.feature["steps/action"].int64_list.value.extend([1, 2])
    assert EpisodeDecoder(schema).decode(message.SerializeToString(), KEY).steps["empty"].shape == (2, 0)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_mutations_raise_nothing_but_bad_episode(data: st.DataObject) -> None:
    payload = bytearray(example())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(payload) - 1))
        match data.draw(st.sampled_from(("set", "cut", "insert", "delete"))):
            case "set":
                payload[at] = data.draw(st.integers(0, 255))
            case "cut" if at:
                del payload[at:]
            case "insert":
                payload[at:at] = data.draw(st.binary(min_size=1, max_size=12))
            case _:
                del payload[at : at + data.draw(st.integers(0, 20))]
        if not payload:
            break
    try:
        episode = EpisodeDecoder(SCHEMA).decode(bytes(payload), KEY)
    except BadEpisode:
        return
    assert {len(column) for column in episode.steps.values()} == {len(episode)}
