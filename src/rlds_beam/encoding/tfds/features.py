"""Converts between TFDS `features.json` and our `Schema`, without TFDS.

TFDS imports any class that a `features.json` names. Here nothing is imported: class names are only compared with
`FEATURES`, the list of TFDS's own features.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

from rlds_beam.encoding.metadata import parse_json
from rlds_beam.episodes.columns import all_below, nest
from rlds_beam.episodes.schema import REQUIRED_STEP_FIELDS, Field, Schema, by_path
from rlds_beam.errors import UsageError
from rlds_beam.images.headers import IMAGE_FILES
from rlds_beam.text import shorten

Json = Mapping[str, Any]

_PACKAGE = "tensorflow_datasets.core.features."
FEATURES: dict[str, str] = {
    _PACKAGE + name: name.rpartition(".")[2]
    for name in (
        "features_dict.FeaturesDict",
        "dataset_feature.Dataset",
        "sequence_feature.Sequence",
        "tensor_feature.Tensor",
        "feature.Tensor",
        "scalar.Scalar",
        "text_feature.Text",
        "class_label_feature.ClassLabel",
        "bounding_boxes.BBoxFeature",
        "image_feature.Image",
        "video_feature.Video",
        "audio_feature.Audio",
    )
}
"""Supported classes, by their full name in `pythonClassName`."""

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
DTYPES = frozenset(("bool", *_INTEGERS, "float16", "bfloat16", "float32", "float64", "string"))
ENCODINGS = ("none", "bytes", "zlib")

DEFAULT_DISCOUNT = Field("discount", "float32", feature="default 1", optional=True)
"""The discount field of datasets without discounts (many robot datasets), which decodes to 1 everywhere."""


def parse_features(features: str | bytes | Json, where: str) -> Schema:
    """Parses a `features.json` into a schema.

    Args:
      features: the file's text or JSON, in the current form (`featuresDict`, `tensor`, ...) or the older
        `type`/`content` form.
      where: the file's name, for messages.

    Returns:
      The schema. Paths of `steps` are relative to the step, and those of `metadata` to the episode. A missing
      `discount` becomes `DEFAULT_DISCOUNT`; all other RLDS fields must exist.

    Raises:
      UsageError: not a features.json, a class is not in `FEATURES`, `steps` or a required step field is missing, or
        TFDS could not read a feature either; names the field and the file.
    """
    root = load_features(features, where)
    kind, content = _open(root, "", where)
    if kind != "FeaturesDict":
        raise UsageError(f"{where}: the features of an RLDS dataset must be a FeaturesDict, not a {kind}")
    children = _children(content, where)
    if "steps" not in children:
        raise UsageError(f"{where}: not an RLDS dataset: it has no `steps`, only {sorted(children)}")
    steps = by_path(_step_fields(children.pop("steps"), where), where)
    metadata = by_path((f for name, node in children.items() for f in _fields(node, name, (), False, where)), where)
    for name in REQUIRED_STEP_FIELDS:
        if not all_below(steps, name):
            if name != "discount":
                raise UsageError(f"{where}: the steps have no `{name}`, which RLDS requires; they have {sorted(steps)}")
            steps[name] = DEFAULT_DISCOUNT
    for field in (*steps.values(), *metadata.values()):
        if 0 in field.shape and (None in field.shape or not field.fast):
            # The unknown dimension cannot be computed; TensorFlow divides by 0 and crashes.
            raise UsageError(f"{where}: {field.path} has shape {field.shape}, which has size 0 and cannot be decoded")
    schema = Schema(steps=steps, metadata=metadata)
    schema.check_fields(where)
    return schema


def load_features(features: str | bytes | Json, where: str) -> Json:
    """Parses the JSON of a `features.json`, and rejects classes that are not in `FEATURES`."""
    try:
        root = features if isinstance(features, Mapping) else parse_json(features, where)
        named = list(_class_names(root, where))
    except RecursionError:
        raise UsageError(f"{where}: not a features.json: it is nested too deeply") from None
    if not isinstance(root, Mapping):
        raise UsageError(f"{where}: not a features.json: it holds a {type(root).__name__}, not an object")
    for path, name in named:
        if name not in FEATURES:
            raise UsageError(
                f"{where}: {shorten(path or 'the root')} is a {shorten(name)}, which rlds-beam does not support "
                f"(it supports {', '.join(sorted(set(FEATURES.values())))}); nothing was imported"
            )
    return root


def _class_names(value: Any, where: str, path: str = "") -> Iterator[tuple[str, str]]:
    """Every class that TFDS would look up, anywhere, including JSON inside strings."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key in ("pythonClassName", "python_class_name", "type") and isinstance(inner, str):
                yield path, inner
            elif key in ("json", "content") and isinstance(inner, str):
                yield from _class_names(parse_json(inner, where), where, path)
            else:
                structural = key in _STRUCTURE and isinstance(inner, Mapping)
                yield from _class_names(inner, where, path if structural else f"{path}/{key}".lstrip("/"))
    elif isinstance(value, list):
        for inner in value:
            yield from _class_names(inner, where, path)


