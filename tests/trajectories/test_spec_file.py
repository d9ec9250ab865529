"""The `.spec` file: byte-identical to TF-Agents', without TensorFlow."""

from __future__ import annotations

import subprocess
import sys

import pytest
from processes import DEADLINE

from rlds_beam.episodes.schema import Field
from rlds_beam.errors import UsageError
from rlds_beam.trajectories.spec import encode_spec, encode_spec_file


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


@pytest.mark.parametrize("leaves", [fields(FLAT), fields(FLAT, ()), fields(FLAT, (None,)), fields(NESTED)])
def test_tf_agents_reads_the_same_spec(tmp_path, leaves):
    from tf_agents.utils import example_encoding_dataset

    ours, theirs = tmp_path / "ours.spec", tmp_path / "theirs.spec"
    ours.write_bytes(encode_spec_file(leaves))
    example_encoding_dataset.encode_spec_to_file(str(theirs), upstream(leaves))
    read, expected = (example_encoding_dataset.parse_encoded_spec_from_file(str(p)) for p in (ours, theirs))
    assert read == expected
    assert type(read).__name__ == "Trajectory"
    assert read._fields == expected._fields
    assert read.step_type.name == "step_type"
    if len(leaves) == 6:  # the order of a map with several entries is arbitrary
        assert ours.read_bytes() == theirs.read_bytes()


def test_the_message_equals_tf_agents():
    from tensorflow.core.protobuf import struct_pb2
    from tf_agents.specs import tensor_spec

    leaves = fields(NESTED, **{"policy_info/log_prob": Field("", "float32", (2,))})
    ours = struct_pb2.StructuredValue.FromString(encode_spec(leaves))
    nest = upstream(leaves)
    assert isinstance(nest.policy_info, dict)
    assert ours == tensor_spec.to_proto(nest)


def test_equals_create_trajectory_data_spec():
    import tensorflow as tf
    from tensorflow.core.protobuf import struct_pb2
    from tf_agents.replay_buffers import rlds_to_reverb
    from tf_agents.specs import tensor_spec

    step = {
        "observation": tf.zeros((1, 17)),
        "action": tf.zeros((1, 6)),
        "reward": tf.zeros(1),
        "discount": tf.zeros(1),
        **{flag: tf.zeros(1, tf.bool) for flag in ("is_first", "is_last", "is_terminal")},
    }
    steps = tf.data.Dataset.from_tensor_slices(step)
    data = tf.data.Dataset.from_tensors(0).map(lambda _: {"steps": steps})
    spec = rlds_to_reverb.create_trajectory_data_spec(data)
    leaves = fields({"observation": Field("", "float32", (17,))}, (), action=Field("", "float32", (6,)))
    assert tensor_spec.from_proto(struct_pb2.StructuredValue.FromString(encode_spec(leaves))) == spec


def test_a_leaf_outside_of_a_trajectory_is_refused():
    with pytest.raises(UsageError, match="language"):
        encode_spec([*fields(FLAT), Field("language", "float32", (2,))])


def test_needs_no_tensorflow():
    modules = "rlds_beam.trajectories.record_encoding, rlds_beam.trajectories.spec"
    code = f"import sys, {modules}; print('tensorflow' in sys.modules)"
    env = {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env, timeout=DEADLINE
    )
    assert done.stdout.strip() == "False"
