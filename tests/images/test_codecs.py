"""Image decoding equals TFDS, in pixels and in damage found."""

import io
import struct
import sys
import zlib
from typing import Any

import numpy as np
import pytest
from checkout import REAL_DATA

from rlds_beam.checking.rules import CheckOptions
from rlds_beam.checking.signals.sensors import sample_images
from rlds_beam.checking.validation import validate_episode
from rlds_beam.datasets.pixels import decode_into, decode_resized
from rlds_beam.errors import BadEpisode
from rlds_beam.formats.lerobot.statistics import count_levels
from rlds_beam.images import headers
from rlds_beam.images.codecs import decode_image, decode_reduced, encode_jpeg, encode_png
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.images.headers import UndecodableImageError, read_image_header
from rlds_beam.images.thumbnails import thumbnail
from rlds_beam.testing import make_episode

RNG = np.random.default_rng(0)


ANY = (None, None, 3)


def picture(height: int = 33, width: int = 47, channels: int = 3, dtype: Any = np.uint8) -> Any:
    """A smooth image with noise, like a photograph."""
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


def rotated() -> Any:
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    """Encoded images as in datasets, by description."""
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
    for dtype in (np.uint8, np.uint16):
        for channels in (1, 3, 4):  # one is just over 64 kB, the size of a stored block
            found[f"png large {channels} {dtype.__name__}"] = tf.io.encode_png(
                picture(333, 197, channels, dtype)
            ).numpy()
    found["png 65535"] = with_pillow(picture(5 * 257, 50, 1), "png")
    found["png 196605"] = with_pillow(picture(771, 254, 1), "png")
    found["png trailing"] = found["png 3"] + b"trailing"
    found["png damaged text"] = png([*chunks[:-1], (b"tEXt", b"a\0b"), chunks[-1]]).replace(b"a\0b", b"a\0c")
    found["jpeg trailing"] = found["jpeg 3 95 {}"] + b"trailing"
    found["png optimized"] = with_pillow(picture(), "png", optimize=True)
    palette = io.BytesIO()
    Image.fromarray(picture()).quantize(16).save(palette, "png")
    found["png palette"] = palette.getvalue()
    found["png bilevel"] = with_pillow(picture(channels=1) > 100, "png")
    found["jpeg cmyk"] = simplejpeg.encode_jpeg(np.ascontiguousarray(picture(channels=4)), colorspace="CMYK")
    found["jpeg exif"] = with_pillow(picture(), "jpeg", exif=rotated())
    return found


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
        header = read_image_header(image)
        assert (header.height, header.width) == tensorflow(image, None).shape[:2], name
    assert column(*files.values()).check(1 << 26) == []


def test_damage_is_found_where_tensorflow_finds_it(files: dict[str, bytes]) -> None:
    """No false alarms; every cut and all damage to PNGs is found without decoding."""
    for name in ("png 3", "jpeg 3 95 {}", "jpeg 3 75 {'progressive': True}"):
        image = files[name]
        for cut in (1, 2, 5, 13, len(image) // 2, len(image) - 20, len(image) - 2, len(image)):
            assert not tensorflow_accepts(image[:-cut], 3)
            assert [v.rule for v in column(image[:-cut]).check(1 << 26)] == ["undecodable_image"], (name, cut)
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
            faults = [v.rule for v in column(data).check(1 << 26)]
            assert not (accepted and "undecodable_image" in faults), name
            assert accepted or faults or not name.startswith("png")


def test_usual_pngs_need_no_tensorflow(files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    for name, image in files.items():
        kind, _, form = name.partition(" ")
        if kind == "png" and form not in ("2", "2 16", "tRNS", "palette", "bilevel"):
            dtype = "uint16" if form.endswith("16") else "uint8"
            assert len(column(image, shape=(None, None, None), dtype=dtype).decode()) == 1, name


@pytest.mark.parametrize(
    "data", [b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF8", b"BM", b"RIFF1234WEBP", b"\0" * 99]
)
def test_invalid_images(data: bytes) -> None:
    [violation] = column(data).check(1 << 26, "observation/image")
    assert (violation.rule, violation.field, violation.step) == ("undecodable_image", "observation/image", 0)
    with pytest.raises(BadEpisode, match="undecodable_image in observation/image"):
        column(data).decode("observation/image")


def test_a_bomb_is_rejected_by_its_header(files: dict[str, bytes]) -> None:
    header = struct.pack(">IIBBBBB", 50_000, 60_000, 8, 2, 0, 0, 0)
    bomb = png([(b"IHDR", header), *png_chunks(files["png 3"])[1:]])
    [violation] = column(files["png 3"], bomb).check(1 << 26)
    assert (violation.rule, violation.step) == ("image_too_large", 1)
    assert "60000x50000 pixels at step 1" in violation.detail


@pytest.mark.parametrize("subsampling", ["444", "422", "420", "440", "411", "Gray"])
@pytest.mark.parametrize("quality", [10, 50, 75, 90, 95, 100])
def test_accurate_jpegs_equal_pillow_and_opencv(quality: int, subsampling: str) -> None:
    import cv2
    import simplejpeg
    from PIL import Image

    different = 0
    for size in [(1, 1), (2, 3), (7, 9), (8, 8), (5, 40), (15, 17), (33, 31), (64, 48)]:
        gray = subsampling == "Gray"
        kind: dict[str, Any] = {"colorspace": "GRAY"} if gray else {"colorsubsampling": subsampling}
        image = np.ascontiguousarray(picture(*size, 1 if gray else 3))
        data = simplejpeg.encode_jpeg(image, quality=quality, **kind)
        for channels in (3, 1) if gray else (3,):
            found = decode_image(data, channels, "uint8", jpeg="accurate")
            pillow = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))[..., :channels]
            opencv = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)[..., ::-1][..., :channels]
            np.testing.assert_array_equal(found, pillow)
            np.testing.assert_array_equal(found, opencv)
            fast = decode_image(data, channels, "uint8")
            np.testing.assert_array_equal(fast, tensorflow(data, channels))
            different += int((fast != found).any())
    assert different


