"""Writes RLDS datasets in TFDS's layout: features.json, dataset_info.json, and TFRecord shards."""

from __future__ import annotations

import dataclasses
import itertools
import json
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlds_beam.encoding.tfds.dataset_info import (
    DATASET_INFO,
    DEFAULT_TEMPLATE,
    FEATURES,
    SplitInfo,
    dataset_info_json,
    read_dataset_info,
)
from rlds_beam.encoding.tfds.features import dataset_node, feature_node, features_dict
from rlds_beam.encoding.tfds.features import features_json as flat_features_json
from rlds_beam.encoding.tfrecord.framing import frame_all
from rlds_beam.encoding.wire import encode_delimited, packed_varints, tag_and_length
from rlds_beam.episodes.columns import all_below, nest
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.episodes.schema import Field, Schema, text_field
from rlds_beam.errors import UsageError
from rlds_beam.images.encoded_images import EncodedImages


def features_json(schema: Schema) -> dict[str, Any]:
    """The `features.json` that TFDS would write for the schema."""
    features = {"steps": dataset_node(flat_features_json(schema.steps, scalars=True))}
    if schema.metadata:
        features["episode_metadata"] = flat_features_json(schema.metadata, scalars=True)
    return features_dict(features)


def write_dataset(
    directory: Path | str,
    records: Iterable[Episode | bytes],
    *,
    name: str = "testing",
    version: str = "1.0.0",
    split: str = "train",
    shards: int = 1,
    schema: Schema | None = None,
    numbered: bool = True,
) -> Path:
    """Writes one split of a TFDS dataset to `directory/name/version`; returns this path.

    Calls with other splits add them.

    Args:
      directory: the data_dir of TFDS.
      records: the records in order; episodes are encoded, and `bytes` are stored unchanged.
      name, version, split: the names as in TFDS (`name` may be `name/config`).
      shards: the number of TFRecord files; records are distributed evenly and in order.
      schema: the schema for features.json; that of the first episode by default.
      numbered: end shard names in `-00000-of-00002`; otherwise in `-00000`, like EnvLogger's backend.
    """
    records = list(records)
    target = Path(directory) / name / version
    target.mkdir(parents=True, exist_ok=True)
    if schema is None:
        schema = next((default_schema(r) for r in records if isinstance(r, Episode)), None)
    if schema is not None:
        (target / FEATURES).write_text(json.dumps(features_json(schema), indent=1))
    elif not (target / FEATURES).exists():
        raise ValueError("write_dataset needs an Episode among the records, or schema=...")
    payloads = [r if isinstance(r, bytes) else encode_example(r, schema) for r in records]
    bounds = [len(payloads) * i // shards for i in range(shards + 1)]
    lengths = tuple(stop - start for start, stop in itertools.pairwise(bounds))
    template = DEFAULT_TEMPLATE if numbered else DEFAULT_TEMPLATE.replace("SHARD_X_OF_Y", "SHARD_INDEX")
    info = SplitInfo(split, lengths, sum(map(len, payloads)), template)
    dataset, _, config = name.partition("/")
    files = info.filenames(dataset, "tfrecord")
    for file, (start, stop) in zip(files, itertools.pairwise(bounds), strict=True):
        (target / file).write_bytes(frame_all(payloads[start:stop]))
    path = target / DATASET_INFO
    known = read_dataset_info(path.read_text(), str(path)).splits if path.exists() else ()
    splits = [*(other for other in known if other.name != split), info]
    content = dataset_info_json(dataset, version, splits, config_name=config)
    path.write_text(json.dumps(content, indent=1))
    return target


Json = Mapping[str, Any]


def same_storage(one: Field | None, other: Field | None) -> bool:
    """Whether both fields store values in the same way and with the same meaning."""
    if one is None or other is None:
        return one is other
    return dataclasses.replace(one, feature="") == dataclasses.replace(other, feature="")


def edited_features(schema: Schema, text: str | None = None, stored: Schema | None = None) -> dict[str, Any]:
    """Creates the `features.json` of a schema.

    Args:
      schema: the schema of the episodes to write.
      text: the features.json of the input, if it is RLDS. Its nodes, with descriptions and class names, are kept for
        fields that are stored as before.
      stored: the schema of the input.

    Raises:
      UsageError: TFDS cannot store a field, or a field that can only be copied was edited.
    """
    steps, episode = _nodes(text) if text else ({}, {})
    schema, old = schema.recorded, (stored or Schema({})).recorded
    for in_steps, fields, before in ((True, schema.steps, old.steps), (False, schema.metadata, old.metadata)):
        for path, field in fields.items():
            if not same_storage(field, before.get(path)):
                check_writable(field, in_steps)
    children = {"steps": dataset_node(features_dict(_tree(schema.steps, old.steps, steps)))}
    return features_dict(children | _tree(schema.metadata, old.metadata, episode))


def check_writable(field: Field, in_steps: bool) -> None:
    """Raises UsageError if TFDS cannot store a step or episode field, or we cannot write it."""
    name = field.path
    if not field.fast:
        raise UsageError(
            f"--to=rlds: {name} is a {field.feature}, which can be copied but not rewritten: remove the connectors "
            "that change it, or drop the field (DropFields)"
        )
    if field.holds_image_files and len(field.shape) != 3:
        raise UsageError(f"--to=rlds: {name} has images of shape {field.shape}; TFDS needs (height, width, channels)")
    if field.encoding == "none" and None in field.shape and (in_steps or field.shape.count(None) > 1):
        raise UsageError(f"--to=rlds: {name} has shape {field.shape}, which TFDS can store only with encoding bytes")


def _tree(fields: Mapping[str, Field], old: Mapping[str, Field], nodes: Mapping[str, Json]) -> dict[str, Any]:
    """The children of a FeaturesDict, as JSON."""
    kept = {path: node for path, node in nodes.items() if _is_unchanged(path, fields, old)}
    leaves: dict[str, Json] = {}
    for path, field in sorted(fields.items()):
        node = next((p for p in kept if path == p or path.startswith(f"{p}/")), None)
        leaves[path if node is None else node] = feature_node(field, True) if node is None else kept[node]

    def build(tree: dict[str, Any]) -> dict[str, Json]:
        return {
            name: leaves[child] if isinstance(child, str) else features_dict(build(child))
            for name, child in tree.items()
        }

    return build(nest({path: path for path in leaves}))


def _is_unchanged(node: str, fields: Mapping[str, Field], old: Mapping[str, Field]) -> bool:
    """Whether all fields of a node (a Sequence of a FeaturesDict has several) are stored as before."""
    before = all_below(old, node)
    return (
        bool(before)
        and all(path in before and same_storage(fields[path], old[path]) for path in all_below(fields, node))
        and len(all_below(fields, node)) == len(before)
    )


def _nodes(text: str) -> tuple[dict[str, Json], dict[str, Json]]:
    """The nodes of step fields and episode fields by path; empty for the older form, which nests differently."""
    root = json.loads(text)
    children = _children(root)
    steps = (children or {}).pop("steps", None)
    if children is None or not isinstance(steps, dict):
        return {}, {}
    inner = _children((steps.get("sequence") or {}).get("feature") or {})
    return (_flat(inner) if inner is not None else {}), _flat(children)


def _flat(children: Json, below: str = "") -> dict[str, Json]:
    leaves: dict[str, Json] = {}
    for name, node in children.items():
        inner = _children(node)
        leaves |= {f"{below}{name}": node} if inner is None else _flat(inner, f"{below}{name}/")
    return leaves


def _children(node: Any) -> dict[str, Any] | None:
    """The children of a FeaturesDict; None for other nodes."""
    content = node.get("featuresDict") if isinstance(node, dict) else None
    features = content.get("features") if isinstance(content, dict) else None
    return dict(features) if isinstance(features, dict) else None


def as_column(values: Any) -> Column:
    """Converts text to an object array of bytes; arrays and EncodedImages stay unchanged."""
    if isinstance(values, EncodedImages | np.ndarray):
        return values
    if len(values) and isinstance(values[0], str | bytes):
        return np.array([v.encode() if isinstance(v, str) else v for v in values] + [None], object)[:-1]
    return np.asarray(values)


def default_schema(episode: Episode) -> Schema:
    """The default schema of `encode_example` for an episode, as in TFDS."""
    metadata = {
        p: _field(p, as_column([v]) if isinstance(v, str | bytes) else np.asarray(v)[None])
        for p, v in episode.metadata.items()
    }
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

    Columns that are not in the schema (by default `default_schema(episode)`) are still stored, and columns of the
    schema may be missing, so that tests can write records that disagree with features.json.
    """
    schema, own = schema or default_schema(episode), default_schema(episode)
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
        return encode_delimited(2 if is_float else 3, b"")
    if is_float:
        return encode_delimited(2, encode_delimited(1, values.astype("<f4").tobytes()))
    return encode_delimited(3, encode_delimited(1, packed_varints(values.astype(np.int64).ravel())))


def _equal_bytes(column: np.ndarray[Any, Any]) -> bytes:
    """Encodes a bytes_list of the bytes of each step, all of equal size."""
    steps = np.ascontiguousarray(column).view(np.uint8).reshape(len(column), -1)
    head = np.frombuffer(tag_and_length(1, steps.shape[1]), np.uint8)
    entries = np.empty((len(steps), len(head) + steps.shape[1]), np.uint8)
    entries[:, : len(head)], entries[:, len(head) :] = head, steps
    return encode_delimited(1, entries.tobytes())


def example(features: Mapping[str, bytes]) -> bytes:
    """Serializes a tf.Example from features by name, each encoded by `encode_feature`."""
    return join_entries(
        encode_delimited(1, name.encode()) + encode_delimited(2, value) for name, value in sorted(features.items())
    )


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
