"""Reads TensorFlow's dtype numbers, and StructuredValue: the signature of Reverb tables and trajectory specs.

Source: tensorflow/core/protobuf/struct.proto. Tests compare it with TensorFlow's own decoder.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from rlds_beam.encoding.wire import WireMessage

# tensorflow/core/framework/types.proto
DATA_TYPES = {
    "float32": 1,
    "float64": 2,
    "int32": 3,
    "uint8": 4,
    "int16": 5,
    "int8": 6,
    "string": 7,
    "int64": 9,
    "bool": 10,
    "bfloat16": 14,
    "uint16": 17,
    "float16": 19,
    "uint32": 22,
    "uint64": 23,
}


_DTYPES = {number: name for name, number in DATA_TYPES.items()}

_DEEPEST = 50
"""Maximum levels of a signature; each takes two levels of messages, and protobuf reads at most 100."""

# Fields of StructuredValue.
_TENSOR_SPECS, _SEQUENCES, _DICT, _NAMED_TUPLE = (33, 35), (51, 52), 53, 54


@dataclasses.dataclass(frozen=True)
class SignatureLeaf:
    """A leaf of a table's signature: a column of its items.

    Attributes:
      path: names and indices joined by `/`, for example `observation/state`; empty if the signature is a single leaf.
      dtype: TensorFlow's dtype name, which equals numpy's; `unknown` if the leaf is not a tensor of a dtype that
        trajectories have.
      shape: the shape of a whole item, including the time axis; an unknown dimension or shape is None.
    """

    path: str
    dtype: str
    shape: tuple[int | None, ...] | None


def signature_leaves(value: WireMessage, path: tuple[str, ...] = ()) -> Iterator[SignatureLeaf]:
    """The leaves of a StructuredValue, in the order of `tf.nest`."""
    if len(path) > _DEEPEST:
        raise ValueError(f"the signature has more than {_DEEPEST} levels")
    for name, child in _children(value):
        yield from signature_leaves(child, (*path, name))
    spec = next((field for field in _TENSOR_SPECS if field in value), None)
    if spec is not None:
        tensor = value.message(spec)
        yield SignatureLeaf("/".join(path), _DTYPES.get(tensor.unsigned(3), "unknown"), _shape(tensor.message(2)))
    elif not any(field in value for field in (*_SEQUENCES, _DICT, _NAMED_TUPLE)):
        yield SignatureLeaf("/".join(path), "unknown", None)


def _children(value: WireMessage) -> list[tuple[str, WireMessage]]:
    for field in _SEQUENCES:
        if field in value:
            return [(str(i), child) for i, child in enumerate(value.message(field).messages(1))]
    if _DICT in value:  # tf.nest sorts dicts; protobuf maps are unordered
        entries = value.message(_DICT).messages(1)
        return sorted(((e.text(1), e.message(2)) for e in entries), key=lambda entry: entry[0])
    return [(pair.text(1), pair.message(2)) for pair in value.message(_NAMED_TUPLE).messages(2)]


def _shape(message: WireMessage) -> tuple[int | None, ...] | None:
    """The shape in a TensorShapeProto."""
    if message.integer(3):
        return None
    sizes = (dim.integer(1) for dim in message.messages(2))
    return tuple(None if size < 0 else size for size in sizes)
