"""The trajectory spec: computed from the schema alone, and equal to TF-Agents' own."""

from __future__ import annotations

import os
import sys
import types
from typing import Any

import numpy as np
import pytest

from rlds_beam.encoding.tfds.features import DEFAULT_DISCOUNT
from rlds_beam.encoding.tfds.rlds_dataset import default_schema
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.schema import Field, Schema
from rlds_beam.errors import UsageError
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.testing import make_episode
from rlds_beam.trajectories.frames import to_frames
from rlds_beam.trajectories.options import FrameOptions, ItemOptions
from rlds_beam.trajectories.spec import SpecLeaf, TrajectorySpec, encode_spec, trajectory_spec


def rich_episode(length: int = 3) -> Episode:
    jpegs = EncodedImages(np.array([b"\xff\xd8"] * length + [None], object)[:-1], (64, 64, 3))
    return make_episode(
        length,
        observation={"state": 7, "hand/left": (2, 3)},
        columns={
            "observation/image": jpegs,
            "observation/note": ["a"] * length,
            "language_instruction": ["go"] * length,
            "language_embedding": np.ones((length, 8), np.float32),
            "reward": np.ones(length, np.float64),
        },
    )


def spec_of(episode: Episode, frames: FrameOptions | None = None, items: ItemOptions | None = None) -> TrajectorySpec:
    return trajectory_spec(default_schema(episode), frames or FrameOptions(), items or ItemOptions())


def test_leaves_of_a_rich_dataset() -> None:
    spec = spec_of(rich_episode(), FrameOptions(policy_info_fields=("language_embedding",)))
    assert spec.leaves == (
        SpecLeaf("step_type", "int32", ()),
        SpecLeaf("observation/hand/left", "float32", (2, 3)),
        SpecLeaf("observation/image", "uint8", (64, 64, 3), "jpeg"),
        SpecLeaf("observation/state", "float32", (7,)),
        SpecLeaf("action", "float32", (2,)),
        SpecLeaf("policy_info/language_embedding", "float32", (8,)),
        SpecLeaf("next_step_type", "int32", ()),
        SpecLeaf("reward", "float64", ()),
        SpecLeaf("discount", "float32", ()),
    )
    assert spec.item_shape == (2,)
    assert spec["observation/image"].shape == (64, 64, 3)


def test_left_out_fields_have_reasons() -> None:
    assert spec_of(rich_episode(), FrameOptions(observation_fields=("state",))).left_out == {
        "language_embedding": "not a trajectory leaf; --policy_info_fields=language_embedding adds it to policy_info",
        "language_instruction": "text; a trajectory can only hold numbers",
        "observation/hand/left": "not in --observation_fields",
        "observation/image": "not in --observation_fields",
        "observation/note": "text; a trajectory can only hold numbers",
    }


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        (ItemOptions(), (2,)),
        (ItemOptions(items="frames"), ()),
        (ItemOptions(items="sequences", sequence_length=7), (7,)),
        (ItemOptions(items="episodes", max_sequence_length=9), (None,)),
    ],
)
def test_item_shapes(items: ItemOptions, expected: tuple[int | None, ...]) -> None:
    assert spec_of(make_episode(3), items=items).item_shape == expected


@pytest.mark.parametrize("options", [FrameOptions(), FrameOptions(last_step="absorbing")])
def test_frames_of_the_dataset_match_the_spec(options: FrameOptions) -> None:
    for episode in (rich_episode(), make_episode(1), make_episode(6, action={"a": (), "b": 2})):
        spec, frames = spec_of(episode, options), to_frames(episode, options)
        spec.check(frames)
        assert {leaf.path for leaf in spec.leaves} == {*frames.columns}


