"""rlds_beam.testing writes the same data as TFDS."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds_beam.encoding.tfds.rlds_dataset import default_schema
from rlds_beam.episodes.episode import Episode
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.testing import make_episode, write_dataset


def _images(length: int, encoding: str) -> EncodedImages:
    import cv2

    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 255, (length, 4, 5, 3), np.uint8)
    encoded = [cv2.imencode("." + encoding, image)[1].tobytes() for image in pixels]
    return EncodedImages(np.array([*encoded, None], object)[:-1], (4, 5, 3))


def _rich(length: int, seed: int = 0) -> Episode:
    rng = np.random.default_rng(seed)
    columns = {
        "observation/png": _images(length, "png"),
        "observation/jpeg": _images(length, "jpg"),
        "observation/count": rng.integers(-(2**62), 2**62, (length, 2)),
        "observation/byte": rng.integers(0, 255, (length, 2, 2), np.uint8),
        "observation/int8": rng.integers(-128, 127, length, np.int8),
        "observation/uint64": rng.integers(0, 2**64 - 1, length, np.uint64),
        "observation/double": rng.standard_normal((length, 1)),
        "observation/half": rng.standard_normal((length, 2)).astype(np.float16),
        "language": np.array([*(b"take the cup, %d" % i for i in range(length)), None], object)[:-1],
    }
    metadata = {"episode_id": np.int32(seed), "file": "a/b.hdf5", "ok": np.bool_(True)}
    return make_episode(length, seed=seed, observation={"state": 7}, columns=columns, metadata=metadata)


def test_encode_example_equals_tfds(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    tfds = pytest.importorskip("tensorflow_datasets")
    episodes = [_rich(4, 0), _rich(1, 1), _rich(0, 2), _rich(7, 3)]
    directory = write_dataset(tmp_path, episodes, shards=2, schema=default_schema(episodes[0]))
    builder = tfds.builder_from_directory(directory)
    read = list(builder.as_dataset(split="train", decoders=None))
    assert len(read) == 4
    assert builder.info.splits["train"].shard_lengths == [2, 2]
    for episode, example in zip(episodes, read, strict=True):
        steps = list(example["steps"].as_numpy_iterator())
        assert len(steps) == len(episode)
        for i, step in enumerate(steps):
            for path, column in episode.steps.items():
                value: Any = step
                for name in path.split("/"):
                    value = value[name]
                if isinstance(column, EncodedImages):
                    np.testing.assert_array_equal(value, tf.io.decode_image(column.data[i]).numpy())
                elif column.dtype == np.float64:
                    np.testing.assert_array_equal(value, column[i].astype(np.float32))
                else:
                    np.testing.assert_array_equal(value, column[i])
                    assert column.dtype == object or value.dtype == column.dtype
        assert example["episode_metadata"]["episode_id"].numpy() == episode.metadata["episode_id"]
        assert example["episode_metadata"]["file"].numpy() == b"a/b.hdf5"


def test_flags_in_letters() -> None:
    episode = make_episode("F M L | FLT")
    assert episode.steps["is_first"].tolist() == [True, False, False, True]
    assert episode.steps["is_last"].tolist() == [False, False, True, True]
    assert episode.steps["is_terminal"].tolist() == [False, False, False, True]
    with pytest.raises(ValueError, match="letters"):
        make_episode("F X")
