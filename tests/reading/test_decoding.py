"""Decoding records to episodes, compared with TFDS for every feature."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from rlds_beam.encoding.tfds.dataset_info import SplitInfo, dataset_info_json
from rlds_beam.encoding.tfds.features import parse_features
from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.reading.decoding import EpisodeDecoder

KEY = EpisodeKey("made/1.0.0", "train", 0, 0)
T = 5
RNG = np.random.default_rng(0)


def tfds_features(steps: dict[str, Any], metadata: dict[str, Any] | None = None) -> Any:
    import tensorflow_datasets as tfds

    flags = dict.fromkeys(("is_first", "is_last", "is_terminal"), np.bool_)
    numbers = dict.fromkeys(("reward", "discount"), np.float32)
    return tfds.features.FeaturesDict(
        {
            "steps": tfds.features.Dataset({"action": np.int32, **numbers, **flags, "observation": steps}),
            **(metadata or {}),
        }
    )


def required_fields(step: int) -> dict[str, Any]:
    flags = {"is_first": step == 0, "is_last": step == T - 1, "is_terminal": False}
    return {"action": -step, "reward": 0.1 * step, "discount": 1.0, **flags}


def write_dataset(directory: Path, features: Any, episodes: list[Any]) -> list[bytes]:
    """Writes a dataset with TFDS's encoder and our dataset_info.json."""
    import tensorflow as tf

    directory.mkdir(parents=True)
    payloads = [features.serialize_example(episode) for episode in episodes]
    with tf.io.TFRecordWriter(str(directory / "made-train.tfrecord-00000-of-00001")) as writer:
        for payload in payloads:
            writer.write(payload)
    features.save_config(directory)
    info = dataset_info_json("made", "1.0.0", [SplitInfo("train", (len(payloads),), sum(map(len, payloads)))])
    (directory / "dataset_info.json").write_text(json.dumps(info))
    return payloads


def read_with_tfds(directory: Path) -> list[Any]:
    import tensorflow_datasets as tfds

    dataset = tfds.builder_from_directory(str(directory)).as_dataset(split="train")
    return [{**episode, "steps": list(episode["steps"].as_numpy_iterator())} for episode in dataset]


def leaves(tree: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict):
        return {prefix.rstrip("/"): tree}
    return {path: leaf for name, child in tree.items() for path, leaf in leaves(child, f"{prefix}{name}/").items()}


def assert_same(ours: Any, theirs: Any, path: str) -> None:
    if hasattr(theirs, "numpy"):
        theirs = theirs.numpy()
    if hasattr(theirs, "to_list"):
        theirs = theirs.to_list()
    if isinstance(theirs, list) or (isinstance(theirs, np.ndarray) and theirs.dtype == object and len(theirs)):
        assert len(ours) == len(theirs), path
        for a, b in zip(ours, theirs, strict=True):
            assert_same(a, b, path)
        return
    if isinstance(theirs, np.ndarray | np.generic):
        assert np.asarray(ours).dtype == theirs.dtype, path
    np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs), err_msg=path)


def assert_same_episodes(directory: Path, payloads: list[bytes]) -> EpisodeDecoder:
    text = (directory / "features.json").read_text()
    decoder = pickle.loads(pickle.dumps(EpisodeDecoder(parse_features(text, "features.json"), text)))
    for payload, expected in zip(payloads, read_with_tfds(directory), strict=True):
        episode = decoder.decode(payload, KEY)
        steps = expected.pop("steps")
        assert len(episode) == len(steps)
        for path, column in episode.steps.items():
            assert len(column) == len(steps), path
            values = column.decode(path) if isinstance(column, EncodedImages) else column
            for ours, step in zip(values, steps, strict=True):
                assert_same(ours, leaves(step)[path], path)
        assert set(episode.steps) == set(leaves(steps[0])) if steps else True
        metadata = leaves(expected)
        assert set(episode.metadata) == set(metadata)
        for path, value in metadata.items():
            assert_same(episode.metadata[path], value, path)
    return decoder


