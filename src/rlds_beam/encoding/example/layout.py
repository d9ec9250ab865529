"""How a row of columns is stored in a tf.Example, so that TFDS reads it: one feature for each column."""

from __future__ import annotations

from rlds_beam.encoding.example.reading import Kind
from rlds_beam.episodes.schema import Field

_AS_INTEGERS = ("int64", "uint32", "uint64")
"""Lists of integers: TensorFlow reads no bytes as unsigned numbers of 32 or 64 bits."""

IMAGES = ("png", "jpeg")


def row_field(field: Field) -> Field:
    """The column as it is stored: `encoding` is `none` (a list of values), `bytes`, `text`, `png` or `jpeg`.

    Numbers of one shape are a float list (float32), an integer list (int64, uint32, uint64), or bytes; so are those
    with an unknown dimension. With two or more TFDS wants the shape beside the bytes: `path/shape`, `path/value`.
    """
    if field.encoding in IMAGES:
        return Field(field.path, field.dtype, field.shape, field.encoding, "Image")
    if field.dtype == "string":
        return Field(field.path, "string", field.shape, "none" if field.shape else "text", "Tensor")
    unknown = field.shape.count(None)
    integers = field.dtype in _AS_INTEGERS and (not unknown or (field.dtype == "uint32" and unknown == 1))
    floats = field.dtype == "float32" and not unknown
    encoding = "none" if integers or floats else "bytes"
    return Field(field.path, field.dtype, field.shape, encoding)


def kind_of(field: Field) -> Kind:
    """The list that a stored column is in."""
    if field.encoding == "none" and field.dtype != "string":
        return "float" if field.dtype.startswith(("float", "bfloat")) else "int64"
    return "bytes"


def is_fixed(field: Field) -> bool:
    """Whether each value takes as many bytes as the others of an episode."""
    return field.encoding in ("none", "bytes") and field.dtype != "string" and all(field.shape)


def with_shape(field: Field) -> bool:
    """Whether the shape of each value is stored beside it."""
    return field.encoding == "bytes" and field.shape.count(None) > 1