_STRUCTURE = frozenset(("featuresDict", "features_dict", "features", "feature", "sequence", "content"))
_CONTENT_KEYS = {
    "FeaturesDict": "featuresDict",
    "Dataset": "sequence",
    "Sequence": "sequence",
    "Tensor": "tensor",
    "Scalar": "tensor",
    "Text": "text",
    "ClassLabel": "classLabel",
    "BBoxFeature": "boundingBox",
    "Image": "image",
    "Video": "video",
    "Audio": "audio",
}


def _open(node: Any, path: str, where: str) -> tuple[str, Json]:
    """The class and content of a node, in any of TFDS's forms."""
    at = f"{where}: {path or 'the root'}"
    if not isinstance(node, Mapping):
        raise UsageError(f"{at} is not a feature: {shorten(repr(node))}")
    name = node.get("type") or _get(node, "pythonClassName")
    if not isinstance(name, str) or name not in FEATURES:
        raise UsageError(f"{at} has an unsupported feature class: {shorten(repr(name))}")
    kind = FEATURES[name]
    content = node.get("content", {}) if "type" in node else _get(node, _CONTENT_KEYS[kind])
    if content is None:
        inner = _get(node, "jsonFeature")
        content = inner.get("json", {}) if isinstance(inner, Mapping) else {}
    if isinstance(content, str):
        content = parse_json(content, at)
    if not isinstance(content, Mapping):
        raise UsageError(f"{at} ({kind}) holds {shorten(repr(content))}, which does not describe a {kind}")
    return kind, content


def _get(content: Json, name: str, default: Any = None) -> Any:
    """Gets a value by its proto JSON name or its older snake_case name."""
    snake = re.sub("[A-Z]", lambda m: "_" + m[0].lower(), name)
    return content.get(name, content.get(snake, default))


def _children(content: Json, where: str) -> dict[str, Any]:
    children = content.get("features", {}) if set(content) <= {"features"} else content
    if not isinstance(children, Mapping):
        raise UsageError(f"{where}: the features of a FeaturesDict must be an object, not {shorten(repr(children))}")
    return dict(children)


def _step_fields(node: Any, where: str) -> Iterator[Field]:
    kind, content = _open(node, "steps", where)
    if kind not in ("Dataset", "Sequence"):
        raise UsageError(f"{where}: `steps` is a {kind}, but must be a Dataset of a FeaturesDict")
    kind, content = _open(content.get("feature"), "steps", where)
    if kind != "FeaturesDict":
        raise UsageError(f"{where}: `steps` is a Dataset of a {kind}, but must be a Dataset of a FeaturesDict")
    for name, child in _children(content, where).items():
        yield from _fields(child, name, (), True, where)


def _fields(node: Any, path: str, lengths: tuple[int | None, ...], in_steps: bool, where: str) -> Iterator[Field]:
    """The leaves below a node; `lengths` are those of the inner sequences around it."""
    kind, content = _open(node, path, where)
    if kind == "FeaturesDict":
        for name, child in _children(content, where).items():
            yield from _fields(child, f"{path}/{name}", lengths, in_steps, where)
    elif kind == "Sequence":
        length = _dimension(content.get("length", 0), path, where)
        yield from _fields(content.get("feature"), path, (*lengths, length), in_steps, where)
    elif kind == "Dataset":
        raise UsageError(f"{where}: {path} is a Dataset; only `steps` may be one")
    else:
        yield _in_sequences(_leaf(kind, content, path, in_steps, where), lengths, in_steps)


def _in_sequences(field: Field, lengths: tuple[int | None, ...], in_steps: bool) -> Field:
    """A field inside inner sequences. Ragged on disk, except one sequence at the episode level."""
    if not lengths:
        return field
    flat = not in_steps and len(lengths) == 1 and field.encoding in ("none", "text") and None not in field.shape
    return Field(
        path=field.path,
        dtype=field.dtype,
        shape=lengths + field.shape,
        encoding=field.encoding,
        feature=f"Sequence({field.feature})",
        fast=field.fast and flat,
    )


def _leaf(kind: str, content: Json, path: str, in_steps: bool, where: str) -> Field:
    dimensions = content.get("shape") or ()
    if isinstance(dimensions, Mapping):
        dimensions = dimensions.get("dimensions", ())
    if not isinstance(dimensions, (list, tuple)):
        raise UsageError(f"{where}: {path} has shape {shorten(repr(dimensions))}, which is not a list of dimensions")
    shape = tuple(_dimension(size, path, where) for size in dimensions)
    if kind == "Text":
        if _get(content, "useEncoder"):
            raise UsageError(f"{where}: {path} is Text with an encoder, which TFDS no longer reads")
        return Field(path, "string", encoding="text", feature=kind)
    if kind == "ClassLabel":
        return Field(path, "int64", feature=kind)
    if kind == "BBoxFeature":
        return Field(path, "float32", (4,), feature=kind)
    if kind in ("Image", "Video"):
        return _image(kind, content, shape, path, where)
    dtype = _dtype(content, "int64" if kind == "Audio" else None, path, where)
    encoding = str(content.get("encoding") or "none").lower()
    if encoding not in ENCODINGS or (dtype == "string" and encoding != "none"):
        raise UsageError(
            f"{where}: {path} is a {kind} of {dtype} with encoding {shorten(encoding)!r}, which TFDS cannot read"
        )
    unknown = shape.count(None)
    if encoding == "none" and (unknown > 1 or (unknown and in_steps)):
        raise UsageError(f"{where}: {path} has shape {shape} without an encoding, which TFDS cannot read")
    return Field(
        path,
        dtype,
        () if kind == "Scalar" else shape,
        encoding,
        feature=kind,
        fast=unknown <= 1 and not _get(content, "lazyDecode"),
        optional=bool(content.get("optional")) and not in_steps,  # TFDS can neither write nor read None in a step
    )


