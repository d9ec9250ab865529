"""Encodes RLDS episodes as TFDS does, each as a serialized tf.Example, and derives their schema."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from rlds_beam.encoding.wire import delimited, packed_varints, tag_and_length
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.episodes.schema import Field, Schema, text_field
from rlds_beam.images.encoded_images import EncodedImages


def as_column(values: Any) -> Column:
    """Converts text to an object array of bytes; arrays and EncodedImages stay unchanged."""
    if isinstance(values, EncodedImages | np.ndarray):
        return values
    if len(values) and isinstance(values[0], str | bytes):
        return np.array([v.encode() if isinstance(v, str) else v for v in values] + [None], object)[:-1]
    return np.asarray(values)


def schema_of(episode: Episode) -> Schema:
    """The default schema of `encode_example` for an episode, as in TFDS."""
    metadata = {p: _field(p, as_column([v]) if isinstance(v, str | bytes) else np.asarray(v)[None])
                for p, v in episode.metadata.items()}  # fmt: skip
    return Schema({path: _field(path, column) for path, column in episode.steps.items()}, metadata)


def _field(path: str, column: Column) -> Field:
    if isinstance(column, EncodedImages):
        jpeg = len(column) and column.data[0][:2] == b"\xff\xd8"
        return Field(path, column.dtype, column.shape, "jpeg" if jpeg else "png", "Image")
    if column.dtype == object:
        return text_field(path, column.shape[1:])
    # TFDS stores bfloat16 only as bytes, not as a list of numbers.
    encoding = "bytes" if column.dtype.name == "bfloat16" else "none"
    return Field(path, column.dtype.name, column.shape[1:], encoding, "Tensor" if column.ndim > 1 else "Scalar")


def encode_example(episode: Episode, schema: Schema | None = None) -> bytes:
    """Serializes an episode like TFDS: a tf.Example with `steps/<path>` and `episode_metadata/<path>`.

    Columns that are not in the schema (by default `schema_of(episode)`) are still stored, and columns of the schema may
    be missing, so that tests can write records that disagree with features.json.
    """
    schema, own = schema or schema_of(episode), schema_of(episode)
    features = {
        f"steps/{path}": encode_feature(column, schema.steps.get(path, own.steps[path]))
        for path, column in episode.steps.items()
    }
    for path, value in episode.metadata.items():
        column = as_column([value]) if isinstance(value, str | bytes) else np.asarray(value)[None]
        features[f"episode_metadata/{path}"] = encode_feature(column, schema.metadata.get(path, own.metadata[path]))
    return example(features)


def encode_feature(column: Column, field: Field) -> bytes:
    """Encodes a column as a tf.train.Feature: 1 bytes_list, 2 float_list, 3 int64_list; numbers are packed.

    Args:
      field: the field as stored by TFDS.
    """
    if isinstance(column, EncodedImages):
        return _bytes_list(column)
    if field.encoding == "bytes" and column.dtype != object and column.size:
        return _equal_bytes(column)
    if field.encoding in ("bytes", "zlib"):
        raw = [step.tobytes() for step in column]
        return _bytes_list(map(zlib.compress, raw) if field.encoding == "zlib" else raw)
    values: np.ndarray[Any, Any] = column
    if values.dtype == object and len(values) and isinstance(values[0], np.ndarray):  # of varying shapes
        values = np.concatenate([value.ravel() for value in values])
    if values.dtype.kind in "OSU":
        return _bytes_list(v.encode() if isinstance(v, str) else v for v in values.ravel().tolist())
    is_float = values.dtype.kind == "f" or values.dtype.name == "bfloat16"
    if not len(values):  # like protobuf: for an empty list, only the kind is written
        return delimited(2 if is_float else 3, b"")
    if is_float:
        return delimited(2, delimited(1, values.astype("<f4").tobytes()))
    return delimited(3, delimited(1, packed_varints(values.astype(np.int64).ravel())))


def _equal_bytes(column: np.ndarray[Any, Any]) -> bytes:
    """Encodes a bytes_list of the bytes of each step, all of equal size."""
    steps = np.ascontiguousarray(column).view(np.uint8).reshape(len(column), -1)
    head = np.frombuffer(tag_and_length(1, steps.shape[1]), np.uint8)
    entries = np.empty((len(steps), len(head) + steps.shape[1]), np.uint8)
    entries[:, : len(head)], entries[:, len(head) :] = head, steps
    return delimited(1, entries.tobytes())


def example(features: Mapping[str, bytes]) -> bytes:
    """Serializes a tf.Example from features by name, each encoded by `encode_feature`."""
    return join_entries(
        delimited(1, name.encode()) + delimited(2, value) for name, value in sorted(features.items())
    )  # fmt: skip


def join_entries(entries: Iterable[bytes]) -> bytes:
    """Serializes a tf.Example from the entries of its map, each a name and a feature."""
    parts: list[bytes] = []
    for entry in entries:
        parts += (tag_and_length(1, len(entry)), entry)
    return b"".join((tag_and_length(1, sum(map(len, parts))), *parts))


def _bytes_list(values: Iterable[bytes]) -> bytes:
    parts: list[bytes] = []
    for value in values:
        parts += (tag_and_length(1, len(value)), value)
    return b"".join((tag_and_length(1, sum(map(len, parts))), *parts))
