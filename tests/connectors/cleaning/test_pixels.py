"""ResizeImages, RotateImages, and FlipChannels: which images they decode and encode, and laws on generated images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from edits import FEW, edited, images
from hypothesis import given
from hypothesis import strategies as st

from rlds_beam import connectors as c
from rlds_beam.connectors import connect
from rlds_beam.episodes.episode import Episode
from rlds_beam.errors import UsageError
from rlds_beam.images.codecs import encode_jpeg, encode_png
from rlds_beam.images.encoded_images import EncodedImages
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


def test_images_are_cropped_before_they_are_resized():
    png, pixels = images("png")
    depth = (pixels[..., :1] / 9).astype(np.float32)
    columns = {"observation/image": png, "observation/pixels": pixels, "observation/depth_map": depth[..., 0]}
    episode = make_episode(3, observation={"s": 2}).with_columns(columns)
    (made,) = edited(c.ResizeImages(4, 4, minimum=8, crop=[2, 3, 5, 8]), episode)
    part = pixels[:, 2:7, 3:11]
    assert made.steps["observation/image"].shape == (4, 4, 3)
    assert made.steps["observation/image"].data.tolist() == encode_jpeg(resize_colors(part, 4, 4))
    np.testing.assert_array_equal(made.steps["observation/pixels"], resize_colors(part, 4, 4))
    np.testing.assert_array_equal(made.steps["observation/depth_map"], resize_depth(depth[:, 2:7, 3:11], 4, 4)[..., 0])
    with pytest.raises(UsageError, match="crop=\\[4, 0, 5, 12\\] exceeds observation/image of 8 x 12 pixels"):
        edited(c.ResizeImages(4, 4, minimum=8, crop=[4, 0, 5, 12]), episode)
    with pytest.raises(UsageError, match="expected \\(top, left, height, width\\)"):
        c.ResizeImages(crop=[1, 2])


@pytest.mark.parametrize(("size", "wanted"), [((96, 128), (128, 128)), ((128, 128), (96, 128)), ((47, 80), (30, 33))])
def test_padding_equals_tensorflow_and_keeps_proportions(size: tuple[int, int], wanted: tuple[int, int]) -> None:
    tf = pytest.importorskip("tensorflow")
    rng = np.random.default_rng(0)
    pixels = rng.integers(1, 256, (2, *size, 3), np.uint8)
    (made,) = edited(c.ResizeImages(*wanted, minimum=1, fit="pad"), pictures(pixels))
    padded = tf.image.resize_with_pad(pixels, *wanted, method="lanczos3", antialias=True)
    expected = tf.cast(tf.clip_by_value(tf.round(padded), 0, 255), tf.uint8).numpy()
    found = made.steps["observation/image"]
    assert np.abs(found.astype(int) - expected).max() <= 1
    np.testing.assert_array_equal((found == 0).all(axis=-1), (expected == 0).all(axis=-1))  # the same borders


def test_cropping_keeps_the_middle_and_proportions() -> None:
    pixels = np.zeros((2, 96, 128, 3), np.uint8)
    pixels[:, :, 16:112] = 200  # the square in the middle
    (made,) = edited(c.ResizeImages(48, 48, minimum=1, fit="crop"), pictures(pixels))
    assert (made.steps["observation/image"] == 200).all()
    for fit in ("stretch", "pad"):
        (other,) = edited(c.ResizeImages(48, 48, minimum=1, fit=fit), pictures(pixels))
        assert not (other.steps["observation/image"] == 200).all()
    with pytest.raises(UsageError, match="fit=squeeze, expected one of stretch, pad, crop"):
        c.ResizeImages(fit="squeeze")  # type: ignore[arg-type]


def test_images_of_several_sizes_in_an_episode_get_one() -> None:
    rng = np.random.default_rng(0)
    data = [encode_png(rng.integers(1, 256, (1, *size, 3), np.uint8))[0] for size in ((96, 128), (128, 128), (96, 96))]
    column = EncodedImages(np.array(data, object), (None, None, 3), encoding="png")
    (made,) = edited(c.ResizeImages(64, 64, minimum=1, fit="pad"), pictures(column))
    assert made.steps["observation/image"].decode().shape == (3, 64, 64, 3)


def pictures(column: Any) -> Episode:
    return make_episode(len(column), observation={"s": 2}).with_columns({"observation/image": column})


def test_several_edits_decode_and_encode_once(monkeypatch):
    png, pixels = images("png")
    episode = make_episode(3, observation={"image": 1}).with_columns({"observation/image": png})
    done = connect([c.FlipChannels(["observation/image"]), c.ResizeImages(4, 4, minimum=1)], [episode]).episodes[0]
    column = done.steps["observation/image"]
    assert isinstance(column, EditedImages) and column.source is png
    assert column[1:].data.tolist() == encode_jpeg(resize_colors(pixels[..., ::-1], 4, 4))[1:]
    (flipped,) = edited(c.FlipChannels("observation"), episode)
    np.testing.assert_array_equal(flipped.steps["observation/image"].decode(), pixels[..., ::-1])
    with pytest.raises(UsageError, match="there is no image field action"):
        edited(c.FlipChannels(["action"]), episode)


# RotateImages and FlipChannels: laws on generated images, refusals, and what a conversion writes.

IMAGE = "observation/image"
SHAPES = st.tuples(st.integers(1, 9), st.integers(1, 9), st.sampled_from([1, 3, 4]))
TURNS = st.sampled_from([90, 180, 270])
KINDS = st.sampled_from([("png", "uint8"), ("png", "uint16"), ("raw", "uint8"), ("raw", "uint16"), ("raw", "float32")])


def random_pixels(shape: tuple[int, ...], dtype: str = "uint8", seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 255, (3, *shape)).astype(dtype)


def with_images(pixels: Any, storage: str = "raw", path: str = IMAGE) -> Episode:
    column = pixels
    if storage != "raw":
        data = encode_jpeg(pixels) if storage == "jpeg" else encode_png(pixels)
        column = EncodedImages(np.array([*data, None], object)[:-1], pixels.shape[1:], str(pixels.dtype), storage)
    return make_episode(3, observation={"image": 1}).with_columns({path: column})


def pixels_after(episode: Episode, *connectors: Any, path: str = IMAGE) -> Any:
    column = connect(list(connectors), [episode]).episodes[0].steps[path]
    if not isinstance(column, EncodedImages):
        return column
    decoded = column.decode()
    assert decoded.shape[1:] == column.shape
    return decoded


@FEW
@given(SHAPES, KINDS, TURNS, st.integers(0, 99))
def test_images_rotate_as_numpy_does_and_png_is_lossless(shape, kind, degrees, seed):
    storage, dtype = kind
    pixels = random_pixels(shape, dtype, seed)
    rotated = pixels_after(with_images(pixels, storage), c.RotateImages(degrees, fields=[IMAGE]))
    assert rotated.dtype == pixels.dtype
    np.testing.assert_array_equal(rotated, np.rot90(pixels, degrees // 90, axes=(1, 2)))


@FEW
@given(SHAPES.filter(lambda shape: shape[2] > 1), KINDS, st.integers(0, 99))
def test_flipping_twice_changes_nothing_and_alpha_stays(shape, kind, seed):
    storage, dtype = kind
    pixels, flip = random_pixels(shape, dtype, seed), c.FlipChannels([IMAGE])
    episode = with_images(pixels, storage)
    once = pixels_after(episode, flip)
    np.testing.assert_array_equal(once, pixels[..., [2, 1, 0, 3][: shape[2]]])
    np.testing.assert_array_equal(pixels_after(episode, flip, flip), pixels)


def test_only_fields_that_look_like_images_are_rotated_unless_named():
    others = {
        "observation/pose": np.arange(48.0).reshape(3, 4, 4),
        "observation/depth": np.arange(18, dtype=np.uint16).reshape(3, 2, 3),
        "observation/features": np.zeros((3, 2, 2, 5), np.float32),
        "observation/depth_extrinsics": np.arange(48.0).reshape(3, 4, 4),
    }
    episode = with_images(random_pixels((4, 6, 3))).with_columns(others)
    (made,) = edited(c.RotateImages(90), episode)
    shapes = {path: made.steps[path].shape[1:] for path in others}
    assert [*shapes.values()] == [(4, 4), (3, 2), (2, 2, 5), (4, 4)]
    for path in ("observation/pose", "observation/depth_extrinsics"):
        np.testing.assert_array_equal(made.steps[path], others[path])
    assert made.steps[IMAGE].shape == (3, 6, 4, 3)
    (made,) = edited(c.RotateImages(90, fields=["observation/pose"]), episode)
    np.testing.assert_array_equal(made.steps["observation/pose"], np.rot90(others["observation/pose"], 1, axes=(1, 2)))


CALIBRATED = [
    c.ResizeImages(30, 50, minimum=1),
    c.ResizeImages(40, 40, minimum=1, fit="pad"),
    c.ResizeImages(40, 40, minimum=1, fit="crop"),
    c.ResizeImages(40, 70, minimum=1, crop=[8, 12, 60, 80]),
    c.RotateImages(90),
    c.RotateImages(180),
    c.RotateImages(270),
]


@pytest.mark.parametrize("connector", CALIBRATED, ids=repr)
@pytest.mark.parametrize("of_steps", [True, False])
def test_the_camera_matrix_follows_the_pixels(connector: Any, of_steps: bool) -> None:
    """A point that OpenCV projects with the matrix before the edit is seen where the matrix after it says."""
    cv2 = pytest.importorskip("cv2")
    matrix = np.array([[90.0, 0, 47.2], [0, 85.0, 36.4], [0, 0, 1]])
    point, distortion = np.array([0.06, -0.05, 1.0]), np.array([0.1, -0.05, 0.002, 0.001, 0.0])
    ((x, y),) = cv2.projectPoints(point[None], np.zeros(3), np.zeros(3), matrix, distortion)[0][0]
    rows, columns = np.mgrid[:80, :100]
    spot = 250 * np.exp(-((rows - y) ** 2 + (columns - x) ** 2) / (2 * 3.0**2))
    pixels = np.repeat(spot.round().astype(np.uint8)[None, ..., None], 3, axis=-1)
    episode = make_episode(1, observation={"s": 2}).with_columns({IMAGE: pixels})
    if of_steps:
        episode = episode.with_columns({f"{IMAGE}_intrinsics": matrix[None]})
    else:
        episode = episode.replace(metadata={f"episode_metadata/{IMAGE}_intrinsics": matrix})
    (made,) = edited(connector, episode)
    seen = np.asarray(made.steps[IMAGE])[0, ..., 0].astype(float)
    at = [(np.arange(size) * seen.sum(axis=other)).sum() / seen.sum() for other, size in enumerate(seen.shape[::-1])]
    known = made.steps[f"{IMAGE}_intrinsics"][0] if of_steps else made.metadata[f"episode_metadata/{IMAGE}_intrinsics"]
    np.testing.assert_allclose((known @ np.linalg.solve(matrix, [x, y, 1]))[:2], at, atol=0.1)
    if known[0, 1] == 0:
        ((there),) = cv2.projectPoints(point[None], np.zeros(3), np.zeros(3), known, distortion)[0][0]
        np.testing.assert_allclose(there, at, atol=0.1)


def test_a_camera_matrix_of_another_shape_is_refused() -> None:
    pixels = np.zeros((3, 80, 100, 3), np.uint8)
    columns = {IMAGE: pixels, f"{IMAGE}_intrinsics": np.ones((3, 4), np.float32)}
    episode = make_episode(3, observation={"s": 2}).with_columns(columns)
    with pytest.raises(UsageError, match=f"{IMAGE}_intrinsics is float32 .*expected floats"):
        edited(c.RotateImages(180), episode)
