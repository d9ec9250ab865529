"""Damaged, large, missing, and changing data: every request has an answer, and the others still work."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from browsing import browsing
from damage import insert_bytes

from rlds_beam.encoding.example.row_decoder import objects
from rlds_beam.images.codecs import decode_image, encode_jpeg
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.testing import cut, flip_byte, make_episode, shard_paths, write_dataset

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
        assert [answer.status_code for answer in answers] == [200, 200, 200, 404, 404]  # an empty one stands for zeros
        assert (answers[0].content, answers[2].content) == (good, other[:50])
        for answer in answers:
            assert answer.headers["content-type"] in ("image/jpeg", "image/png", "application/json")
        for step in range(5):  # a placeholder
            small = browser.get("/image", key=key, camera=CAMERA, step=step, height=48)
            assert small.status_code == 200 and decode_image(small.content, 3, "uint8").shape[0] <= 48
        for camera in ("observation", "observation/nothing", "", "../x"):
            assert browser.get("/image", key=key, camera=camera, step=0).status_code == 404
        assert browser.get("/image", key=key, camera=CAMERA, step=5).status_code == 404


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


def test_a_dataset_without_episodes(tmp_path: Path) -> None:
    directory = write_dataset(tmp_path, [make_episode(3)])
    (shard,) = shard_paths(directory)
    shard.write_bytes(b"")
    with browsing(directory, no_scan=False) as browser:
        browser.scanned()
        assert browser.json("/api/episodes")["rows"] == []
        assert browser.json("/api/episodes", sort="steps")["total"] == 0
        assert browser.json("/api/datasets")[0]["episodes"] == 0