def _image(kind: str, content: Json, shape: tuple[int | None, ...], path: str, where: str) -> Field:
    dtype = _dtype(content, "uint8", path, where)
    if dtype not in ("uint8", "uint16", "float32"):
        raise UsageError(f"{where}: {path} is a {kind} of {dtype}; TFDS supports uint8, uint16, and float32")
    encoding = _get(content, "encodingFormat") or "png"
    if encoding not in IMAGE_FILES:
        raise UsageError(
            f"{where}: {path} is a {kind} with encoding {shorten(repr(encoding))}; TFDS supports png and jpeg"
        )
    shape = shape or ((None,) * (3 if kind == "Video" else 2) + (3,))
    # TFDS decodes float images, stored as four uint8 channels, and GIFs, which have a fourth dimension.
    fast = kind != "Video" and dtype != "float32" and len(shape) == 3
    return Field(path, dtype, shape, encoding, feature=kind, fast=fast)


def _dtype(content: Json, default: str | None, path: str, where: str) -> str:
    given = content.get("dtype") or default
    dtype = {"object": "string", "str": "string", "float": "float32"}.get(str(given), str(given))
    if dtype not in DTYPES:
        raise UsageError(f"{where}: {path} has dtype {shorten(repr(given))}; supported: {', '.join(sorted(DTYPES))}")
    return dtype


def _dimension(value: Any, path: str, where: str) -> int | None:
    try:
        return None if value is None or int(value) < 0 else int(value)
    except (OverflowError, TypeError, ValueError):
        raise UsageError(f"{where}: {path} has dimension {shorten(repr(value))}, which is not a number") from None


def features_json(fields: Mapping[str, Field], *, scalars: bool = False) -> dict[str, Any]:
    """The `features.json` of flat records, for `tfds.builder_from_directory`.

    Args:
      fields: the leaves of a record by path: tensors (encoding none, bytes, or zlib), text, and images (png, jpeg; a
        sequence of them if of rank 4). Paths are nested at their `/`, as in the records' keys.
      scalars: write tensors without dimensions as Scalar, which has no encoding.

    Raises:
      UsageError: only TFDS's decoder reads a leaf, or a path is both a leaf and a parent.
    """
    return feature_node(nest(dict(sorted(fields.items()))), scalars)


def features_dict(features: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON of a FeaturesDict."""
    return {"pythonClassName": _PACKAGE + "features_dict.FeaturesDict", "featuresDict": {"features": dict(features)}}


def dataset_node(steps: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON of a Dataset of a FeaturesDict, the JSON of a step."""
    return {
        "pythonClassName": _PACKAGE + "dataset_feature.Dataset",
        "sequence": {"feature": steps, "length": "-1"},
    }


def feature_node(tree: Field | dict[str, Any], scalars: bool) -> dict[str, Any]:
    """The JSON of a leaf, or of a FeaturesDict of leaves. Arguments and errors as for `features_json`."""
    if isinstance(tree, dict):
        return features_dict({name: feature_node(child, scalars) for name, child in tree.items()})
    if not tree.fast:
        raise UsageError(f"{tree.path}: writing a {tree.feature} is not supported")
    if tree.encoding == "text" and not tree.shape:
        return {"pythonClassName": _PACKAGE + "text_feature.Text", "text": {}}
    dimensions = [str(-1 if d is None else d) for d in tree.shape]
    shape = {"dimensions": dimensions} if dimensions else {}
    if tree.holds_image_files:
        if len(tree.shape) == 4:  # a list of images, of any length
            node = feature_node(dataclasses.replace(tree, shape=tree.shape[1:]), scalars)
            sequence = {"feature": node, "length": "-1"}
            return {"pythonClassName": _PACKAGE + "sequence_feature.Sequence", "sequence": sequence}
        image = {"shape": shape, "dtype": tree.dtype, "encodingFormat": tree.encoding}
        return {"pythonClassName": _PACKAGE + "image_feature.Image", "image": image}
    kind = "scalar.Scalar" if scalars and not tree.shape and tree.encoding == "none" else "tensor_feature.Tensor"
    encoding = "none" if tree.encoding == "text" else tree.encoding
    tensor = {"shape": shape, "dtype": tree.dtype, "encoding": encoding}
    return {"pythonClassName": _PACKAGE + kind, "tensor": tensor}