def numbers(dtype: Any, *shape: int) -> Any:
    dtype = np.dtype(dtype)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return RNG.integers(info.min, info.max, shape, dtype, endpoint=True)
    if dtype.kind == "b":
        return RNG.integers(0, 2, shape).astype(bool)
    return RNG.normal(size=shape).astype(dtype)


INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "float32", "float64")


def test_numbers_of_every_dtype_and_encoding_equal_tfds(tmp_path: Path) -> None:
    import tensorflow as tf
    import tensorflow_datasets as tfds

    f = tfds.features
    steps: dict[str, Any] = {}
    values: dict[str, Any] = {}
    for name in (*INTEGERS, *FLOATS, "bool"):
        forms: list[tuple[tuple[int | None, ...], str]] = [((), "none"), ((2, 3), "none")]
        if name != "uint32":  # TFDS writes it encoded, but cannot read it (tf.io.decode_raw has no uint32)
            forms += [((2, 3), "bytes"), ((2, 3), "zlib"), ((None, 2), "zlib")]
        for shape, encoding in forms:
            key = f"{name}_{len(shape)}_{encoding}_{None in shape}"
            steps[key] = f.Tensor(shape=shape, dtype=np.dtype(name).type, encoding=encoding)
            values[key] = [numbers(name, *(t if d is None else d for d in shape)) for t in range(T)]
    bfloat16 = tf.bfloat16.as_numpy_dtype
    for encoding in ("bytes", "zlib"):
        steps[f"bfloat16_{encoding}"] = f.Tensor(shape=(3,), dtype=tf.bfloat16, encoding=encoding)
        values[f"bfloat16_{encoding}"] = [RNG.normal(size=3).astype(bfloat16) for _ in range(T)]
    steps["pixels"] = f.Tensor(shape=(6, 5, 3), dtype=np.uint8)
    values["pixels"] = list(numbers("uint8", T, 6, 5, 3))
    features = tfds_features(steps)
    episode = {"steps": [required_fields(t) | {"observation": {k: v[t] for k, v in values.items()}} for t in range(T)]}
    payloads = write_dataset(tmp_path / "d", features, [episode, {"steps": []}, episode])
    decoder = assert_same_episodes(tmp_path / "d", payloads)
    assert decoder.schema.fast
    assert len(decoder.decode(payloads[1], KEY)) == 0


def image(*shape: int, dtype: Any = np.uint8) -> Any:
    return numbers(dtype, *shape)


def test_text_labels_and_images_equal_tfds(tmp_path: Path) -> None:
    import tensorflow_datasets as tfds

    f = tfds.features
    steps = {
        "text": f.Text(),
        "string": f.Tensor(shape=(2,), dtype=np.str_),
        "scalar": f.Scalar(np.int16),
        "label": f.ClassLabel(num_classes=T),
        "named": f.ClassLabel(names=["a", "b", "c", "d", "e"]),
        "box": f.BBoxFeature(),
        "audio": f.Audio(shape=(4,)),
        "png": f.Image(shape=(6, 5, 3)),
        "png_gray": f.Image(shape=(6, 5, 1), encoding_format="png"),
        "png_rgba": f.Image(shape=(6, 5, 4), encoding_format="png"),
        "png_16": f.Image(shape=(6, 5, 3), dtype=np.uint16, encoding_format="png"),
        "png_16_gray": f.Image(shape=(6, 5, 1), dtype=np.uint16, encoding_format="png"),
        "jpeg": f.Image(shape=(33, 47, 3), encoding_format="jpeg"),
        "jpeg_gray": f.Image(shape=(33, 47, 1), encoding_format="jpeg"),
        "any_size": f.Image(),
        "nested": {"deep": {"er": np.float32}},
    }
    metadata = {
        "episode_metadata": {"id": np.int64, "name": f.Text(), "maybe": f.Scalar(np.int32, optional=True)},
        "maybe_float": f.Tensor(shape=(2,), dtype=np.float32, optional=True),
        "open": f.Tensor(shape=(None, 2), dtype=np.float32),
        "sequence": f.Sequence(np.int32),
        "fixed": f.Sequence(np.int32, length=2),
        "words": f.Sequence(f.Text()),
        "zlib": f.Tensor(shape=(2, 2), dtype=np.int16, encoding="zlib"),
    }

    def step(t: int) -> Any:
        observation = {
            "text": f"step é {t}",
            "string": ["a" * t, "b"],
            "scalar": np.int16(-t),
            "label": t,
            "named": "abcde"[t],
            "box": f.BBox(0.0, 0.1 * t, 0.5, 1.0),
            "audio": np.arange(4) * t,
            "png": image(6, 5, 3),
            "png_gray": image(6, 5, 1),
            "png_rgba": image(6, 5, 4),
            "png_16": image(6, 5, 3, dtype=np.uint16),
            "png_16_gray": image(6, 5, 1, dtype=np.uint16),
            "jpeg": image(33, 47, 3),
            "jpeg_gray": image(33, 47, 1),
            "any_size": image(7, 8, 3),
            "nested": {"deep": {"er": 1.5 * t}},
        }
        return required_fields(t) | {"observation": observation}

    def episode(length: int, maybe: Any) -> Any:
        return {
            "steps": [step(t) for t in range(length)],
            "episode_metadata": {"id": length, "name": "n" * length, "maybe": maybe},
            "maybe_float": None if maybe is None else np.ones(2, np.float32),
            "open": np.ones((length, 2), np.float32),
            "sequence": list(range(length)),
            "fixed": [1, 2],
            "words": ["w"] * length,
            "zlib": np.ones((2, 2), np.int16),
        }

    payloads = write_dataset(tmp_path / "d", tfds_features(steps, metadata), [episode(T, 3), episode(2, None)])
    decoder = assert_same_episodes(tmp_path / "d", payloads)
    assert decoder.schema.fast


