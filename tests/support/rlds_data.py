"""Episodes with images, connectors that edit some of them, and random schemas."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from rlds_beam import Field, Schema
from rlds_beam.connectors import EpisodeConnector
from rlds_beam.encoding.tfds.rlds_dataset import default_schema
from rlds_beam.episodes.episode import Episode
from rlds_beam.images.codecs import encode_jpeg, encode_png
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.testing import make_episode

LENGTHS = (4, 9, 3, 6, 5)


DTYPES = ("bool", "int8", "uint8", "int32", "int64", "uint64", "float16", "bfloat16", "float32", "float64", "string")


class EditSome(EpisodeConnector):
    """Changes rewards, adds a column and an episode field, drops a column; leaves short episodes unchanged."""

    def edit(self, episode, fields):
        steps = {path: column for path, column in episode.steps.items() if path != "extra"}
        steps["reward"] = steps["reward"] * 2
        steps["observation/half"] = (steps["observation/state"] / 2).astype(np.float32)
        return episode.replace(steps=steps, metadata={**episode.metadata, "length": np.int32(len(episode))})


class Halves(EpisodeConnector):
    """Splits each episode in two."""

    def edit(self, episode, fields):
        return [episode.slice(0, 2), episode.slice(2, len(episode))]


def images(length: int, seed: int, encoding: str = "jpeg") -> EncodedImages:
    pixels = np.random.default_rng(seed).integers(0, 256, (length, 8, 12, 3), np.uint8)
    data = encode_jpeg(pixels) if encoding == "jpeg" else encode_png(pixels)
    return EncodedImages(np.array([*data, None], object)[:-1], (8, 12, 3))


def episode(length: int, seed: int) -> Episode:
    columns = {
        "observation/image": images(length, seed),
        "observation/depth": images(length, seed, "png"),
        "language_instruction": [f"pick up {seed}"] * length,
        "extra": np.arange(length, dtype=np.int64),
    }
    metadata = {"file_path": f"/data/{seed}.h5", "success": seed % 2 == 0, "seed": np.int32(seed)}
    return make_episode(length, seed=seed, observation={"state": 3}, columns=columns, metadata=metadata)


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    def field(path: str) -> Field:
        dtype, shape = draw(st.sampled_from(DTYPES)), tuple(draw(st.lists(st.sampled_from([1, 3]), max_size=2)))
        encodings = (
            ["bytes", "zlib"] if dtype == "bfloat16" else ["none"] if dtype == "string" else ["none", "bytes", "zlib"]
        )
        encoding = "text" if dtype == "string" and not shape else draw(st.sampled_from(encodings))
        return Field(path, dtype, shape, encoding)

    steps = {f"more/{i}": field(f"more/{i}") for i in range(draw(st.integers(0, 4)))}
    metadata = {f"meta/{i}": field(f"meta/{i}") for i in range(draw(st.integers(0, 3)))}
    return Schema(default_schema(make_episode(2)).steps | steps, metadata)


def random(field: Field, rows: int, rng: np.random.Generator) -> Any:
    shape = (rows, *field.shape)
    if field.dtype == "string":
        values = [str(v).encode() for v in rng.integers(0, 99, int(np.prod(shape)))]
        return np.array([*values, None], object)[:-1].reshape(shape)
    return rng.integers(0, 2 if field.dtype == "bool" else 100, shape).astype(field.numpy_dtype)
