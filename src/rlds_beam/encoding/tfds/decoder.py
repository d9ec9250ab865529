"""The features that only TFDS can decode (ragged sequences, video, ...), decoded by TFDS itself.

TensorFlow and TFDS are imported when the first record comes, in the process that decodes it.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np

from rlds_beam.encoding.tfds.dataset_info import FEATURES
from rlds_beam.encoding.tfds.features import Json, load_features
from rlds_beam.episodes.nesting import all_below
from rlds_beam.episodes.schema import Field, Schema
from rlds_beam.errors import needs

Array: TypeAlias = "np.ndarray[Any, Any]"


class NotDecodableError(ValueError):
    """TFDS could not decode the record; the message is its own."""


class TfdsDecoder:
    """Decodes the fields of a record that our own decoder leaves out, all others untouched.

    A column whose steps differ in shape (or whose shape the schema leaves open) is an object
    array [T] of arrays; inner sequences of sequences are object arrays of arrays again.
    """

    def __init__(self, schema: Schema, features: str | bytes | Json):
        """`features`: the features.json. It must have passed `parse_features`."""
        self._json = json.dumps(load_features(features, FEATURES))
        self._reason = schema.slow_reason
        self._steps = [f for f in schema.steps.values() if not f.fast]
        self._metadata = [f for f in schema.metadata.values() if not f.fast]

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("_json", "_reason", "_steps", "_metadata")}

    def decode(self, payload: bytes) -> tuple[dict[str, Array], dict[str, Any]]:
        """(columns of the steps, values of the episode) of the slow fields of one record.

        Raises:
          NotDecodableError: TFDS refuses the record.
          MissingExtraError: TFDS is not installed.
        """
        with needs("tf", f"{self._reason}, which takes TensorFlow and TFDS to decode"):
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
        """TFDS's decoding of the slow fields as one traced function: serialised Example -> values."""
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
    """The features of a FeaturesDict at `paths` (or around them), as a plain dict."""
    kept: dict[str, Any] = {}
    for name, feature in features.items():
        path = prefix + name
        if all_below(paths, path):
            nested = type(feature).__name__ == "FeaturesDict"
            kept[name] = _prune(feature, paths, path + "/") if nested else feature
    return kept


def _open_ended(features: Any) -> Any:
    """The same features with inner sequences of any length.

    TFDS writes a step's fixed-length Sequence exactly like an open one, but cannot read it back;
    the lengths are checked afterwards, against the schema.
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
    """[T, *shape] where the schema fixes the shape, else an object array [T] of arrays."""
    arrays = [_plain(v) for v in values]
    if None not in field.shape:
        for array in arrays:
            if np.shape(array) != field.shape:
                raise NotDecodableError(f"{field.path} has shape {np.shape(array)}, not {field.shape}")
        return np.stack(arrays) if arrays else np.empty((0, *field.closed_shape), field.numpy_dtype)
    return _objects(arrays)


def _plain(value: Any) -> Any:
    """A ragged value as an object array of arrays; anything else as it is."""
    if hasattr(value, "row_splits"):  # tf.RaggedTensor, or its numpy twin RaggedTensorValue
        rows = np.asarray(value.row_splits)
        flat = _plain(value.values)
        return _objects([flat[start:stop] for start, stop in itertools.pairwise(rows)])
    return value.numpy() if hasattr(value, "numpy") else value


def _objects(values: list[Any]) -> Array:
    return np.fromiter(values, object, len(values))
