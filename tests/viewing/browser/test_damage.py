"""Damaged, large, missing, and changing data: every request has an answer, and the others still work."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from browsing import browsing

from rlds_beam.encoding.example.row_decoder import objects
from rlds_beam.images.codecs import decode_image, encode_jpeg, encode_png
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.testing import cut, flip_byte, insert_bytes, make_episode, record_offsets, shard_paths, write_dataset

CAMERA = "observation/image"
RNG = np.random.default_rng(0)


def with_images(tmp_path: Path, *episodes: Sequence[bytes], encoding: str = "jpeg") -> Path:
    """A dataset with an episode for each of these lists of images."""
    columns = [EncodedImages(objects(list(images)), (None, None, 3), encoding=encoding) for images in episodes]
    made = [
        make_episode(len(images), seed=i, observation={"state": 3}).with_columns({CAMERA: images})
        for i, images in enumerate(columns)
    ]
    return write_dataset(tmp_path, made)


def pictures(count: int, size: int = 16) -> list[bytes]:
    return encode_jpeg(RNG.integers(0, 255, (count, size, size, 3), np.uint8))


def test_an_image_of_too_many_pixels_is_neither_decoded_nor_sent(tmp_path: Path) -> None:
    """The page would decode it: 20,000 x 20,000 pixels take 1.6 GB."""
    header = struct.pack(">II", 20_000, 20_000)
    png = encode_png(np.zeros((1, 32, 32, 3), np.uint8))[0]
    chunk = b"IHDR" + header + png[24:29]
    large = png[:12] + chunk + zlib.crc32(chunk).to_bytes(4, "big") + png[33:]
    with browsing(with_images(tmp_path, [png, large], encoding="png")) as browser:
        (row,) = browser.json("/api/episodes")["rows"]
        assert browser.get("/image", key=row["key"], camera=CAMERA, step=0).content == png
        for height in ({}, {"height": 48}):
            answer = browser.get("/image", key=row["key"], camera=CAMERA, step=1, **height)
            assert answer.headers["content-type"] == "image/jpeg"
            assert decode_image(answer.content, 3, "uint8").shape[0] == (height or {"height": 512})["height"]
        (mark,) = browser.json("/api/episode", key=row["key"])["marks"]
        assert mark["name"] == "image_too_large"


def test_damaged_records_are_shown_with_what_is_wrong(tmp_path: Path) -> None:
    directory = write_dataset(tmp_path, [make_episode(4, seed=i) for i in range(8)])
    (shard,) = shard_paths(directory)
    cut(shard, record=7, extra=9)
    flip_byte(shard, record=1)
    flip_byte(shard, record=3, part="length_crc")
    insert_bytes(shard, record=5, data=b"something else")
    with browsing(directory, no_scan=False) as browser:
        browser.scanned()
        rows = browser.json("/api/episodes")["rows"]
        assert [row["rule"] for row in rows].count("corrupt_record") == 4
        for row in rows:
            shown = browser.json("/api/episode", key=row["key"])
            readable = row["rule"] is None
            assert (shown["readable"], bool(shown["curves"]), not shown["marks"]) == (readable,) * 3
            assert shown["rejected"] == row["rule"]
            if not readable:
                assert [one["name"] for one in shown["marks"]] == ["corrupt_record"]
                assert browser.get("/api/step", key=row["key"], step=0).status_code == 404
                assert "error" in browser.json("/api/made", key=row["key"])
        assert browser.json("/api/episodes", rule="corrupt_record")["total"] == 4
        assert browser.json("/api/datasets")[0]["rules"] == {"corrupt_record": 4}


def test_rule_violations_have_their_steps(tmp_path: Path) -> None:
    with browsing(
        write_dataset(tmp_path, [make_episode(9, breaks=["non_finite", "discount_out_of_range"])])
    ) as browser:
        shown = browser.json("/api/episode", key=browser.list_keys()[0])
        assert {one["name"]: one["step"] for one in shown["marks"]} == {
            "non_finite": 4,
            "discount_out_of_range": 4,
        }
        reward = next(curve for curve in shown["curves"] if curve["path"] == "reward")
        assert [value is None for value in reward["values"][0]] == [step == 4 for step in range(9)]


def test_images_that_are_damaged_missing_or_something_else(tmp_path: Path) -> None:
    good, other = pictures(2)
    images = [good, b"", other[:50], b"<script>alert(1)</script>", b"GIF89a" + bytes(50)]
    with browsing(with_images(tmp_path, images)) as browser:
        key = browser.list_keys()[0]
        assert browser.json("/api/episode", key=key)["steps"] == 5
        answers = [browser.get("/image", key=key, camera=CAMERA, step=step) for step in range(5)]
        assert [answer.status_code for answer in answers] == [200, 404, 200, 404, 404]
        assert (answers[0].content, answers[2].content) == (good, other[:50])
        for answer in answers:
            assert answer.headers["content-type"] in ("image/jpeg", "application/json")
        for step in range(5):  # a placeholder
            small = browser.get("/image", key=key, camera=CAMERA, step=step, height=48)
            assert small.status_code == 200 and decode_image(small.content, 3, "uint8").shape[0] <= 48
        for camera in ("observation", "observation/nothing", "", "../x"):
            assert browser.get("/image", key=key, camera=camera, step=0).status_code == 404
        assert browser.get("/image", key=key, camera=CAMERA, step=5).status_code == 404


@pytest.mark.parametrize("encoding", ["jpeg", "png"])
def test_images_of_20_mb(tmp_path: Path, encoding: str) -> None:
    pixels = RNG.integers(0, 255, (1, 2600, 2600, 3), np.uint8)
    large = (encode_jpeg(pixels, 100) if encoding == "jpeg" else encode_png(pixels))[0]
    images = [large, *pictures(3), large]
    assert len(large) > 9_000_000
    with browsing(with_images(tmp_path, images, pictures(4), encoding=encoding)) as browser:
        for number, expected in ((0, images), (1, None)):
            key = browser.list_keys()[number]
            shown = browser.json("/api/episode", key=key)
            assert shown["cameras"][0]["height"] == (2600 if expected else 16)
            for step, image in enumerate(expected or ()):
                assert browser.get("/image", key=key, camera=CAMERA, step=step).content == image
        small = browser.get("/image", key=browser.list_keys()[0], camera=CAMERA, step=0, height=96).content
        assert len(small) < 50_000
        held = browser.server.datasets[0].cache._episodes
        assert held._values._bytes < 1_000_000  # no image is held


def test_many_requests_at_once(tmp_path: Path) -> None:
    episodes = [pictures(6) for _ in range(12)]
    with browsing(with_images(tmp_path, *episodes), no_scan=False) as browser, ThreadPoolExecutor(16) as pool:
        keys = browser.list_keys()

        def image(number: int) -> bool:
            episode, step = number % 12, number % 6
            answer = browser.get("/image", key=keys[episode], camera=CAMERA, step=step)
            return bool(answer.content == episodes[episode][step])

        def other(number: int) -> bool:
            path = ("/api/episode", "/api/made", "/api/step")[number % 3]
            return bool(browser.get(path, key=keys[number % 12], step=2).status_code == 200)

        assert all(pool.map(image, range(300))) and all(pool.map(other, range(120)))
        assert not browser.server.datasets[0].cache._episodes._locks


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    before, after = [pictures(3)], [pictures(5)]
    directory = with_images(tmp_path / "a", *before)
    with browsing(directory) as browser:
        key = browser.list_keys()[0]
        version = browser.json("/api/episode", key=key)["version"]
        assert browser.get("/image", key=key, camera=CAMERA, step=1).content == before[0][1]
        (new,), (old,) = shard_paths(with_images(tmp_path / "b", *after)), shard_paths(directory)
        os.replace(new, old)
        changed = browser.json("/api/episode", key=key)
        assert (changed["steps"], changed["version"] == version) == (5, False)
        assert browser.get("/image", key=key, camera=CAMERA, step=4).content == after[0][4]
        old.unlink()
        for path in ("/api/episode", "/image"):
            assert browser.get(path, key=key, camera=CAMERA, step=0).status_code == 404
        assert browser.json("/api/datasets")


def test_the_browser_keeps_images_of_a_version(tmp_path: Path) -> None:
    with browsing(with_images(tmp_path, pictures(3))) as browser:
        key = browser.list_keys()[0]
        query = {"key": key, "camera": CAMERA, "step": 0}
        version = browser.json("/api/episode", key=key)["version"]
        first = browser.get("/image", **query)
        assert first.headers["cache-control"] == "private, no-cache"
        assert "immutable" in browser.get("/image", v=version, **query).headers["cache-control"]
        assert "immutable" not in browser.get("/image", v="older", **query).headers["cache-control"]
        again = browser.get("/image", {"If-None-Match": first.headers["etag"]}, **query)
        assert (again.status_code, again.content) == (304, b"")
        assert browser.get("/image", {"If-None-Match": '"other"'}, **query).status_code == 200


def test_gzip_files_are_read_whole(tmp_path: Path) -> None:
    import gzip

    images = pictures(3)
    directory = with_images(tmp_path, images, pictures(2))
    (shard,) = shard_paths(directory)
    offsets = record_offsets(shard)
    shard.write_bytes(gzip.compress(shard.read_bytes()))
    with browsing(directory) as browser:
        keys = browser.list_keys()
        assert [int(key.rpartition("@")[2]) for key in keys] == offsets[:-1]
        assert browser.get("/image", key=keys[0], camera=CAMERA, step=2).content == images[2]


def test_a_dataset_without_episodes(tmp_path: Path) -> None:
    directory = write_dataset(tmp_path, [make_episode(3)])
    (shard,) = shard_paths(directory)
    shard.write_bytes(b"")
    with browsing(directory, no_scan=False) as browser:
        browser.scanned()
        assert browser.json("/api/episodes")["rows"] == []
        assert browser.json("/api/episodes", sort="steps")["total"] == 0
        assert browser.json("/api/datasets")[0]["episodes"] == 0