def test_features_that_only_tfds_decodes(tmp_path: Path) -> None:
    import tensorflow_datasets as tfds

    f = tfds.features
    steps = {
        "ragged": f.Sequence(np.int32),
        "ragged_vectors": f.Sequence(f.Tensor(shape=(2,), dtype=np.float64)),
        "words": f.Sequence(f.Text()),
        "ragged_ragged": f.Sequence(f.Sequence(np.int32)),
        "objects": f.Sequence({"id": np.int64, "name": f.Text()}),
        "images": f.Sequence(f.Image(shape=(6, 5, 3))),
        "video": f.Video(shape=(None, 6, 5, 3)),
        "dynamic": f.Tensor(shape=(None, None), dtype=np.float32, encoding="zlib"),
        "depth": f.Image(shape=(6, 5, 1), dtype=np.float32),
        "fast_image": f.Image(shape=(6, 5, 3)),
    }
    metadata = {"lists": f.Sequence(f.Sequence(np.int32)), "clip": f.Video(shape=(None, 6, 5, 3)), "id": np.int64}

    def step(t: int) -> Any:
        observation = {
            "ragged": list(range(t)),
            "ragged_vectors": np.ones((t, 2)),
            "words": ["w" * i for i in range(t)],
            "ragged_ragged": [list(range(i)) for i in range(t)],
            "objects": [{"id": i, "name": str(i)} for i in range(t)],
            "images": [image(6, 5, 3) for _ in range(t)],
            "video": image(1 + t, 6, 5, 3),
            "dynamic": np.ones((t, t + 1), np.float32),
            "depth": numbers("float32", 6, 5, 1),
            "fast_image": image(6, 5, 3),
        }
        return required_fields(t) | {"observation": observation}

    def episode(length: int) -> Any:
        return {
            "steps": [step(t) for t in range(length)],
            "lists": [[1] * i for i in range(length)],
            "clip": image(2, 6, 5, 3),
            "id": length,
        }

    payloads = write_dataset(tmp_path / "d", tfds_features(steps, metadata), [episode(T), episode(2)])
    decoder = assert_same_episodes(tmp_path / "d", payloads)
    assert not decoder.schema.fast
    decoded = decoder.decode(payloads[0], KEY)
    assert isinstance(decoded.steps["observation/fast_image"], EncodedImages)
    assert decoded.steps["observation/ragged"].dtype == object
    assert decoded.steps["observation/depth"].shape == (T, 6, 5, 1)
