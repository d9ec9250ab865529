"""Images: the pixels that TFDS would decode, and the damage that it would find."""

import io
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds_beam.images import EncodedImages, check_images, encode_jpeg, read_header
from rlds_beam.rules import BadEpisode

RNG = np.random.default_rng(0)
ANY = (None, None, 3)


def picture(height: int = 33, width: int = 47, channels: int = 3, dtype: Any = np.uint8) -> Any:
    """Smooth with noise on it, as photographs are."""
    y, x = np.mgrid[0:height, 0:width]
    smooth = np.stack([np.sin(y / (5 + c) + x / (9 - c)) for c in range(channels)], -1)
    top = np.iinfo(dtype).max
    return ((smooth + 1) * top / 2.2 + RNG.integers(0, top // 20, smooth.shape)).astype(dtype)


def column(*images: bytes, shape: tuple[int | None, ...] = ANY, dtype: str = "uint8") -> EncodedImages:
    return EncodedImages(np.fromiter(images, object, len(images)), shape, dtype)


def tensorflow(image: bytes, channels: int | None, dtype: str = "uint8") -> Any:
    import tensorflow as tf

    return tf.image.decode_image(image, channels=channels or 0, dtype=tf.dtypes.as_dtype(dtype)).numpy()


def tensorflow_accepts(image: bytes, channels: int | None) -> bool:
    import tensorflow as tf

    try:
        tensorflow(image, channels)
    except (tf.errors.OpError, ValueError):
        return False
    return True


def png_chunks(image: bytes) -> list[tuple[bytes, bytes]]:
    at, chunks = 8, []
    while at < len(image):
        size = int.from_bytes(image[at : at + 4], "big")
        chunks.append((image[at + 4 : at + 8], image[at + 8 : at + 8 + size]))
        at += 12 + size
    return chunks


def png(chunks: list[tuple[bytes, bytes]]) -> bytes:
    body = [struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(body)


def with_pillow(image: Any, form: str, **options: Any) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image.squeeze()).save(buffer, form, **options)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    """Images as they may stand in a dataset, by what they are."""
    import simplejpeg
    import tensorflow as tf
    from PIL import Image

    found: dict[str, bytes] = {}
    for channels in (1, 2, 3, 4):
        found[f"png {channels}"] = tf.io.encode_png(picture(channels=channels)).numpy()
        found[f"png {channels} 16"] = tf.io.encode_png(picture(channels=channels, dtype=np.uint16)).numpy()
    for channels in (1, 3):
        for quality in (30, 75, 95, 100):
            for options in ({}, {"progressive": True}, {"chroma_downsampling": False}):
                image = picture(64, 64, channels) if quality == 75 else picture(33, 47, channels)
                found[f"jpeg {channels} {quality} {options}"] = tf.io.encode_jpeg(
                    image, quality=quality, **options
                ).numpy()
    chunks = png_chunks(found["png 3"])
    found["png tRNS"] = png([chunks[0], (b"tRNS", b"\0\1\0\2\0\3"), *chunks[1:]])
    found["png gAMA"] = png([chunks[0], (b"gAMA", struct.pack(">I", 30000)), *chunks[1:]])
    found["png trailing"] = found["png 3"] + b"trailing"
    found["png damaged text"] = png([*chunks[:-1], (b"tEXt", b"a\0b"), chunks[-1]]).replace(b"a\0b", b"a\0c")
    found["jpeg trailing"] = found["jpeg 3 95 {}"] + b"trailing"
    found["png optimised"] = with_pillow(picture(), "png", optimize=True)
    palette = io.BytesIO()
    Image.fromarray(picture()).quantize(16).save(palette, "png")
    found["png palette"] = palette.getvalue()
    found["png bilevel"] = with_pillow(picture(channels=1) > 100, "png")
    found["jpeg cmyk"] = simplejpeg.encode_jpeg(np.ascontiguousarray(picture(channels=4)), colorspace="CMYK")
    found["jpeg exif"] = with_pillow(picture(), "jpeg", exif=_rotated())
    found["bmp"] = with_pillow(picture(), "bmp")
    return found


def _rotated() -> Any:
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
@pytest.mark.parametrize("channels", [None, 1, 3, 4])
def test_pixels_equal_tensorflow(files: dict[str, bytes], channels: int | None, dtype: str) -> None:
    import tensorflow as tf

    decoded = 0
    for name, image in files.items():
        try:
            expected = tensorflow(image, channels, dtype)
        except (tf.errors.OpError, ValueError):
            with pytest.raises(BadEpisode, match="undecodable_image"):
                column(image, shape=(None, None, channels), dtype=dtype).decode()
            continue
        ours = column(image, image, shape=(None, None, channels), dtype=dtype).decode()
        assert ours.dtype == expected.dtype
        np.testing.assert_array_equal(ours, [expected] * 2, err_msg=name)
        decoded += 1
    assert decoded > 10


def test_headers_of_everything_tensorflow_decodes(files: dict[str, bytes]) -> None:
    for name, image in files.items():
        header = read_header(image)
        assert name.startswith(header.codec)
        assert (header.height, header.width) == tensorflow(image, None).shape[:2], name
    assert check_images(column(*files.values()), 1 << 26) == []


def test_damage_is_found_where_tensorflow_finds_it(files: dict[str, bytes]) -> None:
    """Never a false alarm; every cut is found without decoding, every PNG's damage too."""
    for name in ("png 3", "jpeg 3 95 {}", "jpeg 3 75 {'progressive': True}"):
        image = files[name]
        for cut in (1, 2, 5, 13, len(image) // 2, len(image) - 20, len(image) - 2, len(image)):
            assert not tensorflow_accepts(image[:-cut], 3)
            assert [v.rule for v in check_images(column(image[:-cut]), 1 << 26)] == ["undecodable_image"], (name, cut)
        for _ in range(150):
            damaged = bytearray(image)
            damaged[RNG.integers(2, len(image))] ^= 1 << RNG.integers(0, 8)
            data = bytes(damaged)
            accepted = tensorflow_accepts(data, 3)
            try:
                pixels = column(data).decode()
            except BadEpisode:
                assert not accepted
            else:
                np.testing.assert_array_equal(pixels[0], tensorflow(data, 3))
            faults = [v.rule for v in check_images(column(data), 1 << 26)]
            assert not (accepted and "undecodable_image" in faults), name
            assert accepted or faults or not name.startswith("png")


@pytest.mark.parametrize(
    "data", [b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF8", b"BM", b"RIFF1234WEBP", b"\0" * 99]
)
def test_no_image(data: bytes) -> None:
    [violation] = check_images(column(data), 1 << 26, "observation/image")
    assert (violation.rule, violation.field, violation.step) == ("undecodable_image", "observation/image", 0)
    with pytest.raises(BadEpisode, match="undecodable_image in observation/image"):
        column(data).decode("observation/image")


def test_a_bomb_is_refused_by_its_header(files: dict[str, bytes]) -> None:
    header = struct.pack(">IIBBBBB", 50_000, 60_000, 8, 2, 0, 0, 0)
    bomb = png([(b"IHDR", header), *png_chunks(files["png 3"])[1:]])
    [violation] = check_images(column(files["png 3"], bomb), 1 << 26)
    assert (violation.rule, violation.step) == ("image_too_large", 1)
    assert "60000x50000 pixels at step 1" in violation.detail


def test_another_size_than_the_schema(files: dict[str, bytes]) -> None:
    image = files["png 3"]
    assert check_images(column(image, shape=(33, 47, 3)), 1 << 26) == []
    assert check_images(column(image, shape=(33, None, 1)), 1 << 26) == []  # TensorFlow converts channels
    [violation] = check_images(column(image, shape=(47, 33, 3)), 1 << 26)
    assert violation.detail == "33x47 at step 0, where the schema says 47x33"
    with pytest.raises(BadEpisode, match="image_too_large"):
        column(image, shape=(47, 33, 3)).decode()
    with pytest.raises(BadEpisode, match=r"image_too_large.*step 1"):
        column(image, files["jpeg 3 75 {}"]).decode()


def test_columns_of_images(files: dict[str, bytes]) -> None:
    images = column(files["png 3"], files["jpeg 3 95 {}"], files["png 1"])
    pixels = images.decode()
    assert pixels.shape == (3, 33, 47, 3)
    np.testing.assert_array_equal(images[1:].decode(), pixels[1:])
    np.testing.assert_array_equal(images[1].decode(), pixels[1:2])
    assert column(shape=(8, 9, 3)).decode().shape == (0, 8, 9, 3)


@pytest.mark.parametrize("channels", [1, 3])
def test_jpegs_are_read_back_by_tensorflow(channels: int) -> None:
    images = np.stack([picture(channels=channels) for _ in range(3)])
    encoded = encode_jpeg(images, quality=95)
    assert check_images(column(*encoded, shape=(33, 47, channels)), 1 << 26) == []
    for image, data in zip(images, encoded, strict=True):
        assert np.abs(tensorflow(data, channels).astype(int) - image).mean() < 8
    with pytest.raises(ValueError, match="uint8"):
        encode_jpeg(images.astype(np.uint16))


def test_real_images_equal_tensorflow() -> None:
    root = Path(os.environ.get("RLDS_BEAM_REAL_DATA", Path(__file__).parents[2] / "shared" / "data"))
    shards = sorted(root.glob("bridge_dataset/1.0.0/*.tfrecord-*"))
    if not shards:
        pytest.skip(f"the real data is not there ({root})")
    import tensorflow as tf

    from rlds_beam.formats.example import parse_example

    for record in tf.data.TFRecordDataset([str(shards[0])]).take(5):
        example = parse_example(record.numpy())
        for camera in range(4):
            images = column(*example[f"steps/observation/image_{camera}"].strings(), shape=(64, 64, 3))
            assert check_images(images, 1 << 26) == []
            np.testing.assert_array_equal(images.decode(), [tensorflow(image, 3) for image in images])
