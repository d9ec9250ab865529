"""Image connectors: which images they decode and encode, compared with TensorFlow's resizing."""

from __future__ import annotations

import numpy as np
import pytest
from edits import edited, images

from rlds_beam import connectors as c
from rlds_beam.connectors import connect
from rlds_beam.errors import UsageError
from rlds_beam.images.codecs import encode_jpeg
from rlds_beam.images.resizing import EditedImages, resize_colors, resize_depth
from rlds_beam.testing import make_episode


def test_images_are_resized_as_tensorflow_does():
    tf = pytest.importorskip("tensorflow")
    rng = np.random.default_rng(0)
    for size, wanted in (((48, 64), (25, 31)), ((20, 30), (64, 40)), ((33, 7), (33, 9)), ((5, 5), (1, 1))):
        colors = rng.integers(0, 256, (2, *size, 3), np.uint8)
        resized = tf.image.resize(colors, wanted, method="lanczos3", antialias=True)
        expected = tf.cast(tf.clip_by_value(tf.round(resized), 0, 255), tf.uint8).numpy()
        different = np.abs(resize_colors(colors, *wanted).astype(int) - expected)
        assert different.max() <= 1 and (different > 0).mean() < 1e-3  # sums close to a half may round differently
        depth = rng.random((2, *size, 1)).astype(np.float32)
        expected = tf.image.resize(depth, wanted, method="bilinear", antialias=True).numpy()
        np.testing.assert_allclose(resize_depth(depth, *wanted), expected, atol=1e-6)


def test_color_becomes_jpeg_and_depth_stays_png():
    png, pixels = images("png")
    deep, depths = images("png", (8, 12, 1), "uint16")
    columns = {"observation/image": png, "observation/depth": deep, "observation/x": np.zeros((3, 4), np.float32)}
    episode = make_episode(3).replace(steps={**make_episode(3, observation={"s": 2}).steps, **columns})
    (made,) = edited(c.ResizeImages(4, 6, minimum=8), episode)
    image, depth = made.steps["observation/image"], made.steps["observation/depth"]
    assert (image.shape, image.encoding, image.data[0][:2]) == ((4, 6, 3), "jpeg", b"\xff\xd8")
    assert (depth.shape, depth.encoding, depth.dtype) == ((4, 6, 1), "png", "uint16")
    assert image.data.tolist() == encode_jpeg(resize_colors(pixels, 4, 6))
    np.testing.assert_array_equal(depth.decode(), resize_depth(depths, 4, 6))
    assert made.steps["observation/x"] is episode.steps["observation/x"]
    assert edited(c.ResizeImages(4, 6), episode)[0].steps["observation/image"] is png  # smaller than 64


def test_a_jpeg_of_the_right_size_is_copied():
    jpeg, _ = images("jpeg")
    episode = make_episode(3, observation={"image": 1}).with_columns({"observation/image": jpeg})
    for piece in (c.ResizeImages(8, 12, minimum=1), c.ResizeImages(9, 99, minimum=1, enlarge=False)):
        assert edited(piece, episode)[0].steps["observation/image"] is jpeg


def test_several_edits_decode_and_encode_once(monkeypatch):
    png, pixels = images("png")
    episode = make_episode(3, observation={"image": 1}).with_columns({"observation/image": png})
    done = connect([c.FlipChannels(["observation/image"]), c.ResizeImages(4, 4, minimum=1)], [episode]).episodes[0]
    column = done.steps["observation/image"]
    assert isinstance(column, EditedImages) and column.source is png
    assert column[1:].data.tolist() == encode_jpeg(resize_colors(pixels[..., ::-1], 4, 4))[1:]
    (flipped,) = edited(c.FlipChannels("observation"), episode)
    np.testing.assert_array_equal(flipped.steps["observation/image"].decode(), pixels[..., ::-1])
    with pytest.raises(UsageError, match="there is no images action"):
        edited(c.FlipChannels(["action"]), episode)


def test_added_images_stay_zeros():
    png, _ = images("png")
    padded = png.with_data(np.array([b"", png.data[1], b""], object))
    episode = make_episode(3, observation={"image": 1}).with_columns({"observation/image": padded})
    (made,) = edited(c.ResizeImages(4, 4, minimum=1), episode)
    assert [bool(image) for image in made.steps["observation/image"]] == [False, True, False]
