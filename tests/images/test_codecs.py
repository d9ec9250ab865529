"""Image decoding equals TFDS, in pixels and in damage found."""

import io
import struct
import sys
import zlib
from typing import Any

import numpy as np
import pytest
from checkout import REAL_DATA
from picture_files import (
    RNG,
    column,
    interlaced,
    picture,
    png,
    png_chunks,
    rotated,
    tensorflow,
    tensorflow_accepts,
    with_pillow,
)

from rlds_beam.checking.rules import CheckOptions
from rlds_beam.checking.signals.images import sample_images
from rlds_beam.checking.validation import validate_episode
from rlds_beam.datasets.pixels import decode_into, decode_resized
from rlds_beam.errors import BadEpisode
from rlds_beam.formats.lerobot.statistics import count_levels
from rlds_beam.images import headers
from rlds_beam.images.checks import check_images
from rlds_beam.images.codecs import _fast_png, decode_image, decode_reduced, encode_jpeg, encode_png
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.images.headers import UndecodableImageError, read_image_header
from rlds_beam.images.thumbnails import thumbnail
from rlds_beam.testing import make_episode


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
        found[f"png interlaced {dtype.__name__}"] = interlaced(picture(dtype=dtype))
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
    found["bmp"] = with_pillow(picture(), "bmp")
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
    assert check_images(column(*files.values()), 1 << 26) == []


def test_damage_is_found_where_tensorflow_finds_it(files: dict[str, bytes]) -> None:
    """No false alarms; every cut and all damage to PNGs is found without decoding."""
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


def odd_pngs() -> dict[str, bytes]:
    """PNGs of valid chunks with unusual content."""
    image = picture()
    header = (b"IHDR", struct.pack(">IIBBBBB", 47, 33, 8, 2, 0, 0, 0))
    lines = b"".join(
        bytes([y % 2]) + np.diff(row, axis=0, prepend=row[:1] * 0).tobytes() if y % 2 else b"\0" + row.tobytes()
        for y, row in enumerate(image)
    )
    stream, end, text = zlib.compress(lines), (b"IEND", b""), (b"tEXt", b"a\0b")
    data = (b"IDAT", stream)
    small_window = b"\x08\x1d" + stream[2:]

    def with_header(**fields: int) -> tuple[bytes, bytes]:
        names = ("width", "height", "depth", "color", "compression", "filter", "interlace")
        values = dict(zip(names, struct.unpack(">IIBBBBB", header[1]), strict=True)) | fields
        return b"IHDR", struct.pack(">IIBBBBB", *values.values())

    return {
        name: png(chunks)
        for name, chunks in {
            "sound": [header, data, end],
            "one byte per part": [header, *((b"IDAT", bytes([b])) for b in stream), end],
            "an empty part": [header, (b"IDAT", b""), data, (b"IDAT", b""), end],
            "text between parts": [header, (b"IDAT", stream[:99]), text, (b"IDAT", stream[99:]), end],
            "text around": [header, text, data, text, end],
            "too many parts": [header, data, text, data, end],
            "no part": [header, end],
            "empty": [header, (b"IDAT", b""), end],
            "trailing bytes": [header, (b"IDAT", stream + b"trailing"), end],
            "too many lines": [header, (b"IDAT", zlib.compress(lines + b"\0" * 142)), end],
            "too few lines": [header, (b"IDAT", zlib.compress(lines[:-142])), end],
            "one byte too few": [header, (b"IDAT", zlib.compress(lines[:-1])), end],
            "a wrong checksum": [header, (b"IDAT", stream[:-1] + bytes([stream[-1] ^ 1])), end],
            "no checksum": [header, (b"IDAT", stream[:-4]), end],
            "a small window": [header, (b"IDAT", small_window), end],
            "an unknown filter": [header, (b"IDAT", zlib.compress(b"\7" + lines[1:])), end],
            "two headers": [header, header, data, end],
            "a long header": [(b"IHDR", header[1] + b"\0"), data, end],
            "an unknown chunk": [header, (b"teSt", b"?"), data, end],
            "an unknown critical chunk": [header, (b"TeST", b"?"), data, end],
            "a late unknown critical chunk": [header, data, (b"TeST", b"?"), end],
            "a background": [header, (b"bKGD", b"\0\1\0\2\0\3"), (b"eXIf", b"II*\0"), data, end],
            "an invalid chunk name": [header, (b"t\x01St", b"?"), data, end],
            "an invalid palette": [header, (b"PLTE", b"1234"), data, end],
            "a suggested palette": [header, (b"PLTE", b"123"), data, end],
            "colors": [header, (b"sBIT", b"\5\6\5"), (b"gAMA", b"\0\0\0\0"), (b"cHRM", b"\0" * 32), data, end],
            "transparency late": [header, data, (b"tRNS", b"\0\1\0\2\0\3"), end],
            "no width": [with_header(width=0), data, end],
            "no height": [with_header(height=0), data, end],
            "a negative width": [with_header(width=1 << 31), data, end],
            "wider": [with_header(width=48), data, end],
            "a wrong interlace flag": [with_header(interlace=1), data, end],
            "an unknown compression": [with_header(compression=1), data, end],
            "an unknown filter method": [with_header(filter=1), data, end],
        }.items()
    }


