"""Thumbnails: of every kind of image, also damaged ones."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest
import simplejpeg

from rlds_beam.images.codecs import encode_jpeg, encode_png
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.images.thumbnails import small_pixels, thumbnail
from rlds_beam.testing import make_episode
from rlds_beam.typing import Array
from rlds_beam.viewing.episode_view import Limits, make_view
from rlds_beam.viewing.pictures import strip


def gradient(height: int, width: int) -> Array:
    rows, columns = np.indices((height, width))
    return np.stack([rows * 255 // height, columns * 255 // width, np.full_like(rows, 128)], axis=2).astype(np.uint8)


def decode_pixels(jpeg: bytes) -> Array:
    decoded: Array = simplejpeg.decode_jpeg(jpeg)
    return decoded


@pytest.mark.parametrize("kind", ["jpeg", "png", "pixels"])
def test_an_image_is_shrunk(kind: str) -> None:
    image = gradient(480, 640)
    stored = {"jpeg": encode_jpeg(image[None])[0], "png": encode_png(image[None])[0], "pixels": image}[kind]
    small = thumbnail(stored, 96)
    assert small.fault is None
    pixels = decode_pixels(small)
    assert pixels.shape == (96, 128, 3)
    assert np.abs(pixels.astype(int) - gradient(96, 128)).mean() < 4


@pytest.mark.parametrize(
    "image",
    [
        np.linspace(0, 9, 64).reshape(8, 8, 1),
        np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8),
        np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000,
        np.eye(8, dtype=bool),
        np.full((8, 8, 1), np.nan),
        np.array([[-np.inf, 1e308], [-1e308, np.inf]]),
        np.zeros((8, 8, 4), np.uint8),
        np.zeros((8, 8, 2), np.uint8),
    ],
)
def test_every_dtype_is_shown(image: Array) -> None:
    pixels, fault = small_pixels(image, 96)
    assert fault is None and pixels.dtype == np.uint8 and pixels.shape[2] == 3


JPEG = encode_jpeg(gradient(64, 64)[None])[0]
PNG = encode_png(gradient(64, 64)[None])[0]


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        JPEG[:20],
        PNG[:-30],
        b"\x89PNG\r\n\x1a\n",
        b"GIF89a" + b"\0" * 40,
        np.zeros((4, 4, 4, 4), np.uint8),
        np.zeros((0, 5, 3), np.uint8),
    ],
    ids=str,
)
def test_a_damaged_image_is_a_placeholder(damaged: Any) -> None:
    small = thumbnail(damaged, 48)
    assert small.fault
    pixels = decode_pixels(small)
    assert pixels.shape == (48, 64, 3)
    assert pixels.std() > 5  # the cross


def test_the_readable_part_of_a_cut_jpeg_is_shown() -> None:
    pixels, fault = small_pixels(JPEG[: len(JPEG) * 3 // 4], 64)
    assert fault is not None and "damaged" in fault
    np.testing.assert_allclose(pixels[:16].astype(int), gradient(64, 64)[:16], atol=40)


def episode_with_cameras(steps: int) -> Any:
    images = EncodedImages(np.array(encode_jpeg(np.stack([gradient(48, 64)] * steps)), object), (48, 64, 3))
    return make_episode(steps, columns={"observation/wrist": np.zeros((steps, 32, 32, 3), np.uint8)}).with_columns(
        {"observation/image": images}
    )


def test_frames_and_strip_of_an_episode() -> None:
    episode = episode_with_cameras(10)
    cameras = make_view(episode, Limits(frames=4, height=24))["cameras"]
    assert [camera["path"] for camera in cameras] == ["observation/image", "observation/wrist"]
    assert [picture["step"] for picture in cameras[0]["pictures"]] == [0, 3, 6, 9]
    assert decode_pixels(base64.b64decode(cameras[0]["pictures"][0]["jpeg"])).shape == (24, 32, 3)
    picture = strip(episode, 4, 24)
    assert picture.shape == (24 * 2 + 2, 4 * 32 + 3 * 2, 3)
    assert strip(make_episode(4), 4, 24).size == 0
    assert make_view(make_episode(4))["cameras"] == []


def test_a_picture_says_why_its_image_is_damaged() -> None:
    episode = episode_with_cameras(3)
    images = episode.steps["observation/image"]
    data = images.data.copy()
    data[1] = b"broken"
    camera, _ = make_view(episode.with_columns({"observation/image": images.with_data(data)}))["cameras"]
    faults = [picture["fault"] for picture in camera["pictures"]]
    assert faults == ["", "not a PNG or JPEG image (6 bytes, starting with b'broken')", ""]
