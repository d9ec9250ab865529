"""The storage of a row in a tf.Example that TFDS can read: one feature per column."""

from __future__ import annotations

from rlds_beam.encoding.example.reading import Kind
from rlds_beam.episodes.schema import Field

_AS_INTEGERS = ("int64", "uint32", "uint64")
"""Stored as integer lists: TensorFlow cannot read bytes as unsigned 32- or 64-bit numbers."""

IMAGES = ("png", "jpeg")


def row_field(field: Field) -> Field:
    """The field as stored: `encoding` is `none` (a list of values), `bytes`, `text`, `png`, or `jpeg`.

    Numbers of known shape become a float list (float32), an integer list (int64, uint32, uint64), or bytes. With one
    unknown dimension, uint32 becomes an integer list, and all others bytes. With two or more, TFDS also needs the
    shape: `path/shape`, `path/value`.
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
    """The kind of list of a stored column."""
    if field.encoding == "none" and field.dtype != "string":
        return "float" if field.dtype.startswith(("float", "bfloat")) else "int64"
    return "bytes"


def is_fixed(field: Field) -> bool:
    """Whether all values of an episode take the same number of bytes."""
    return field.encoding in ("none", "bytes") and field.dtype != "string" and all(field.shape)


def with_shape(field: Field) -> bool:
    """Whether the shape of each value is stored next to it."""
    return field.encoding == "bytes" and field.shape.count(None) > 1