def test_sizes_that_differ_from_the_schema(files: dict[str, bytes]) -> None:
    image = files["png 3"]
    assert column(image, shape=(33, 47, 3)).check(1 << 26) == []
    assert column(image, shape=(33, None, 1)).check(1 << 26) == []  # TensorFlow converts channels
    [violation] = column(image, shape=(47, 33, 3)).check(1 << 26)
    assert violation.detail == "33x47 at step 0, but expected 47x33"
    with pytest.raises(BadEpisode, match="image_size_mismatch"):
        column(image, shape=(47, 33, 3)).decode()
    with pytest.raises(BadEpisode, match=r"image_size_mismatch.*step 1"):
        column(image, files["jpeg 3 75 {}"]).decode()


def test_real_images_equal_tensorflow() -> None:
    root = REAL_DATA
    shards = sorted(root.glob("bridge_dataset/1.0.0/*.tfrecord-*"))
    if not shards:
        pytest.skip(f"the real data is missing ({root})")
    import tensorflow as tf

    from rlds_beam.encoding.example.reader import parse_example

    for record in tf.data.TFRecordDataset([str(shards[0])]).take(5):
        example = parse_example(record.numpy())
        for camera in range(4):
            images = column(*example[f"steps/observation/image_{camera}"].strings(), shape=(64, 64, 3))
            assert images.check(1 << 26) == []
            np.testing.assert_array_equal(images.decode(), [tensorflow(image, 3) for image in images])


def many_pixels(kind: str) -> bytes:
    """A small file of slightly more pixels than are allowed: 4104 x 4096 zeros."""
    zeros = np.zeros((4104, 4096, 1), np.uint8)
    return encode_jpeg(zeros[None])[0] if kind == "jpeg" else encode_png(zeros[None])[0]


@pytest.mark.parametrize("kind", ["png", "jpeg"])
def test_nothing_decodes_an_image_of_too_many_pixels(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Signals, thumbnails, statistics, outputs, and batches also get images that the check rejects."""
    monkeypatch.setattr(headers, "_allowed", headers.MAX_PIXELS)  # as in a new process
    data = many_pixels(kind)
    images = column(data, shape=(None, None, 1))
    uses = [
        lambda: decode_image(data, 1, "uint8"),
        lambda: decode_resized(np.zeros((8, 8, 1), np.uint8), data, "uint8"),
        lambda: decode_into(np.zeros((8, 8, 1), np.uint8), data, "uint8"),
        lambda: images.decode(),
        lambda: count_levels(images, 1, "x"),
        *([lambda: decode_reduced(data, 8)] if kind == "jpeg" else []),
    ]
    for use in uses:
        with pytest.raises((BadEpisode, UndecodableImageError), match="4104x4096 pixels, but at most 16777216"):
            use()
    assert "at most 16777216" in (thumbnail(data, 8).fault or "")
    assert sample_images(images, 1) == []
    with pytest.raises(BadEpisode, match="image_too_large"):
        images.decode()


def test_the_user_can_allow_more_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headers, "_allowed", headers.MAX_PIXELS)
    data = many_pixels("png")
    assert column(data, shape=(4104, 4096, 1)).decode().shape == (1, 4104, 4096, 1)  # the schema says so
    episode = make_episode(1, columns={"observation/x": column(data, shape=(None, None, 1))})
    assert validate_episode(episode, CheckOptions(max_image_pixels=1 << 25)).violations == ()
    assert decode_image(data, 1, "uint8").shape == (4104, 4096, 1)
