"""Parsing features.json into a schema, compared with TFDS."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds_beam.encoding.tfds.dataset_info import DatasetInfo, SplitInfo, dataset_info_json, read_dataset_info
from rlds_beam.encoding.tfds.features import DEFAULT_DISCOUNT, features_json, parse_features
from rlds_beam.episodes.schema import Field, Schema
from rlds_beam.errors import UsageError

CORE = "tensorflow_datasets.core.features."


def tensor(dtype: str = "float32", *shape: int, **content: Any) -> dict[str, Any]:
    dimensions = {"dimensions": [str(d) for d in shape]} if shape else {}
    content = {"shape": dimensions, "dtype": dtype, "encoding": "none"} | content
    return {"pythonClassName": CORE + "tensor_feature.Tensor", "tensor": content}


def features_dict(**features: Any) -> dict[str, Any]:
    return {"pythonClassName": CORE + "features_dict.FeaturesDict", "featuresDict": {"features": features}}


def dataset(feature: Any, name: str = "dataset_feature.Dataset", length: str = "-1") -> dict[str, Any]:
    return {"pythonClassName": CORE + name, "sequence": {"feature": feature, "length": length}}


REQUIRED: dict[str, Any] = {
    "observation": features_dict(state=tensor("float32", 17)),
    "action": tensor("float32", 6),
    "reward": tensor(),
    "discount": tensor(),
    **{name: tensor("bool") for name in ("is_first", "is_last", "is_terminal")},
}


def parse(changes: dict[str, Any] | None = None, **metadata: Any) -> Schema:
    steps = {k: v for k, v in (REQUIRED | (changes or {})).items() if v is not None}
    return parse_features(json.dumps(features_dict(steps=dataset(features_dict(**steps)), **metadata)), "features.json")


def test_a_schema() -> None:
    schema = parse(episode_metadata=features_dict(id=tensor("int64")))
    assert schema.fast
    assert schema.steps["observation/state"] == Field("observation/state", "float32", (17,))
    assert schema.steps["is_last"] == Field("is_last", "bool")
    assert schema.metadata == {"episode_metadata/id": Field("episode_metadata/id", "int64")}


def test_default_discount() -> None:
    assert parse({"discount": None}).steps["discount"] == DEFAULT_DISCOUNT


@pytest.mark.parametrize("name", [n for n in REQUIRED if n != "discount"])
def test_a_missing_rlds_field_is_named(name: str) -> None:
    with pytest.raises(UsageError, match=f"features.json: the steps have no `{name}`"):
        parse({name: None})


def test_no_steps() -> None:
    with pytest.raises(UsageError, match=r"no `steps`, only \['image'\]"):
        parse_features(features_dict(image=tensor()), "features.json")


@pytest.mark.parametrize(
    "planted",
    [
        {"pythonClassName": "evil.Tensor", "tensor": {}},
        {"python_class_name": "evil.Tensor", "tensor": {}},
        {"type": "evil.Tensor", "content": {}},
        {"pythonClassName": CORE + "features_dict.FeaturesDict", "jsonFeature": {"json": '{"a": {"type": "evil.X"}}'}},
        {"pythonClassName": CORE + "tensor_feature.Tensor", "tensor": {"x": [{"type": "evil.X"}]}},
        {"pythonClassName": CORE + "test_feature.Custom", "tensor": {}},
        {"type": CORE + "sequence_feature.Sequence", "content": '{"feature": {"pythonClassName": "evil.X"}}'},
    ],
)
def test_unsupported_classes_are_named(planted: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"features.json: steps/action(/\w+)* is a (evil|tensorflow_datasets)\."):
        parse({"action": planted})


@pytest.mark.parametrize("text", ["{", "[]", "{}", "[" * 100_000])
def test_no_features(text: str) -> None:
    with pytest.raises(UsageError, match=r"^features.json: "):
        parse_features(text, "features.json")


@pytest.mark.parametrize(
    ("feature", "message"),
    [
        (tensor("complex64"), "dtype 'complex64'"),
        (tensor("float32", 3, encoding="gzip"), "encoding 'gzip'"),
        (tensor("string", 3, encoding="zlib"), "encoding 'zlib'"),
        (tensor("float32", -1, 3), r"shape \(None, 3\) without an encoding"),
        (dataset(tensor("float32", 0), "sequence_feature.Sequence"), "which has size 0"),
        (tensor("float32", -1, 0, encoding="zlib"), "which has size 0"),
        (dataset(features_dict(a=tensor())), "only `steps` may be one"),
        (features_dict(**{"a": features_dict(b=tensor()), "a/b": tensor()}), "declared twice"),
    ],
)
def test_unsupported_features_are_named(feature: Any, message: str) -> None:
    with pytest.raises(UsageError, match=f"^features.json: .*{message}"):
        parse({"observation": features_dict(x=feature)})


def every_feature() -> dict[str, Any]:
    import tensorflow as tf
    import tensorflow_datasets as tfds

    f = tfds.features
    return {
        "scalar": f.Scalar(np.int32),
        "tensor": f.Tensor(shape=(2, 3), dtype=np.float16),
        "zlib": f.Tensor(shape=(None, 3), dtype=np.uint16, encoding="zlib"),
        "dynamic": f.Tensor(shape=(None, None), dtype=np.uint16, encoding="bytes"),
        "bfloat16": f.Tensor(shape=(2,), dtype=tf.bfloat16, encoding="bytes"),
        "string": f.Tensor(shape=(2,), dtype=np.str_),
        "text": f.Text(),
        "label": f.ClassLabel(num_classes=3),
        "box": f.BBoxFeature(),
        "image": f.Image(),
        "jpeg": f.Image(shape=(8, 9, 3), encoding_format="jpeg"),
        "depth": f.Image(shape=(8, 9, 1), dtype=np.float32),
        "video": f.Video(shape=(None, 8, 9, 3)),
        "audio": f.Audio(shape=(4,), dtype=np.int32),
        "sequence": f.Sequence(np.int32),
        "fixed": f.Sequence(f.Tensor(shape=(2,), dtype=np.int64), length=3),
        "nested": f.Sequence(f.Sequence({"a": np.bool_, "b": f.Text()})),
        "dict": {"deep": {"er": np.uint8}},
    }


def tensor_infos(tree: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict):
        return {prefix.rstrip("/"): tree}
    return {p: i for name, child in tree.items() for p, i in tensor_infos(child, f"{prefix}{name}/").items()}


def test_shapes_and_dtypes_equal_tfds(tmp_path: Path) -> None:
    import tensorflow_datasets as tfds

    numbers = dict.fromkeys(("action", "reward", "discount", "is_first", "is_last", "is_terminal"), np.float32)
    features = tfds.features.FeaturesDict(
        {
            "steps": tfds.features.Dataset({**numbers, "observation": every_feature()}),
            "open": tfds.features.Tensor(shape=(None,), dtype=np.int32),
            "maybe": tfds.features.Scalar(np.int32, optional=True),
        }
    )
    features.save_config(tmp_path)
    schema = parse_features((tmp_path / "features.json").read_text(), "features.json")
    infos = tensor_infos(features["steps"].feature.get_tensor_info())
    assert set(infos) == set(schema.steps)
    for path, info in infos.items():
        field = schema.steps[path]
        assert (path, field.shape, field.numpy_dtype) == (path, info.shape, info.np_dtype)
    slow = {path.split("/")[1] for path, field in schema.steps.items() if not field.fast}
    assert slow == {"dynamic", "depth", "video", "sequence", "fixed", "nested"}
    assert schema.slow_reason == "observation/depth is a Image"
    assert schema.metadata["open"] == Field("open", "int32", (None,))
    assert schema.metadata["maybe"].optional


def test_the_older_form() -> None:
    """The form before features.json was a proto: `type` and `content`, snake_case, null."""

    def old(name: str, content: Any) -> dict[str, Any]:
        return {"type": CORE + name, "content": content}

    number = old("tensor_feature.Tensor", {"shape": [], "dtype": "float32", "encoding": "none"})
    image = old("image_feature.Image", {"shape": [None, None, 3], "dtype": "uint8", "encoding_format": "jpeg"})
    steps = dict.fromkeys(("action", "reward", "discount", "is_first", "is_last", "is_terminal"), number)
    steps |= {"observation": old("features_dict.FeaturesDict", {"image": image, "type": number})}
    inner = old("features_dict.FeaturesDict", steps)
    root = old(
        "features_dict.FeaturesDict", {"steps": old("dataset_feature.Dataset", {"feature": inner, "length": None})}
    )
    import tensorflow_datasets as tfds

    theirs = tfds.features.FeatureConnector.from_json(json.loads(json.dumps(root)))
    ours = parse_features(json.dumps(root), "features.json")
    infos = tensor_infos(theirs["steps"].feature.get_tensor_info())
    assert {p: (f.shape, f.numpy_dtype) for p, f in ours.steps.items()} == {
        p: (i.shape, i.np_dtype) for p, i in infos.items()
    }
    assert ours.steps["observation/image"].encoding == "jpeg"


FLAT = {
    field.path: field
    for field in (
        Field("observation/image", "uint8", (2, 64, 64, 3), "bytes"),
        Field("observation/camera/front", "uint8", (64, 64, 3), "jpeg", "Image"),
        Field("observation/state", "float32", (2, 17)),
        Field("action", "int64", (None, 6)),
        Field("name", "string", encoding="text", feature="Text"),
    )
}


def test_tfds_reads_written_features() -> None:
    import tensorflow_datasets as tfds

    features = tfds.features.FeatureConnector.from_json(json.loads(json.dumps(features_json(FLAT))))
    infos = tensor_infos(features.get_tensor_info())
    assert {p: (i.shape, i.np_dtype) for p, i in infos.items()} == {
        p: (f.shape, f.numpy_dtype) for p, f in FLAT.items()
    }
    assert features["observation"]["image"]._encoding.value == "bytes"


def test_unsupported_features_are_not_written() -> None:
    with pytest.raises(UsageError, match="writing a Video is not supported"):
        features_json({"v": Field("v", "uint8", fast=False, feature="Video")})
    with pytest.raises(UsageError, match="a/b: a is a value"):
        features_json({"a": Field("a", "uint8"), "a/b": Field("a/b", "uint8")})


SPLIT = {"name": "train", "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}", "numBytes": "347"}
INFO: dict[str, Any] = {
    "name": "bridge_dataset",
    "version": "1.0.0",
    "fileFormat": "tfrecord",
    "splits": [SPLIT | {"shardLengths": ["25", "3"]}],
}


def read(**changes: Any) -> DatasetInfo:
    return read_dataset_info(json.dumps({k: v for k, v in (INFO | changes).items() if v is not None}), "info.json")


def read_split(**changes: Any) -> SplitInfo:
    split = {k: v for k, v in (INFO["splits"][0] | changes).items() if v is not None}
    (found,) = read(splits=[split]).splits
    return found


def test_output_of_tfds() -> None:
    info = read()
    assert info == DatasetInfo("bridge_dataset", "1.0.0", "", "tfrecord", (SplitInfo("train", (25, 3), 347),))
    names = [*info.splits[0].filenames(info.name, info.file_format)]
    assert names == [f"bridge_dataset-train.tfrecord-0000{i}-of-00002" for i in range(2)]


def test_output_of_the_episode_writer() -> None:
    split = read_split(filepathTemplate="{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_INDEX}")
    assert [*split.filenames("catch", "tfrecord")][1] == "catch-train.tfrecord-00001"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": None}, "missing required field `name`"),
        ({"name": "../other"}, r"name is '../other'"),
        ({"version": "1.0.0/.."}, "version is"),
        ({"configName": "a/b"}, "configName is"),
        ({"fileFormat": "riegeli"}, "Invalid enum value 'riegeli' - at `..fileFormat`"),
        ({"splits": [INFO["splits"][0]] * 2}, "duplicate split names"),
    ],
)
def test_invalid_files(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=f"^info.json: .*{message}"):
        read(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"filepathTemplate": "/etc/passwd"}, "no directories"),
        ({"filepathTemplate": "../{SPLIT}-{SHARD_X_OF_Y}"}, "no directories"),
        ({"filepathTemplate": "a\\b"}, "no directories"),
        ({"filepathTemplate": "{HOME}"}, "no directories"),
        ({"name": "a/../b"}, "the name of a split is"),
        ({"shardLengths": None}, "missing required field `shardLengths`"),
        ({"shardLengths": ["-1"]}, "Expected `int` >= 0"),
    ],
)
def test_invalid_splits(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=f"(?s)^info.json: .*{message}"):
        read_split(**changes)


def test_round_trip() -> None:
    splits = [SplitInfo("train", (3, 4), 99), SplitInfo("test", (), 0, "{SPLIT}-{SHARD_INDEX}")]
    info = dataset_info_json("made", "2.0.0", splits, config_name="small", file_format="array_record")
    assert read_dataset_info(json.dumps(info), "x") == DatasetInfo(
        "made", "2.0.0", "small", "array_record", tuple(splits)
    )