def test_unknown_dimensions_are_refused_with_a_remedy() -> None:
    steps = dict(default_schema(rich_episode()).steps)
    open_image = Schema({**steps, "observation/image": Field("observation/image", "uint8", (None, None, 3), "png")})
    with pytest.raises(
        UsageError, match=r"observation/image: uint8\(\?, \?, 3\).*--observation_fields=hand/left,state"
    ):
        trajectory_spec(open_image, FrameOptions(), ItemOptions())
    chosen = trajectory_spec(open_image, FrameOptions(observation_fields=("state",)), ItemOptions())
    assert "observation/image" not in {leaf.path for leaf in chosen.leaves}
    open_action = Schema({**steps, "action": Field("action", "float32", (None,))})
    with pytest.raises(UsageError, match=r"action: float32\(\?\).*a fixed size; give it a fixed size"):
        trajectory_spec(open_action, FrameOptions(), ItemOptions())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (FrameOptions(observation_fields=("note",)), "observation/note is text"),
        (FrameOptions(observation_fields=("sta",)), "did you mean state"),
        (FrameOptions(policy_info_fields=("language_instruction",)), "language_instruction is text"),
    ],
)
def test_options_are_checked_before_any_work(options: FrameOptions, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        spec_of(rich_episode(), options)


def policy_info(monkeypatch: pytest.MonkeyPatch, function: Any) -> FrameOptions:
    module = types.ModuleType(f"spec_policy_info_{id(function)}")
    module.function = function  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return FrameOptions(policy_info_fn=f"{module.__name__}:function")


def test_the_spec_of_policy_info_fn_is_found_by_calling_it(monkeypatch: pytest.MonkeyPatch) -> None:
    options = policy_info(monkeypatch, lambda now, _: {"logp": np.zeros((len(now["reward"]), 4), np.float16)})
    spec = spec_of(rich_episode(), options)
    assert spec["policy_info/logp"] == SpecLeaf("policy_info/logp", "float16", (4,))
    spec.check(to_frames(rich_episode(5), options))


def test_policy_info_fn_with_inconsistent_results(monkeypatch: pytest.MonkeyPatch) -> None:
    options = policy_info(monkeypatch, lambda now, _: now["reward"].astype("f8" if len(now["reward"]) > 2 else "f4"))
    spec = spec_of(make_episode(3), options)
    with pytest.raises(UsageError, match=r"policy_info is float64\[\], but .* have float32\[\]"):
        spec.check(to_frames(make_episode(3), options))


def test_a_dataset_without_discounts() -> None:
    steps = {**default_schema(make_episode(3)).steps, "discount": DEFAULT_DISCOUNT}
    assert trajectory_spec(Schema(steps), FrameOptions(), ItemOptions())["discount"] == SpecLeaf(
        "discount", "float32", ()
    )


def test_a_frame_has_one_discount() -> None:
    episode = make_episode(3, columns={"discount": np.ones((3, 1))})
    spec = spec_of(episode)
    assert spec["discount"] == SpecLeaf("discount", "float32", ())
    spec.check(to_frames(episode, FrameOptions()))
    with pytest.raises(UsageError, match=r"discount: float32\(2\): a trajectory has one discount per frame"):
        spec_of(make_episode(3, columns={"discount": np.ones((3, 2), np.float32)}))


# TF-Agents


def upstream_spec(episode: Episode) -> Any:
    """TF-Agents' spec of a dataset of such episodes."""
    import tensorflow as tf
    from tf_agents.replay_buffers import rlds_to_reverb

    nest: dict[str, Any] = {}
    for path, column in episode.steps.items():
        level = nest
        *parents, leaf = path.split("/")
        for parent in parents:
            level = level.setdefault(parent, {})
        level[leaf] = np.asarray(column)
    steps = tf.data.Dataset.from_tensor_slices(nest)
    return rlds_to_reverb.create_trajectory_data_spec(tf.data.Dataset.from_tensors({"steps": steps}))


@pytest.mark.parametrize(
    "episode",
    [
        make_episode(3),
        make_episode(3, observation=(), action=(2, 3), columns={"reward": np.ones((3, 1))}),
        make_episode(3, columns={"observation": np.ones((3, 8, 8, 3), np.uint8), "action": np.ones(3, np.int64)}),
        make_episode(3, observation={"b": 1, "a-b": 2, "a/c": 3}, action={"arm": 6, "grip": ()}),
        make_episode(3, columns={"discount": np.ones(3, np.float64)}),
        make_episode(3, columns={"discount": np.ones((3, 1), np.float32)}),
    ],
    ids=["flat", "shapes", "dtypes", "nested", "discount", "discount (1,)"],
)
def test_to_tf_equals_tf_agents_spec(episode: Episode) -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    pytest.importorskip("tf_agents")
    from tf_agents.specs import tensor_spec

    upstream = upstream_spec(episode)
    spec = spec_of(episode)
    assert spec.to_tf(per_frame=True) == upstream
    assert spec.to_tf() == tensor_spec.add_outer_dim(upstream, 2)
    assert spec_of(episode, items=ItemOptions(items="episodes")).to_tf() == tensor_spec.add_outer_dim(upstream)
    assert spec_of(episode, items=ItemOptions(items="frames")).to_tf() == upstream


def fields(observation: dict[str, Field], lead: tuple[int | None, ...] = (2,), **more: Field) -> list[Field]:
    scalars = {"step_type": "int32", "next_step_type": "int32", "reward": "float32", "discount": "float32"}
    leaves = {
        **{path: Field(path, dtype, lead) for path, dtype in scalars.items()},
        "action": Field("action", "float32", (*lead, 6)),
        **observation,
        **more,
    }
    return [Field(path, f.dtype, f.shape, f.encoding) for path, f in leaves.items()]


FLAT = {"observation": Field("observation", "float32", (2, 17))}
NESTED = {
    "observation/b/image": Field("", "uint8", (2, 64, 64, 3)),
    "observation/b/a": Field("", "float64", (2,)),
    "observation/count": Field("", "int64", (2, 300)),
    "observation/camera/0": Field("", "uint8", (8, 8, 3)),
    "observation/camera/1": Field("", "uint8", (8, 8, 3)),
}


def upstream(leaves: list[Field]):
    """The same nest of TF-Agents' own specs."""
    import tensorflow as tf
    from tf_agents.specs import tensor_spec
    from tf_agents.trajectories import trajectory

    nest: dict = {}
    for field in leaves:
        dtype = tf.as_dtype(field.dtype)
        name = "step_type" if "step_type" in field.path else None
        spec = tf.TensorSpec(field.shape, dtype, name)
        if field.path == "discount":
            spec = tensor_spec.BoundedTensorSpec(field.shape, dtype, 0, 1, "discount")
        *parents, last = field.path.split("/")
        node = nest
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = spec
    if isinstance(nest["observation"], dict):
        camera = nest["observation"]["camera"]
        nest["observation"]["camera"] = (camera["0"], camera["1"])
    return trajectory.Trajectory(**{"policy_info": (), **nest})


def test_the_message_equals_tf_agents():
    from tensorflow.core.protobuf import struct_pb2
    from tf_agents.specs import tensor_spec

    leaves = fields(NESTED, **{"policy_info/log_prob": Field("", "float32", (2,))})
    ours = struct_pb2.StructuredValue.FromString(encode_spec(leaves))
    nest = upstream(leaves)
    assert isinstance(nest.policy_info, dict)
    assert ours == tensor_spec.to_proto(nest)


def test_a_leaf_outside_of_a_trajectory_is_refused():
    with pytest.raises(UsageError, match="language"):
        encode_spec([*fields(FLAT), Field("language", "float32", (2,))])
