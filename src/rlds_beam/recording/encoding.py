"""Encodes recorded episodes as tf.Examples, and builds their schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlds_beam.encoding.tfds.rlds_dataset import as_column, encode_feature, join_entries
from rlds_beam.encoding.wire import encode_delimited, varint
from rlds_beam.episodes.episode import Column, Episode, EpisodeKey
from rlds_beam.episodes.schema import FLAGS, Field, Schema, text_field
from rlds_beam.images.codecs import encode_png
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.recording.propensities import MIXTURE
from rlds_beam.recording.settings import INFO, LOG_PROPENSITY, PROPENSITY, RolloutSettings
from rlds_beam.recording.spaces import Structure, number_field
from rlds_beam.typing import Array

_EPISODE = "episode_metadata/"
"""The prefix of an episode's fields in `features_json`."""


class RecordedPayload(bytes):
    """A record's bytes together with the episode, so that it need not be decoded again.

    Attributes:
      steps, metadata: as in `Episode`.
    """

    steps: Mapping[str, Column]
    metadata: Mapping[str, Any]


class RecordedDecoder:
    """A `Decoder` for `RecordedPayload`s."""

    def decode(self, payload: bytes, key: EpisodeKey) -> Episode:
        assert isinstance(payload, RecordedPayload)
        return Episode(key, payload.steps, payload.metadata, payload)


class EpisodeEncoder:
    """Encodes recorded episodes as tf.Examples.

    Args:
      schema: the schema that `parse_features` reads from the features.json of `recorded_schema`.
    """

    def __init__(self, schema: Schema):
        # The entries of a tf.Example are in the order of their names: "episode_metadata/..." before "steps/...".
        self._steps = [
            (encode_delimited(1, f"steps/{path}".encode()), field) for path, field in sorted(schema.steps.items())
        ]
        self._metadata = [(encode_delimited(1, path.encode()), path) for path in sorted(schema.metadata)]

    def encode(self, columns: Mapping[str, Array], metadata: Mapping[str, str | int]) -> RecordedPayload:
        """Encodes an episode as a record.

        Args:
          columns: the columns of its steps; columns outside the schema are ignored.
          metadata: the fields of the episode, by name.
        """
        values: dict[str, Any] = {}
        steps: dict[str, Column] = {}
        entries: list[bytes] = []
        for name, path in self._metadata:
            value = metadata[path.removeprefix(_EPISODE)]
            if isinstance(value, str):
                values[path] = value.encode()
                entries.append(name + encode_delimited(2, encode_delimited(1, encode_delimited(1, values[path]))))
            else:
                values[path] = np.int64(value)
                entries.append(name + encode_delimited(2, encode_delimited(3, encode_delimited(1, varint(value)))))
        for name, field in self._steps:
            steps[field.path] = column = _column(columns[field.path], field)
            entries.append(name + encode_delimited(2, encode_feature(column, field)))
        payload = RecordedPayload(join_entries(entries))
        payload.steps, payload.metadata = steps, values
        return payload


def _column(values: Array, field: Field) -> Column:
    """A column as a decoder returns it: text as bytes, images encoded."""
    if field.encoding == "png":
        data = encode_png(values)
        return EncodedImages(np.fromiter(data, object, len(data)), field.shape, field.dtype, "png")
    return as_column(values.tolist()) if field.dtype == "string" else values


def recorded_schema(
    observation: Structure,
    action: Structure,
    settings: RolloutSettings,
    *,
    propensity: bool,
    mixture: bool,
    images: bool,
) -> Schema:
    """The schema of recorded episodes."""
    fields = [leaf.field("observation", images) for leaf in observation.leaves]
    fields += [leaf.field("action") for leaf in action.leaves]
    fields += [number_field("reward", settings.reward), number_field("discount", "float32")]
    fields += [number_field(path, "bool") for path in FLAGS]
    names = (PROPENSITY, LOG_PROPENSITY, *(MIXTURE if mixture else ()))
    fields += [number_field(path, "float64") for path in (names if propensity else ())]
    for name, (dtype, shape) in settings.info.items():
        path = f"{INFO}/{name}"
        fields.append(text_field(path) if dtype == "string" else number_field(path, dtype, shape))
    episode = [text_field(path) for path in ("episode_id", "policy", "end")]
    numbers = ("policy_id", "dataset_id", "trajectory_id", *(("part", "start_step") if settings.windows else ()))
    episode += [number_field(path, "int64") for path in numbers]
    return Schema({f.path: f for f in fields}, {f.path: f for f in episode})
