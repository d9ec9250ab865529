"""The features.json of an edited RLDS dataset; descriptions of unchanged fields are kept."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from rlds_beam.episodes.nesting import all_below, nest
from rlds_beam.episodes.schema import Field, Schema
from rlds_beam.errors import UsageError

_FEATURES = "tensorflow_datasets.core.features"
_IMAGES = ("png", "jpeg")
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
    children = {"steps": _dataset(_tree(schema.steps, old.steps, steps))}
    return _dict_node(children | _tree(schema.metadata, old.metadata, episode))


def check_writable(field: Field, in_steps: bool) -> None:
    """Raises UsageError if TFDS cannot store a step or episode field, or we cannot write it."""
    name = field.path
    if not field.fast:
        raise UsageError(
            f"--to=rlds: {name} is a {field.feature}, which can be copied but not rewritten: remove the connectors "
            "that change it, or drop the field (DropFields)"
        )
    if field.encoding in _IMAGES and len(field.shape) != 3:
        raise UsageError(f"--to=rlds: {name} has images of shape {field.shape}; TFDS needs (height, width, channels)")
    if field.encoding == "none" and None in field.shape and (in_steps or field.shape.count(None) > 1):
        raise UsageError(f"--to=rlds: {name} has shape {field.shape}, which TFDS can store only with encoding bytes")


def _tree(fields: Mapping[str, Field], old: Mapping[str, Field], nodes: Mapping[str, Json]) -> dict[str, Any]:
    """The children of a FeaturesDict, as JSON."""
    leaves: dict[str, Json] = {}
    kept = {path: node for path, node in nodes.items() if _unchanged(path, fields, old)}
    for path, field in sorted(fields.items()):
        node = next((p for p in kept if path == p or path.startswith(f"{p}/")), None)
        leaves[path if node is None else node] = _leaf(field) if node is None else kept[node]
    return {name: _node(child) for name, child in nest({p: _Leaf(node) for p, node in leaves.items()}).items()}


def _unchanged(node: str, fields: Mapping[str, Field], old: Mapping[str, Field]) -> bool:
    """Whether all fields of a node (a Translation has several) are stored as before."""
    before = all_below(old, node)
    return bool(before) and all(
        path in before and same_storage(fields[path], old[path]) for path in all_below(fields, node)
    ) and len(all_below(fields, node)) == len(before)  # fmt: skip


class _Leaf:
    """An opaque node."""

    def __init__(self, node: Json):
        self.node = node


def _node(tree: Any) -> Json:
    return tree.node if isinstance(tree, _Leaf) else _dict_node({name: _node(child) for name, child in tree.items()})


def _dict_node(children: Json) -> dict[str, Any]:
    return {"pythonClassName": f"{_FEATURES}.features_dict.FeaturesDict", "featuresDict": {"features": dict(children)}}


def _dataset(children: Json) -> dict[str, Any]:
    sequence = {"feature": _dict_node(children), "length": "-1"}
    return {"pythonClassName": f"{_FEATURES}.dataset_feature.Dataset", "sequence": sequence}


def _leaf(field: Field) -> Json:
    """Creates the node of a rewritten field."""
    if field.encoding == "text" and not field.shape:
        return {"pythonClassName": f"{_FEATURES}.text_feature.Text", "text": {}}
    shape = {"dimensions": [str(-1 if d is None else d) for d in field.shape]} if field.shape else {}
    if field.encoding in _IMAGES:
        image = {"shape": shape, "dtype": field.dtype, "encodingFormat": field.encoding}
        return {"pythonClassName": f"{_FEATURES}.image_feature.Image", "image": image}
    name = "tensor_feature.Tensor" if field.shape or field.encoding != "none" else "scalar.Scalar"
    encoding = "none" if field.encoding == "text" else field.encoding
    tensor = {"shape": shape, "dtype": field.dtype, "encoding": encoding}
    return {"pythonClassName": f"{_FEATURES}.{name}", "tensor": tensor}


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
