"""Writes the `.spec` that TF-Agents expects next to each TFRecord file, without TensorFlow.

`tf_agents.utils.example_encoding_dataset.encode_spec_to_file` writes a TFRecord with one `tensorflow.StructuredValue`
(tensorflow/core/protobuf/struct.proto). The message is small, and importing TensorFlow takes seconds.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

from rlds_beam.encoding.tensor_types import DATA_TYPES
from rlds_beam.encoding.tfrecord.writing import frame
from rlds_beam.encoding.wire import delimited, integer, text
from rlds_beam.episodes.nesting import nest
from rlds_beam.episodes.schema import Field
from rlds_beam.errors import UsageError

TRAJECTORY_FIELDS = ("step_type", "observation", "action", "policy_info", "next_step_type", "reward", "discount")
"""The fields of tf_agents.trajectories.Trajectory, in its order."""

_FLOAT = DATA_TYPES["float32"]

# Fields of StructuredValue.
_TENSOR_SPEC, _BOUNDED_SPEC, _TUPLE, _DICT, _NAMED_TUPLE = 33, 35, 52, 53, 54

# TF-Agents names these specs (ts.time_step_spec), and specs with different names are not equal.
_NAMES = {"step_type": "step_type", "next_step_type": "step_type", "discount": "discount"}

Tree = dict[str, "Tree | Field"]


def encode_spec_file(fields: Iterable[Field]) -> bytes:
    """Encodes a `.spec` file for a `Trajectory` of `fields`.

    Args:
      fields: the leaves (`observation/state` and so on), with the shape of a whole item, None if unknown. A group of
        leaves named `0`, `1`, ... is a tuple; other groups are dicts.
    """
    return frame(encode_spec(fields))


def encode_spec(fields: Iterable[Field]) -> bytes:
    """Serializes the StructuredValue, byte-identical to `encode_spec_to_file` for the same spec.

    Raises:
      UsageError: a leaf is in none of Trajectory's fields.
    """
    leaves = {field.path: field for field in fields}
    for path in leaves:
        if path.split("/")[0] not in TRAJECTORY_FIELDS:
            raise UsageError(f"{path} is not in a field of Trajectory; the fields are {', '.join(TRAJECTORY_FIELDS)}")
    tree: Tree = nest(leaves)
    # A field without leaves, usually policy_info, is the empty tuple.
    pairs = (text(1, name) + delimited(2, _value(tree.get(name, {}))) for name in TRAJECTORY_FIELDS)
    return delimited(_NAMED_TUPLE, text(1, "Trajectory") + b"".join(delimited(2, pair) for pair in pairs))


def is_tuple(names: Iterable[str]) -> bool:
    """Whether a group of leaves with these names is a tuple."""
    names = set(names)
    return names == {str(i) for i in range(len(names))}


def _value(node: Mapping[str, Tree | Field] | Field) -> bytes:
    if isinstance(node, Field):
        return _tensor_spec(node)
    if is_tuple(node):
        items = (delimited(1, _value(node[str(i)])) for i in range(len(node)))
        return delimited(_TUPLE, b"".join(items))
    entries = (text(1, name) + delimited(2, _value(child)) for name, child in sorted(node.items()))
    return delimited(_DICT, b"".join(delimited(1, entry) for entry in entries))


def _tensor_spec(field: Field) -> bytes:
    dims = (delimited(2, integer(1, -1 if size is None else size)) for size in field.shape)
    spec = text(1, _NAMES.get(field.path)) + delimited(2, b"".join(dims)) + integer(3, DATA_TYPES[field.dtype])
    if field.path != "discount":
        return delimited(_TENSOR_SPEC, spec)
    return delimited(_BOUNDED_SPEC, spec + delimited(4, _scalar(0.0)) + delimited(5, _scalar(1.0)))


def _scalar(value: float) -> bytes:
    """A float32 TensorProto of shape ()."""
    return integer(1, _FLOAT) + delimited(2, b"") + delimited(5, struct.pack("<f", value))
