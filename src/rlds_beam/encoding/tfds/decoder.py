"""Decodes features that only TFDS supports (ragged sequences, video, ...) with TFDS.

TensorFlow and TFDS are imported on the first record, in the process that decodes it.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from rlds_beam.encoding.tfds.dataset_info import FEATURES
from rlds_beam.encoding.tfds.features import Json, load_features
from rlds_beam.episodes.columns import all_below
from rlds_beam.episodes.schema import Field, Schema
from rlds_beam.errors import needs
from rlds_beam.typing import Array


class NotDecodableError(ValueError):
    """TFDS could not decode the record; the message is TFDS's."""


class TfdsDecoder:
    """Decodes only the fields of a record that our decoder does not support.

    A column whose steps differ in shape (or have an open shape in the schema) is an object array [T] of arrays; inner
    sequences of sequences are again object arrays of arrays.
    """

    def __init__(self, schema: Schema, features: str | bytes | Json):
        """Initializes the decoder; `features` is a features.json that `parse_features` accepts."""
        self._json = json.dumps(load_features(features, FEATURES))
        self._reason = schema.slow_reason
        self._steps = [f for f in schema.steps.values() if not f.fast]
        self._metadata = [f for f in schema.metadata.values() if not f.fast]

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("_json", "_reason", "_steps", "_metadata")}

    def decode(self, payload: bytes) -> tuple[dict[str, Array], dict[str, Any]]:
        """Decodes the slow fields of one record to (step columns, episode values).

        Raises:
          NotDecodableError: TFDS rejects the record.
          MissingExtraError: TFDS is not installed.
        """
        with needs("tf", f"{self._reason}, which needs TensorFlow and TFDS"):
            import tensorflow as tf
            import tensorflow_datasets  # noqa: F401  (for _decode, inside the try)

        try:
            example = self._decode(payload)
            steps = list(example["steps"].as_numpy_iterator()) if self._steps else []
        except (tf.errors.OpError, ValueError, TypeError) as error:
            message = getattr(error, "message", None) or str(error)
            raise NotDecodableError(message.strip().partition("\n")[0]) from None
        columns = {f.path: _column([_at(step, f.path) for step in steps], f) for f in self._steps}
        return columns, {f.path: _plain(_at(example, f.path)) for f in self._metadata}

    @functools.cached_property
    def _decode(self) -> Any:
        """TFDS's decoding of the slow fields as one traced function: serialized Example -> values."""
        import tensorflow as tf
        import tensorflow_datasets as tfds

        features = tfds.features.FeatureConnector.from_json(json.loads(self._json))
        wanted = _prune(features, {f.path for f in self._metadata})
        if self._steps:
            steps = _prune(features["steps"].feature, {f.path for f in self._steps})
            wanted["steps"] = tfds.features.Dataset(_open_ended(steps))
        root = tfds.features.FeaturesDict(wanted)
        signature = [tf.TensorSpec((), tf.string)]
        return tf.function(lambda payload: root.deserialize_example(payload), input_signature=signature)


def _prune(features: Any, paths: Iterable[str], prefix: str = "") -> dict[str, Any]:
    """The features of a FeaturesDict at or above `paths`, as a plain dict."""
    kept: dict[str, Any] = {}
    for name, feature in features.items():
        path = prefix + name
        if all_below(paths, path):
            nested = type(feature).__name__ == "FeaturesDict"
            kept[name] = _prune(feature, paths, path + "/") if nested else feature
    return kept


def _open_ended(features: Any) -> Any:
    """Allows any length for inner sequences.

    TFDS stores a step's fixed-length Sequence like an open one, but cannot read it back. The lengths are checked later,
    against the schema.
    """
    for feature in features.values():
        inner = feature
        while hasattr(inner, "_length"):
            inner._length = None
            inner = inner.feature
        if isinstance(inner, Mapping) or type(inner).__name__ == "FeaturesDict":
            _open_ended(inner)
    return features


def _at(tree: Any, path: str) -> Any:
    for name in path.split("/"):
        tree = tree[name]
    return tree


def _column(values: list[Any], field: Field) -> Array:
    """[T, *shape] if the schema fixes the shape, otherwise an object array [T] of arrays."""
    arrays = [_plain(v) for v in values]
    if None not in field.shape:
        for array in arrays:
            if np.shape(array) != field.shape:
                raise NotDecodableError(f"{field.path} has shape {np.shape(array)}, not {field.shape}")
        return np.stack(arrays) if arrays else np.empty((0, *field.closed_shape), field.numpy_dtype)
    return _objects(arrays)


def _plain(value: Any) -> Any:
    """Converts a ragged value to an object array of arrays; other values stay unchanged."""
    if hasattr(value, "row_splits"):  # tf.RaggedTensor, or its numpy twin RaggedTensorValue
        rows = np.asarray(value.row_splits)
        flat = _plain(value.values)
        return _objects([flat[start:stop] for start, stop in itertools.pairwise(rows)])
    return value.numpy() if hasattr(value, "numpy") else value


def _objects(values: list[Any]) -> Array:
    return np.fromiter(values, object, len(values))