@pytest.mark.parametrize("channels", [None, 3])
def test_odd_pngs_equal_tensorflow(channels: int | None) -> None:
    taken = 0
    for name, image in odd_pngs().items():
        if not tensorflow_accepts(image, channels):
            with pytest.raises(BadEpisode, match=r"undecodable_image|image_too_large"):
                raise AssertionError(f"{name}: {column(image, shape=(None, None, channels)).decode().shape}")
            continue
        pixels = column(image, shape=(None, None, channels)).decode()
        np.testing.assert_array_equal(pixels[0], tensorflow(image, channels), err_msg=name)
        taken += 1
    assert 8 < taken < 25


def test_usual_pngs_need_no_tensorflow(files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    for name, image in files.items():
        kind, _, form = name.partition(" ")
        if kind == "png" and form not in ("2", "2 16", "tRNS", "palette", "bilevel"):
            dtype = "uint16" if form.endswith("16") else "uint8"
            assert len(column(image, shape=(None, None, None), dtype=dtype).decode()) == 1, name


def test_a_bomb_is_not_decompressed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A header that claims more than the body can hold is rejected."""
    import imagecodecs

    inflate, room = imagecodecs.deflate_decode, []

    def watched(stream: bytes, out: int) -> Any:
        room.append(out)
        return inflate(stream, out=out)

    monkeypatch.setattr(imagecodecs, "deflate_decode", watched)
    zeros = (b"IDAT", zlib.compress(bytes(1 << 26)))
    for size, asked in ((8, [8 * 25]), (30_000, [])):
        room.clear()
        header = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
        with pytest.raises(UndecodableImageError):
            _fast_png(png([(b"IHDR", header), zeros, (b"IEND", b"")]), 3, "uint8")
        assert room == asked


@pytest.mark.parametrize(
    "data", [b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF8", b"BM", b"RIFF1234WEBP", b"\0" * 99]
)
def test_invalid_images(data: bytes) -> None:
    [violation] = check_images(column(data), 1 << 26, "observation/image")
    assert (violation.rule, violation.field, violation.step) == ("undecodable_image", "observation/image", 0)
    with pytest.raises(BadEpisode, match="undecodable_image in observation/image"):
        column(data).decode("observation/image")


def test_a_bomb_is_rejected_by_its_header(files: dict[str, bytes]) -> None:
    header = struct.pack(">IIBBBBB", 50_000, 60_000, 8, 2, 0, 0, 0)
    bomb = png([(b"IHDR", header), *png_chunks(files["png 3"])[1:]])
    [violation] = check_images(column(files["png 3"], bomb), 1 << 26)
    assert (violation.rule, violation.step) == ("image_too_large", 1)
    assert "60000x50000 pixels at step 1" in violation.detail


def test_chroma_subsampling_unknown_to_simplejpeg() -> None:
    image = bytearray(encode_jpeg(picture(64, 64)[None])[0])
    frame = image.index(b"\xff\xc0")
    for sampling in ((0x14, 0x11, 0x11), (0x11, 0x12, 0x11), (0x31, 0x11, 0x11)):
        for i, value in enumerate(sampling):
            image[frame + 11 + 3 * i] = value
        accepted = tensorflow_accepts(bytes(image), 3)
        assert read_image_header(bytes(image)) == (64, 64)
        try:
            pixels = column(bytes(image)).decode()
        except BadEpisode:
            assert not accepted
        else:
            np.testing.assert_array_equal(pixels[0], tensorflow(bytes(image), 3))


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
    assert check_images(column(image, shape=(33, 47, 3)), 1 << 26) == []
    assert check_images(column(image, shape=(33, None, 1)), 1 << 26) == []  # TensorFlow converts channels
    [violation] = check_images(column(image, shape=(47, 33, 3)), 1 << 26)
    assert violation.detail == "33x47 at step 0, but expected 47x33"
    with pytest.raises(BadEpisode, match="image_size_mismatch"):
        column(image, shape=(47, 33, 3)).decode()
    with pytest.raises(BadEpisode, match=r"image_size_mismatch.*step 1"):
        column(image, files["jpeg 3 75 {}"]).decode()


def test_columns_of_images(files: dict[str, bytes]) -> None:
    images = column(files["png 3"], files["jpeg 3 95 {}"], files["png 1"])
    pixels = images.decode()
    assert pixels.shape == (3, 33, 47, 3)
    np.testing.assert_array_equal(images[1:].decode(), pixels[1:])
    np.testing.assert_array_equal(images[1].decode(), pixels[1:2])
    assert column(shape=(8, 9, 3)).decode().shape == (0, 8, 9, 3)


@pytest.mark.parametrize("channels", [1, 3])
def test_tensorflow_reads_our_jpegs(channels: int) -> None:
    images = np.stack([picture(channels=channels) for _ in range(3)])
    encoded = encode_jpeg(images, quality=95)
    assert check_images(column(*encoded, shape=(33, 47, channels)), 1 << 26) == []
    for image, data in zip(images, encoded, strict=True):
        assert np.abs(tensorflow(data, channels).astype(int) - image).mean() < 8
    with pytest.raises(ValueError, match="uint8"):
        encode_jpeg(images.astype(np.uint16))


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
            assert check_images(images, 1 << 26) == []
            np.testing.assert_array_equal(images.decode(), [tensorflow(image, 3) for image in images])


def test_an_image_of_many_pixels_is_not_decoded(monkeypatch):
    """200 kB of PNG can decode to 200 MB of pixels."""
    side = 8192
    rows = zlib.compress(bytes((1 + 3 * side) * 8))  # only the header gives its size
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    image = png([(b"IHDR", header), (b"IDAT", rows), (b"IEND", b"")])
    images = column(image, image)
    monkeypatch.setattr(EncodedImages, "decode", lambda *_: pytest.fail("the image was decoded"))
    episode = make_episode(2, columns={"observation/x": images})
    verdict = validate_episode(episode, CheckOptions(decode_images=True))
    assert [v.rule for v in verdict.violations] == ["image_too_large"]


def many_pixels(kind: str) -> bytes:
    """A small file of slightly more pixels than are allowed: 4104 x 4096 zeros."""
    zeros = np.zeros((4104, 4096, 1), np.uint8)
    if kind == "bmp":
        return struct.pack("<2sIIIIiiHHIIIIII", b"BM", 0, 0, 54, 40, 4096, 4104, 1, 24, 0, 0, 0, 0, 0, 0)
    return encode_jpeg(zeros[None])[0] if kind == "jpeg" else encode_png(zeros[None])[0]


@pytest.mark.parametrize("kind", ["png", "jpeg", "bmp"])
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


def test_progressive_jpegs_are_decoded() -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = RNG.integers(0, 255, (64, 48, 3), np.uint8)
    for quality in (10, 90):
        for progressive in (True, False, True):
            file = io.BytesIO()
            image.fromarray(pixels).save(file, "JPEG", progressive=progressive, quality=quality)
            assert read_image_header(file.getvalue()) == (64, 48)
            assert decode_image(file.getvalue(), 3, "uint8").shape == (64, 48, 3)
